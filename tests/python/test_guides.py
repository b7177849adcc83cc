"""The Python blocks of the shorter guides run, in order, each page as one program; what they assert holds."""
import pathlib
import re
import subprocess
import sys

import pytest
from documents import python_blocks

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {"getting-started": 5, "choosing": 4, "memory": 5, "reuse-grades": 1, "coming-from": 6}


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_the_guide_run_in_order(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = python_blocks(ROOT / "docs" / f"{page}.md", [])
    assert len(blocks) == PAGES[page]
    names = {}
    for block in blocks:
        exec(block, names)


def test_the_index_names_every_page_and_links_lead_somewhere():
    folder = ROOT / "docs"
    named = re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text())
    assert sorted(named) == sorted(path.name for path in folder.glob("*.md") if path.name != "README.md")
    for page in ("README", "cpp", "architecture", "glossary", "voice", *PAGES):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", (folder / f"{page}.md").read_text()):
            assert (folder / link).exists(), (page, link)


def test_the_noise_of_reuse_is_zero_where_it_is_exact():
    command = [sys.executable, ROOT / "bench" / "reuse_noise.py", "--contexts", "1", "--questions", "1"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [row for row in re.findall(r"^\| (?!\(plain)[^|]+ \| `(\w+)` \| (\S+) \|", table, re.M)]
    assert len(rows) == 3 * 12 and {grade for grade, _ in rows} == {"exact", "equal_math", "approximate"}
    assert all(float(largest) < 2e-6 for grade, largest in rows if grade == "exact")


def test_the_band_of_the_demo_model_begins_where_the_guide_says():
    command = [sys.executable, ROOT / "bench" / "find_band.py", "--contexts", "2"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    errors = [float(error) for error in re.findall(r"^layer +\d+  (\S+)$", said, re.M)]
    assert len(errors) == 8 and min(errors) == errors[5]  # layer 5 reads what layer 4 has bound
    assert "recompute_layers=(4, 6)" in (ROOT / "docs/reuse-grades.md").read_text() and said.endswith("band (4, 6)\n")
