"""The program of docs/checkpoints.md runs, twice: what the first one saved the second one finds."""
import pathlib
import re

import quire

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_guide_runs_and_finds_its_checkpoints_again(monkeypatch, tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "checkpoints.md").read_text(), re.S)
    (tmp_path / "models").symlink_to(ROOT / "models")
    monkeypatch.chdir(tmp_path)
    for length in (255, 507):
        names = {}
        exec(compile(program, "docs/checkpoints.md", "exec"), names)
        assert len(names["sequences"]["ada"]) == length
        assert names["checkpoints"].list()[0].sequences == {"ada": length - 1, "lars": 1}
        names["llm"].close()
    entries = quire.Store(names["folder"], read_only=True)
    assert {entry.kind for entry in entries} == {"checkpoint"}
