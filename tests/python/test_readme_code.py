"""The Python block on README's first screen runs, and shows what it says: answers and reused tokens."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_python_block_of_the_readme_runs(monkeypatch, capsys):
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    monkeypatch.chdir(ROOT)
    exec(compile(block, "README.md", "exec"), {})
    first, second, rest = capsys.readouterr().out.split("\n", 2)
    assert "apples." in first and " 0 of " in first
    assert "Foxley." in second and " 0 of " not in second
    assert rest.strip()
