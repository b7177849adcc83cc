"""The Python block of docs/gpu.md runs: with a GPU it opens the model, without one it prints why not."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "gpu.md").read_text(), re.S)


def test_the_block_runs_on_any_machine(monkeypatch, capsys):
    assert len(BLOCKS) == 1
    names = {}
    monkeypatch.chdir(ROOT)
    exec(compile(BLOCKS[0], "docs/gpu.md", "exec"), names)
    printed = capsys.readouterr().out
    assert ("llm" in names) != ("cuda" in printed.lower())
