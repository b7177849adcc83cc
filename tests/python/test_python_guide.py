"""The Python blocks of docs/python.md run, in order, as one program, and print what it says."""
import pathlib

from documents import python_blocks

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_blocks_of_the_guide_run_in_order(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    names = {}
    blocks = python_blocks(ROOT / "docs" / "python.md", [])
    assert len(blocks) == 11
    for block in blocks:
        exec(block, names)
    printed = capsys.readouterr().out
    assert "Foxley." in printed and "apples." in printed
    assert "the chat template of this model shows no tools; describe them in a system message" in printed
    assert [part.tokens for part in names["out"].parts] and len(names["out"].outputs) == 2
    assert names["whole"].text.strip() == "Foxley." and all(out.token_ids for out in names["both"])
