"""README's promises about the tree: each `path : function` of its tables is there, each link leads somewhere.

Standard library only; the code block is run by tests/python/test_readme_code.py.
"""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md"]


class ReadmeTest(unittest.TestCase):
    def way_of_a_request(self):
        table = (ROOT / "README.md").read_text().split("## The way of a request")[1].split("## ")[0]
        self.assertEqual(re.findall(r"^\| (\d) \|", table, re.M), [str(i) for i in range(1, 9)])
        return re.findall(r"`([\w/]+\.(?:h|cc)) : (\w+)`", table)

    def test_each_name_of_the_way_of_a_request_is_where_the_table_says(self):
        places = self.way_of_a_request()
        self.assertGreaterEqual(len(places), 20)
        for path, name in places:
            with self.subTest(path=path, name=name):
                code = re.sub(r"//.*", "", (ROOT / path).read_text())
                self.assertRegex(code, rf"[\w>&*:] ?(?:\w+::)?{name}\(|struct {name} ")

    def test_the_way_of_a_request_is_short(self):
        files = {path for path, _ in self.way_of_a_request()}
        lines = {path: len((ROOT / path).read_text().splitlines()) for path in files}
        self.assertLessEqual(len(files), 24)
        self.assertLessEqual(sum(lines.values()), 4000, lines)

    def test_links_and_paths_exist(self):
        for page in PAGES:
            text = (ROOT / page).read_text()
            links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if ":" not in link]
            paths = re.findall(r"`((?:src|include|apps|bindings|tests|tools|docs|models|packaging|bench|examples)/[\w./]*\w)`", text)
            for path in links + paths:
                with self.subTest(page=page, path=path):
                    self.assertTrue((ROOT / path).exists(), path)

    def test_modules_of_the_map_are_those_of_the_layer_list(self):
        layers = re.findall(r"^(\w+) *=", (ROOT / "tools/layers.toml").read_text(), re.M)
        table = (ROOT / "README.md").read_text().split("## Map")[1].split("## ")[0]
        for module in layers:
            with self.subTest(module):
                self.assertIn(f"{module}`", table)

    def test_presets_of_contributing_exist(self):
        presets = (ROOT / "CMakePresets.json").read_text()
        for name in re.findall(r"^\| `(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text().split("| preset")[1].split("##")[0], re.M):
            self.assertIn(f'"name": "{name}"', presets)


if __name__ == "__main__":
    unittest.main()
