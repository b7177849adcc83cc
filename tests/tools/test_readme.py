"""README's promises about the tree: each `path : function` of its tables is there, each link leads somewhere.

Standard library only; the code block is run by tests/python/test_readme_code.py.
"""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", "CONTRIBUTING.md"]


class ReadmeTest(unittest.TestCase):
    def test_each_function_of_the_way_of_a_request_is_declared_where_the_table_says(self):
        rows = re.findall(r"^\| (\d) \|.*$", (ROOT / "README.md").read_text(), re.M)
        self.assertEqual(rows, [str(i) for i in range(1, 9)])
        places = re.findall(r"`([\w/]+\.h) : (\w+)`", (ROOT / "README.md").read_text())
        self.assertGreaterEqual(len(places), 12)
        for path, function in places:
            with self.subTest(path=path, function=function):
                code = re.sub(r"//.*", "", (ROOT / path).read_text())
                self.assertRegex(code, rf"[\w>&*] {function}\(")

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
