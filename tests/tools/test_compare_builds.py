"""bench/compare_builds.py against commands that say what a build would."""

import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import compare_builds  # noqa: E402


class CompareBuilds(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def build(self, name, seconds):
        """Returns a command that logs that it ran, and answers as `quire bench --format json` does."""
        command, answer = self.path / name, self.path / f"{name}.json"
        answer.write_text(json.dumps([{"metric": "decode", "batch": batch, "seconds": seconds * batch} for batch in (1, 8)]))
        command.write_text(f'#!/bin/sh\necho "{name} $*" >> {self.path}/ran\ncat {answer}\n')
        command.chmod(0o755)
        return str(command)

    def test_rounds_alternate_which_build_goes_first(self):
        before, after = self.build("before", 2.0), self.build("after", 1.0)
        found = compare_builds.compare(before, after, 3, ["preset:x", "--batch", "1,8"])
        ran = (self.path / "ran").read_text().splitlines()
        self.assertEqual([line.split()[0] for line in ran], ["before", "after", "after", "before", "before", "after"])
        self.assertEqual(set(line.split(" ", 1)[1] for line in ran), {"bench preset:x --batch 1,8 --format json"})
        self.assertEqual([(old, new) for _, old, new in found], [([2.0] * 3, [1.0] * 3), ([16.0] * 3, [8.0] * 3)])

    def test_a_build_that_fails_is_named_with_its_error(self):
        command = self.path / "broken"
        command.write_text("#!/bin/sh\necho 'error: no such model' >&2\nexit 1\n")
        command.chmod(0o755)
        with self.assertRaisesRegex(SystemExit, "broken bench: error: no such model"):
            compare_builds.records(str(command), ["preset:x"])

    def test_no_round_begins_after_the_time(self):
        before, after = self.build("before", 2.0), self.build("after", 1.0)
        self.assertEqual(compare_builds.compare(before, after, 3, ["preset:x"], limit=-1), [])

    def test_records_are_told_apart_by_what_they_measured(self):
        found = compare_builds.records(self.build("before", 2.0), ["preset:x"])
        self.assertEqual({identity[3]: seconds for identity, seconds in found.items()}, {1: 2.0, 8: 16.0})


if __name__ == "__main__":
    unittest.main()
