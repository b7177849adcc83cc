"""The recorded traces, and how the recorder counts what prompts share."""
import pathlib
import sys
import unittest
from types import SimpleNamespace

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import record_trace  # noqa: E402


class RecordTraceTest(unittest.TestCase):
    def test_a_line_counts_what_a_prompt_shares_with_the_one_before_it(self):
        first = SimpleNamespace(asked=[(0.5, [1, 2, 3, 9], 4), (2.0, [1, 2, 3, 9, 5, 6], 7)])
        silent = SimpleNamespace(asked=[])
        second = SimpleNamespace(asked=[(1.0, [1, 2, 8], 3), (3.0, [1, 2, 7], 2)])
        self.assertEqual(
            record_trace.lines_of([first, silent, second]),
            [(0.5, 0, 0, 2, 2, 4), (1.0, 1, 0, 2, 1, 3), (2.0, 0, 1, 4, 2, 7), (3.0, 1, 1, 2, 1, 2)],
        )

    def test_the_recorded_traces_are_small_and_their_turns_follow_each_other(self):
        traces = sorted((ROOT / "bench/traces").iterdir())
        self.assertEqual([trace.name for trace in traces], ["agents.txt", "chats.txt"])
        for trace in traces:
            self.assertLess(trace.stat().st_size, 100_000)
            lines = [line for line in trace.read_text().splitlines() if not line.startswith("#")]
            self.assertGreater(len(lines), 100)
            before, moment = {}, 0.0
            for seconds, session, turn, kept, fresh, output in (line.split() for line in lines):
                self.assertGreaterEqual(float(seconds), moment)
                moment = float(seconds)
                last_turn, length = before.get(session, (-1, int(kept)))
                self.assertEqual(int(turn), last_turn + 1)
                self.assertLessEqual(int(kept), length)
                self.assertGreater(min(int(kept), int(fresh), int(output)), 0)
                before[session] = (int(turn), int(kept) + int(fresh))


if __name__ == "__main__":
    unittest.main()
