"""The Python blocks of docs/chunks.md run, in order, as one program; what it asserts holds."""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_blocks_of_the_chunk_guide_run_in_order(monkeypatch, capsys):
    text = (ROOT / "docs" / "chunks.md").read_text()
    blocks = list(re.finditer(r"```python\n(.*?)```", text, re.S))
    assert len(blocks) >= 15
    monkeypatch.chdir(ROOT)
    names = {}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))  # so that a traceback points into the guide
        exec(compile("\n" * line + block[1], "docs/chunks.md", "exec"), names)
    assert "Cache hit rate: " in capsys.readouterr().out


def test_the_commands_of_the_chunk_guide_run(tmp_path):
    import subprocess
    import sys

    text = (ROOT / "docs" / "chunks.md").read_text()
    script = tmp_path / "cards.txt"
    script.write_text(re.search(r"```\n(chunk add.*?)```", text, re.S)[1])
    command = [sys.executable, "-c", "from quire._command import main; main()"]
    done = subprocess.run([*command, "script", ROOT / "models" / "cardfile" / "model", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].strip() == "apples."
