"""The Python blocks of docs/cache-hints.md run, in order, as one program; what it asserts holds."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_blocks_of_the_guide_run_in_order(monkeypatch, capsys):
    text = (ROOT / "docs" / "cache-hints.md").read_text()
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.S))
    assert len(blocks) == 4
    monkeypatch.chdir(ROOT)
    names = {}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))  # so that a traceback points into the guide
        exec(compile("\n" * line + block[1], "docs/cache-hints.md", "exec"), names)
    printed = capsys.readouterr().out
    assert 'no session "bob"' in printed
