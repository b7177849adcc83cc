"""The table of `bench/reuse_accuracy`, which `make demo` shows: every row is there and its figures are possible ones.

Run by CTest as `test_reuse_accuracy.py PROGRAM CARDFILE`, CARDFILE the folder of the demo model; standard library only.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

TYPES = ["one_hop", "two_hop", "split_adj", "split_link", "update", "two_hop_split", "read", "who"]
USUAL = ["exact", "anchored, in place", "anchored", "independent", "parallel", "value_dev 0.15, in place", "random 0.15, in place",
         "query_attn 0.15, in place", "value_dev 0.15", "value_dev 0.30, independent", "random 0.15", "first_k 0.15",
         "query_attn 0.15", "query_attn 0.30", "query_attn 0.15, independent"]
SELECTORS = ["query_attn", "value_dev", "random", "first_k"]
CELL = r" +(?:-|(\d+\.\d) \( *(\d+)\))"
ROW = re.compile(r"(.{34})" + CELL * len(TYPES) + r"(?: +(\S+) +(\d+\.\d)%)?")


class ReuseAccuracy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.contexts = cls.folder.name + "/contexts.jsonl"
        subprocess.run([sys.executable, CARDFILE / "cardfile.py", "write", "--seed", "7", "--contexts", "2", "--chunks", "8",
                        "--out", cls.contexts], check=True, timeout=60)

    def run_program(self, *arguments, code=0):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def table(self, *arguments):
        """Returns rows by name: (percent right, asked) by question type, and the two figures of `curve`."""
        done = self.run_program(CARDFILE / "model", self.contexts, *arguments)
        self.assertEqual(done.stderr, "")
        contexts, head, *lines = done.stdout.splitlines()
        self.assertEqual(contexts, "2 contexts")
        self.assertEqual(head.split()[:2 + len(TYPES)], ["percent", "right", *TYPES])
        rows = {}
        for line in lines:
            fields = ROW.fullmatch(line)
            self.assertIsNotNone(fields, line)
            name, *figures = fields.groups()
            cells = {kind: (float(figures[2 * i]), int(figures[2 * i + 1])) for i, kind in enumerate(TYPES) if figures[2 * i]}
            rows[name.rstrip()] = cells, figures[-2:]
        self.assertEqual(len(rows), len(lines), "two rows have one name")
        return rows

    def assert_possible(self, rows, asked):
        counts = {kind: count for kind, (_, count) in next(iter(rows.values()))[0].items()}
        self.assertEqual(sum(counts.values()), asked)
        for name, (cells, _) in rows.items():
            self.assertEqual({kind: count for kind, (_, count) in cells.items()}, counts, name)
            for percent, count in cells.values():
                right = percent * count / 100  # of so many questions a whole number is right
                self.assertTrue(0 <= percent <= 100 and abs(right - round(right)) <= 0.0006 * count, (name, percent, count))

    def test_the_usual_rows_are_there_and_all_modes_are_asked_the_same_questions(self):
        rows = self.table("3")
        self.assertEqual(list(rows), USUAL)
        self.assert_possible(rows, 2 * 3)
        for name in ("exact", "anchored, in place"):  # which the demo model is trained for
            self.assertEqual({percent for percent, _ in rows[name][0].values()}, {100.0}, name)

    def test_rows_are_chosen_by_a_part_of_their_name(self):
        rows = self.table("1", "random 0.60", "parallel")
        self.assertEqual(list(rows), ["parallel", "random 0.60", "random 0.60, in place"])
        self.assert_possible(rows, 2)

    def test_bands_of_layers_are_rows_that_are_asked_for(self):
        rows = self.table("3", "layers", "exact")
        self.assertEqual(list(rows), ["exact", "layers 4-5", "layers 4-6", "layers 0-3", "layers 0-4", "layers 0-8"])
        self.assert_possible(rows, 2 * 3)
        self.assertEqual(rows["layers 0-8"], rows["exact"])  # all layers of the demo model

    def test_the_curve_has_every_selector_at_every_share_and_how_far_it_is_from_exact(self):
        rows = self.table("1", "curve")
        shares = [f"{name} {share}" for name in SELECTORS for share in ("0.05", "0.15", "0.30", "0.60", "1.00")]
        self.assertEqual(list(rows), ["exact", "anchored", "independent", *shares])
        self.assert_possible(rows, 2)
        for name, (_, (divergence, same_best)) in rows.items():
            self.assertGreaterEqual(float(divergence), -1e-9, name)
            self.assertLessEqual(float(same_best), 100, name)
        self.assertEqual(rows["exact"][1], ["0.00e+00", "100.0"])
        for name in SELECTORS:  # all computed again: the same function, rounded in another order
            self.assertLess(float(rows[f"{name} 1.00"][1][0]), 1e-6)

    def test_wrong_usage_is_named(self):
        self.assertIn("usage: reuse_accuracy MODEL CONTEXTS.jsonl", self.run_program(code=2).stderr)
        done = self.run_program(CARDFILE / "model", self.contexts, "1", "bleach", code=2)
        self.assertIn('"bleach"', done.stderr)
        done = self.run_program(CARDFILE / "model", self.folder.name + "/none", "1", code=1)
        self.assertIn("no contexts in", done.stderr)


if __name__ == "__main__":
    PROGRAM, CARDFILE = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    unittest.main()
