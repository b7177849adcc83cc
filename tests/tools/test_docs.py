"""Markdown in the tree: relative links lead somewhere, lines of prose are short, tables of results are those of the JSON file.

Standard library only.
"""
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from markdown_links import anchors, relative_links, without_code  # noqa: E402

LINE = 120
# Pages whose prose keeps to LINE characters; a page that is rewritten joins them.
SHORT_LINES = ["CHANGELOG.md", "README.md", "bench/README.md", "bench/journal/*.md", "docs/performance.md", "docs/README.md",
               "docs/getting-started.md", "docs/choosing.md", "docs/chunks.md", "docs/direct-inference.md", "docs/cli.md",
               "docs/memory.md", "docs/coming-from.md", "docs/python.md", "docs/cpp.md", "src/quire/attention/README.md", "src/quire/kernels/README.md"]


def pages():
    """Returns all tracked Markdown files; in a tree without git, those that are no build output."""
    done = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0 and done.stdout:
        found = [ROOT / name for name in done.stdout.split("\0") if name]
        return [path for path in found if path.exists()]
    return [path for path in ROOT.rglob("*.md") if not {"build", "node_modules"} & set(path.relative_to(ROOT).parts)
            and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]


def broken_links(path):
    """Returns the relative links of a page that lead to no file or to no heading."""
    broken = []
    for target in relative_links(path.read_text()):
        file, _, anchor = target.partition("#")
        there = (path.parent / file) if file else path
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there.read_text())):
            broken.append(target)
    return broken


def long_lines(text):
    """Returns the numbers of lines of prose that are too long; tables, code and the targets of links do not count."""
    found = []
    for number, line in enumerate(without_code(text).splitlines(), 1):
        if not line.lstrip().startswith("|") and len(re.sub(r"\]\([^)]*\)", "]", line)) > LINE:
            found.append(number)
    return found


class DocsTest(unittest.TestCase):
    def test_relative_links_of_every_page_lead_to_a_file_and_a_heading(self):
        self.assertGreater(len(pages()), 50)
        for path in pages():
            with self.subTest(page=str(path.relative_to(ROOT))):
                self.assertEqual(broken_links(path), [])

    def test_lines_of_rewritten_pages_are_short(self):
        for pattern in SHORT_LINES:
            found = sorted(ROOT.glob(pattern))
            self.assertTrue(found, pattern)
            for path in found:
                with self.subTest(page=str(path.relative_to(ROOT))):
                    self.assertEqual(long_lines(path.read_text()), [])

    def test_changelog_has_its_groups_and_stays_short(self):
        text = (ROOT / "CHANGELOG.md").read_text()
        first = text.split("\n## ")[1]
        self.assertEqual(re.findall(r"^### (.*)", first, re.M), ["Added", "Changed", "Fixed"])
        self.assertLess(len(first.splitlines()), 60)

    def test_tables_and_plot_of_the_performance_page_are_those_of_the_results(self):
        done = subprocess.run([sys.executable, ROOT / "bench" / "plot_tables.py", "--check"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_journal_lists_each_of_its_days(self):
        index = (ROOT / "bench/journal/README.md").read_text()
        for path in (ROOT / "bench/journal").glob("2*.md"):
            self.assertIn(f"[{path.stem}]({path.name})", index)


class CheckTest(unittest.TestCase):
    def test_a_link_in_code_or_to_an_address_is_no_relative_link(self):
        self.assertEqual(relative_links("`[a](b)` [c](https://d)\n```\n[e](f)\n```\n[g](h.md#i) ![k](l.svg)"), ["h.md#i", "l.svg"])

    def test_headings_have_the_anchors_of_github(self):
        self.assertIn("chunk_bench-model-decode-shared-and-flat-reads", anchors((ROOT / "bench/journal/2026-11-26.md").read_text()))

    def test_long_prose_is_found_and_long_tables_and_code_are_not(self):
        word = "x" * 121
        self.assertEqual(long_lines(f"{word}\n| {word} |\n```\n{word}\n```\n[a]({word})\n`{word}`\n"), [1])


if __name__ == "__main__":
    unittest.main()
