"""The Python blocks of the shorter guides run, in order, each page as one program; what they assert holds."""
import pathlib

import pytest
from documents import python_blocks

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {"choosing": 4, "memory": 4, "reuse-grades": 1}


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_the_guide_run_in_order(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = python_blocks(ROOT / "docs" / f"{page}.md", [])
    assert len(blocks) == PAGES[page]
    names = {}
    for block in blocks:
        exec(block, names)
