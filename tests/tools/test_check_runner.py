"""How `make check` counts tests, and how clang-tidy's cache sees what a file includes. Standard library only."""
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check  # noqa: E402
import tidy  # noqa: E402


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


class ShownTest(Folder):
    def shown(self, *lines):
        log = check.Log.__new__(check.Log)
        log.path = self.write("stage.log", "\n".join(lines))
        return log.tail()

    def test_the_line_that_says_why_is_shown_and_not_the_program_s_head(self):
        head = ["1/4 Test #14: api ....***Failed 135.89 sec", *(f"[       OK ] Api.{i}" for i in range(200))]
        for why in ("a_test.cc:7: Failure", "WARNING: ThreadSanitizer: data race", "[  FAILED  ] Api.X", "E   assert 1 == 2",
                    "a.cc:3:1: error: no such name"):
            self.assertIn(why, self.shown(*head, why, *(f"[       OK ] Api.{i}" for i in range(200))))

    def test_a_program_that_only_crashed_shows_where_ctest_names_it_and_anything_else_the_end(self):
        ok = [f"[       OK ] Api.{i}" for i in range(200)]
        self.assertIn("***Exception", self.shown(*ok, "1/4 Test #14: api ....***Exception: SegFault 17 sec", *ok))
        self.assertTrue(self.shown(*ok, "the last line").endswith("the last line"))


class CountTest(Folder):
    def test_cases_that_ran_count_and_skipped_ones_do_not(self):
        cases = [{"result": "COMPLETED"}, {"result": "COMPLETED", "failures": [{}]}, {"result": "SKIPPED"}, {"result": "SUPPRESSED"}]
        self.write("kv_test.json", json.dumps({"testsuites": [{"testsuite": cases}, {"testsuite": cases[:1]}]}))
        self.assertEqual(check.count_cases(self.path), check.Count(passed=2, failed=1))

    def programs(self, *tests):
        entries = "".join(f'<testcase status="{status}"><system-out>{output}</system-out></testcase>' for status, output in tests)
        return check.count_programs(self.write("ctest.xml", f"<testsuite>{entries}</testsuite>"))

    def test_a_gtest_program_adds_only_its_crash(self):
        self.assertEqual(self.programs(("run", "[==========] 3 tests ran.")), check.Count())
        self.assertEqual(self.programs(("fail", "[==========] Running 3\n[  FAILED  ] Kv.X")), check.Count())
        self.assertEqual(self.programs(("fail", "[==========] Running 3\nSegmentation fault")), check.Count(0, 1))

    def test_unittest_programs_count_their_tests(self):
        self.assertEqual(self.programs(("run", "Ran 12 tests in 1 s\n\nOK (skipped=2)")), check.Count(10, 0))
        self.assertEqual(self.programs(("fail", "Ran 12 tests in 1 s\n\nFAILED (failures=2, errors=1)")), check.Count(9, 3))

    def test_other_programs_count_as_one(self):
        self.assertEqual(self.programs(("run", "layers ok"), ("fail", ""), ("notrun", "")), check.Count(1, 1))


class TidyKeyTest(Folder):
    def test_a_key_follows_headers_of_the_tree_through_headers(self):
        source = self.write("src/quire/a/a.cc", '#include "quire/a/a.h"\n#include <vector>\n')
        self.write("src/quire/a/a.h", '#include "quire/b.h"\n')
        deep = self.write("include/quire/b.h", "int x;\n")
        entry = {"command": "c++ -c a.cc", "file": str(source)}
        before = tidy.key_of(self.path, entry, {}, b"")
        self.assertEqual(before, tidy.key_of(self.path, entry, {}, b""))
        self.assertNotEqual(before, tidy.key_of(self.path, entry, {}, b"other checks"))
        deep.write_text("int y;\n")
        self.assertNotEqual(before, tidy.key_of(self.path, entry, {}, b""))

    def test_only_what_clang_can_read_is_checked(self):
        names = ("src/quire/a/a.cc", "src/quire/a/a_test.cc", "src/quire/a/cuda/a.cu", "tests/b.cc")
        entries = [{"file": str(self.path / name), "command": "c++"} for name in names]
        self.write("build/dev/compile_commands.json", json.dumps(entries))
        self.assertEqual(list(tidy.compile_commands(self.path)), [str(self.path / names[0])])


if __name__ == "__main__":
    unittest.main()
