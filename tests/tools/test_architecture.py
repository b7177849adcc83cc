"""docs/architecture.md and docs/glossary.md against the tree: the picture is that of the layer list, and every place is there.

Standard library only.
"""
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import draw_architecture

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
FOLDERS = "src|include|apps|bindings|bench|tests|tools|docs|models|examples"


def names_of(path):
    """Returns the names in a file, comments apart."""
    return set(re.findall(r"\w+", re.sub(r"//.*", "", path.read_text())))


class Picture(unittest.TestCase):
    def test_picture_is_what_the_layer_list_draws(self):
        drawn = draw_architecture.draw(draw_architecture.read_layers(ROOT))
        self.assertEqual((ROOT / "docs" / "architecture.svg").read_text(), drawn, "run tools/draw_architecture.py")

    def test_each_module_is_in_the_picture_and_has_a_paragraph(self):
        svg = (ROOT / "docs" / "architecture.svg").read_text()
        for module in draw_architecture.read_layers(ROOT):
            with self.subTest(module):
                self.assertIn(f">{module}</text>", svg)
                self.assertRegex(ARCHITECTURE, rf"(?m)^`{module}` — ")

    def test_arrow_that_a_path_says_already_is_left_out(self):
        uses = draw_architecture.direct_uses({"a": [], "b": ["a"], "c": ["a"], "d": ["a", "b", "c"]})
        self.assertEqual(uses, {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]})
        self.assertEqual(draw_architecture.floors_of(uses), [["a"], ["b", "c"], ["d"]])

    def test_boxes_of_a_floor_do_not_touch(self):
        layers = draw_architecture.read_layers(ROOT)
        uses = draw_architecture.direct_uses(layers)
        floors, _, steps = draw_architecture.with_corners(uses, draw_architecture.floors_of(uses))
        x = draw_architecture.centres(draw_architecture.untangled(floors, steps), steps)
        for floor in draw_architecture.floors_of(uses):
            places = sorted(x[module] for module in floor)
            for left, right in zip(places, places[1:]):
                self.assertGreaterEqual(right - left, draw_architecture.BOX_WIDTH)


class Places(unittest.TestCase):
    def test_each_path_of_the_pages_exists_and_has_the_name(self):
        for page in (ARCHITECTURE, GLOSSARY):
            for path, name in re.findall(rf"`((?:{FOLDERS})/[\w./]+)(?: : (\w+))?`", page):
                with self.subTest(path=path, name=name):
                    self.assertTrue((ROOT / path).exists(), path)
                    if name:
                        self.assertIn(name, names_of(ROOT / path))

    def test_public_names_that_keep_a_word_are_public(self):
        table = GLOSSARY.split("## Public names that keep an older word\n")[1].split("|---|---|---|\n")[1].split("\n\n")[0]
        public = set().union(*(names_of(path) for path in (ROOT / "include" / "quire").glob("*.h")))
        names = [name for row in table.splitlines() for name in re.findall(r"`([\w:]+)`", row.split("|")[1])]
        self.assertGreater(len(names), 5)
        for name in names:
            with self.subTest(name):
                self.assertIn(name.split("::")[-1], public)

    def test_each_word_has_a_header_and_the_words_are_sorted(self):
        table = GLOSSARY.split("|---|---|---|\n")[1].split("\n\n")[0].splitlines()
        words = []
        for row in table:
            match = re.fullmatch(r"\| ([^|]+) \| [^|]+ \| `[\w/.]+\.h : \w+` \|", row)
            self.assertTrue(match, row)
            words.append(match[1])
        self.assertEqual(words, sorted(words, key=str.casefold))
        self.assertEqual(len(words), len({word.casefold() for word in words}))


if __name__ == "__main__":
    unittest.main()
