"""How `make check` counts tests, chooses stages and times them, and which files clang-tidy looks at. Standard library only."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check  # noqa: E402
import check_log  # noqa: E402
import check_stages  # noqa: E402
import check_times  # noqa: E402
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
        log = check_log.Log.__new__(check_log.Log)
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
        cases = [{"name": "A", "result": "COMPLETED"}, {"name": "B", "result": "COMPLETED", "failures": [{}]},
                 {"name": "C", "result": "SKIPPED"}, {"name": "D", "result": "SUPPRESSED"}]
        suites = [{"name": "Kv", "testsuite": cases}, {"name": "More", "testsuite": cases[:1]}]
        self.write("kv_test.json", json.dumps({"testsuites": suites}))
        count = check_log.count_cases(self.path)
        self.assertEqual(count, check_log.Count(passed=2, failed=1))
        self.assertEqual(count.names, ["Kv.B"])

    def test_pytest_s_failed_tests_are_named(self):
        cases = '<testcase classname="t.A" name="x"><failure/></testcase><testcase classname="t.A" name="y"/>'
        report = self.write("p.xml", f'<r><testsuite tests="2" failures="1" errors="0" skipped="0">{cases}</testsuite></r>')
        self.assertEqual(check_log.count_pytest(report).names, ["t.A.x"])

    def programs(self, *tests):
        entries = "".join(f'<testcase name="program" status="{status}"><system-out>{output}</system-out></testcase>' for status, output in tests)
        return check_log.count_programs(self.write("ctest.xml", f"<testsuite>{entries}</testsuite>"))

    def test_a_gtest_program_adds_only_its_crash(self):
        self.assertEqual(self.programs(("run", "[==========] 3 tests ran.")), check_log.Count())
        self.assertEqual(self.programs(("fail", "[==========] Running 3\n[  FAILED  ] Kv.X")), check_log.Count())
        self.assertEqual(self.programs(("fail", "[==========] Running 3\nSegmentation fault")), check_log.Count(0, 1))

    def test_a_program_that_was_not_built_is_a_failure_and_one_that_is_skipped_is_nothing(self):
        self.assertEqual(self.programs(("notrun", "Unable to find executable: /build/kv_test"), ("notrun", "skipped")), check_log.Count(0, 1))

    def test_unittest_programs_count_their_tests(self):
        self.assertEqual(self.programs(("run", "Ran 12 tests in 1 s\n\nOK (skipped=2)")), check_log.Count(10, 0))
        self.assertEqual(self.programs(("fail", "Ran 12 tests in 1 s\n\nFAILED (failures=2, errors=1)")), check_log.Count(9, 3))

    def test_other_programs_count_as_one(self):
        self.assertEqual(self.programs(("run", "layers ok"), ("fail", ""), ("notrun", "")), check_log.Count(1, 1))


class StageTest(Folder):
    def stages(self, *words):
        parsed = mock.Mock(what=words[0], only=None, every="--every" in words)
        return [stage.name for stage in check.chosen(parsed)]

    def test_check_and_the_rest_are_all_of_check_all_and_one_part_rotates(self):
        both = self.stages("check") + self.stages("rest")
        self.assertEqual(both, self.stages("all"))
        self.assertEqual(len(set(both)), len(both))
        for group in (check_stages.ALTERNATING, check_stages.ROTATING):
            self.assertEqual(len({stage.name for stage in group} & set(both)), 1)

    def test_every_stage_runs_with_all(self):
        every = self.stages("check") + self.stages("rest", "--every")
        self.assertEqual(every, [stage.name for stage in check_stages.ALL])

    def test_the_hash_of_the_commit_chooses_and_each_part_has_its_turn(self):
        groups = (check_stages.ALTERNATING, check_stages.ROTATING)
        chosen = set()
        for commit in range(len(groups[0]) * len(groups[1])):
            with mock.patch("check_stages.subprocess.run", return_value=mock.Mock(stdout=f"{commit:040x}\n")):
                chosen.add(tuple(stage.name for stage in check_stages.of_this_commit()))
        self.assertEqual(chosen, {(one.name, other.name) for one in groups[0] for other in groups[1]})

    def test_a_share_is_of_the_commit_and_all_shares_together_are_everything(self):
        paths = [f"src/quire/kv/{index}.cc" for index in range(200)]
        shares = []
        for commit in range(4):
            with mock.patch("check_stages.turn", return_value=commit * len(check_stages.ROTATING) + 1):
                shares.append(list(filter(check_stages.share_of_this_commit(4), paths)))
        self.assertEqual(sorted(sum(shares, [])), sorted(paths))
        self.assertTrue(all(30 <= len(share) <= 70 for share in shares), [len(share) for share in shares])

    def test_both_parts_of_the_sanitizers_are_all_tests_once_and_build_what_they_run(self):
        folder = self.path / "build/asan"
        commands = {name: [f"{folder}/{name.split('/')[0]}_test"] for name in ("base", "kv/1", "kv/2", "api/1", *(f"t{at}" for at in range(20)))}
        commands |= {"cli": ["python3", "tests/cli.py", f"{folder}/apps/quire"], "check_a+b": ["clang++", "-fsyntax-only"]}
        lines = ["add_test([=[{}]=] {})".format(name, " ".join(f'"{word}"' for word in command)) for name, command in commands.items()]
        self.write("build/asan/CTestTestfile.cmake", "\n".join(lines[:5]) + "\nsubdirs(\"tests\")\n")
        self.write("build/asan/tests/CTestTestfile.cmake", "\n".join(lines[5:]) + "\n")
        listing = "Test project x\n" + "".join(f"  Test {'#' + str(at):>4}: {name}\n" for at, name in enumerate(commands, 1))
        ran, built = [], []
        for mine in (True, False):
            build_part, test_part = check_stages.asan_part(mine)
            with mock.patch("check_stages.subprocess.run", return_value=mock.Mock(stdout=listing)), \
                    mock.patch("check_stages.turn", return_value=5), mock.patch("check_stages.ctest") as ctest, \
                    mock.patch("check_stages.BUILD", self.path / "build"), \
                    mock.patch("check_stages.configure"), mock.patch("check_stages.build") as build:
                build_part(None)
                test_part(None)
            self.assertEqual(ctest.call_args.args[1:3], ("asan", "-R"))
            ran.append([name for name in commands if re.search(ctest.call_args.args[3], name)])
            needed = {word.removeprefix(f"{folder}/") for name in ran[-1] for word in commands[name] if word.startswith(str(folder))}
            self.assertEqual(set(build.call_args.args[2:]), needed | {"fuzz"})
            built.append(needed)
        self.assertEqual(sorted(sum(ran, [])), sorted(commands))
        self.assertTrue(all(built))
        self.assertGreater(len(built[1]), len(built[0]))
        self.assertFalse(built[0] & built[1])

    def test_objects_are_one_for_each_source_of_the_tree(self):
        sources = {"b.o": "src/quire/a/cuda/b.cu", "again.o": "src/quire/a/cuda/b.cu", "c.o": "src/quire/a/c.cc", "u.o": "build/cuda/Unity/unity_0.cxx"}
        commands = [{"file": str(self.path / source), "command": f"c++ -O2 -o {output} -c {source}"} for output, source in sources.items()]
        self.write("build/cuda/compile_commands.json", json.dumps(commands))
        with mock.patch("check_stages.ROOT", self.path), mock.patch("check_stages.BUILD", self.path / "build"):
            self.assertEqual(check_stages.objects("cuda", lambda path: "/cuda/" in path), ["b.o"])

    def progress(self, *stages):
        with mock.patch("check_log.LOGS", self.path), mock.patch("check_log.ROOT", self.path), mock.patch("check.ROOT", self.path):
            progress = check.Progress(check_times.Times(self.path))
            with mock.patch("builtins.print"):
                check.run(list(stages), progress)
        return progress

    def test_a_stage_is_tested_while_the_next_is_built(self):
        events, next_began = [], []

        def test_first(log):
            for _ in range(500):
                if "build b" in events:
                    next_began.append(True)
                    break
                time.sleep(0.01)
            return check_log.Count(1, 0)

        first = check_stages.Stage("a", "", lambda log: events.append("build a"), test_first)
        second = check_stages.Stage("b", "", lambda log: events.append("build b"), lambda log: check_log.Count(2, 0))
        self.assertEqual(self.progress(first, second).total, check_log.Count(3, 0))
        self.assertEqual(next_began, [True])

    def test_a_stage_that_cannot_be_built_is_not_tested_and_the_others_are(self):
        def broken(log):
            raise check_log.Failure("no compiler")

        def never(log):
            raise AssertionError("tested what was not built")

        stages = (check_stages.Stage("a", "", broken, never), check_stages.Stage("b", "", None, lambda log: check_log.Count(2, 0)))
        progress = self.progress(*stages)
        self.assertEqual(progress.total, check_log.Count(2, 1))
        self.assertEqual(progress.failed, ["a: build: no compiler"])

    def test_an_error_of_the_check_itself_is_a_failure_of_its_stage_and_the_others_go_on(self):
        def wrong(log):
            return {}["output"]

        second = check_stages.Stage("b", "", lambda log: None, lambda log: check_log.Count(2, 0))
        progress = self.progress(check_stages.Stage("a", "", wrong), second)
        self.assertEqual(progress.total, check_log.Count(2, 1))
        self.assertEqual(progress.failed, ["a: build: KeyError: 'output'"])


class TimesTest(Folder):
    def test_compilations_and_tests_of_this_check_are_listed_slowest_first_and_older_ones_are_not(self):
        times = check_times.Times(self.path)
        times.start -= 10
        for name in ("a.cc.o", "b.cc.o", "old.cc.o"):
            self.write(f"build/release/CMakeFiles/x.dir/{name}", "")
        os.utime(self.path / "build/release/CMakeFiles/x.dir/old.cc.o", (1, 1))
        rows = [(0, 1500, "a.cc.o"), (0, 9000, "b.cc.o"), (0, 90000, "old.cc.o")]
        log = "".join(f"{start}\t{end}\t0\tCMakeFiles/x.dir/{name}\tffff\n" for start, end, name in rows)
        self.write("build/release/.ninja_log", "# ninja log v5\n" + log)
        self.write("build/release/ctest-release.xml", '<t><testcase name="kv" time="3.5"/><testcase name="api" time="70"/></t>')
        times.add("release", "build", 10.5)
        report = json.loads((self.path / "build/logs/times.json").read_text())
        self.assertEqual([each["name"] for each in report["compilations"]["slowest"]], ["release: x b.cc", "release: x a.cc"])
        self.assertEqual([each["name"] for each in report["tests"]["slowest"]], ["release: api", "release: kv"])
        self.assertEqual(report["stages"], [{"stage": "release", "phase": "build", "seconds": 10.5}])
        self.assertIn("10.5", times.table())


class TidyTest(Folder):
    def entry(self, name):
        return {"command": f"c++ -c {name}", "file": str(self.path / name)}

    def test_a_key_follows_headers_of_the_tree_through_headers(self):
        self.write("src/quire/a/a.cc", '#include "quire/a/a.h"\n#include <vector>\n')
        self.write("src/quire/a/a.h", '#include "quire/b.h"\n')
        deep = self.write("include/quire/b.h", "int x;\n")

        def key(configuration=b""):
            return tidy.Tree(self.path).key(self.entry("src/quire/a/a.cc"), configuration)

        before = key()
        self.assertEqual(before, key())
        self.assertNotEqual(before, key(b"other checks"))
        deep.write_text("int y;\n")
        self.assertNotEqual(before, key())

    def test_only_what_clang_can_read_is_checked(self):
        names = ("src/quire/a/a.cc", "src/quire/a/a_test.cc", "src/quire/a/cuda/a.cu", "tests/b.cc")
        self.write("build/dev/compile_commands.json", json.dumps([self.entry(name) for name in names]))
        self.assertEqual(list(tidy.compile_commands(self.path)), [str(self.path / names[0])])

    def test_a_changed_source_is_looked_at_itself_and_a_header_through_one_source(self):
        self.write("src/quire/a/a.h", "")
        self.write("src/quire/a/b.h", "")
        sources = [str(self.write(f"src/quire/a/{name}.cc", text)) for name, text in
                   {"a": '#include "quire/a/a.h"\n', "b": '#include "quire/a/a.h"\n#include "quire/a/b.h"\n', "c": ""}.items()]
        tree = tidy.Tree(self.path)

        def chosen(*names):
            changed = {(self.path / "src/quire/a" / name).resolve() for name in names}
            return sorted(pathlib.Path(s).name for s in tidy.of_changes(tree, sources, changed))

        self.assertEqual(chosen("c.cc"), ["c.cc"])
        self.assertEqual(chosen("a.h"), ["a.cc"])
        self.assertEqual(chosen("a.h", "b.cc"), ["b.cc"])
        self.assertEqual(chosen("b.h"), ["b.cc"])

    def test_the_base_is_where_main_was_left_or_some_hours_before_its_head(self):
        def git(*arguments, date="2026-01-03T12:00:00Z"):
            environment = {**os.environ, "GIT_COMMITTER_DATE": date, "GIT_AUTHOR_DATE": date}
            identity = ("-c", "user.name=a", "-c", "user.email=a@b")
            return subprocess.run(["git", *identity, *arguments], cwd=self.path, env=environment, check=True, capture_output=True,
                                  text=True).stdout.strip()

        git("init", "-q", "-b", "main")
        commits = []
        for day in ("01", "02", "03"):
            git("commit", "-q", "--allow-empty", "-m", day, date=f"2026-01-{day}T12:00:00Z")
            commits.append(git("rev-parse", "HEAD"))
        with mock.patch.dict(os.environ):
            os.environ.pop("BASE", None)
            self.assertEqual(tidy.merge_base(self.path), commits[1])
            git("update-ref", "refs/remotes/origin/main", commits[0])
            self.assertEqual(tidy.merge_base(self.path), commits[0])
            os.environ["BASE"] = commits[2]
            self.assertEqual(tidy.merge_base(self.path), commits[2])


if __name__ == "__main__":
    unittest.main()
