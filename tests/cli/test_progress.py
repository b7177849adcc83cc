"""How far a wait is: a line on a terminal from the second second on, and nothing on a pipe.

The program is made slow: it runs for a moment and stands still for a longer one, again and again. So it loads and computes
for seconds on every machine. Run by CTest as `test_progress.py PROGRAM MODEL`; standard library only.
"""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

PROGRAM, MODEL = "", ""
SECONDS = 120  # a limit for a hanging program
STEPS = 40  # moments in which the program gets to its end
STILL = 0.1  # seconds between two of them
CLEAR = "\r\x1b[K"
TOKENS = 1800
COMPUTING = r"computing (\d+) of (\d+) tokens, (\d+) s"


def command(*arguments):
    return [PROGRAM, *map(str, arguments)]


def seconds_of(arguments):
    start = time.monotonic()
    subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=True)
    return time.monotonic() - start


def run_slowly(arguments, on_terminal, like=None, steps=STEPS, still=STILL, columns=80, term="xterm"):
    """Returns (stdout, stderr) of a program that stands still most of the time. stderr is a terminal, or a pipe.

    like: a command that takes as long, where this one may not be done twice
    """
    moment = seconds_of(like or arguments) / steps
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    if on_terminal:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
                             env={**os.environ, "TERM": term})
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + SECONDS
    try:
        while child.poll() is None:
            time.sleep(moment)
            child.send_signal(signal.SIGSTOP)
            time.sleep(still)
            child.send_signal(signal.SIGCONT)
            if select.select([ours], [], [], 0)[0]:
                with contextlib.suppress(OSError):  # nobody has the other end of the terminal
                    seen += os.read(ours, 65536)
            assert time.monotonic() < deadline, seen
        with contextlib.suppress(OSError):
            while select.select([ours], [], [], 0)[0] and (more := os.read(ours, 65536)):
                seen += more
        return child.stdout.read().decode(), seen.decode()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        os.close(ours)


def still_of(attempt):
    """Returns the seconds between two moments of a try: twice those of the try before, up to the fifth."""
    return STILL * (1 << min(attempt, 4))


def lines_of(screen):
    """Returns the texts of the terminal's line, one after the other; the last one is left there."""
    return screen.split(CLEAR)[1:]


class ProgressTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.ids = ",".join(str(10 + 7 * i % 1500) for i in range(TOKENS))
        self.slow = ["--threads", "1", "--max-batch-tokens", "32"]  # of which the counts are told in between

    def ask(self, ids):
        greedy = ["--temperature", "0", "--max-tokens", "2", "--ignore-eos"]
        return command("run", MODEL, "--prompt-ids", ids, "--format", "json", *greedy, *self.slow)

    def add(self, store):
        return command("chunk", "add", MODEL, "--token-ids", self.ids, "--type", "context", "--no-anchor", "--store",
                       self.folder / store, *self.slow)

    def assert_counts_up(self, lines, pattern):
        """Asserts that each number of the pattern is at least what it was before. The line is gone at the end, and was never
        another."""
        self.assertEqual(lines[-1], "", "the line stays behind")
        found = [tuple(map(int, match.groups())) for match in map(re.compile(pattern).fullmatch, lines) if match]
        self.assertTrue(found, lines)
        for before, after in zip(found, found[1:]):
            self.assertTrue(all(a <= b for a, b in zip(before, after)), found)
        self.assertEqual([line for line in lines if line and not re.match(r"loading \d+ %$|computing \d", line)], [])
        return found

    def shown(self, command_of, pattern, wanted=2, steps=STEPS, like=None):
        """Returns (stdout, the numbers of a line that counts up) of a slow program. `command_of` gives the command of a try,
        and `like` one that takes as long.

        On a busy machine a moment may be as long as the whole wait: then the next try has shorter ones. On a fast one the
        program may need few moments, however short they are: then the next try stands still for longer.
        """
        for attempt in range(8):
            out, screen = run_slowly(command_of(attempt), on_terminal=True, like=like and like(attempt), steps=steps << attempt,
                                     still=still_of(attempt))
            if len(set(filter(re.compile(pattern).fullmatch, lines_of(screen)))) >= wanted:
                break
        self.assertNotEqual(screen, "", "nothing was said")
        return out, self.assert_counts_up(lines_of(screen), pattern)

    def test_on_a_terminal_a_line_says_how_far_loading_is_and_goes(self):
        out, loading = self.shown(lambda _: self.ask("5,6"), r"loading (\d+) %", steps=4 * STEPS)
        self.assertGreater(len(set(loading)), 1)
        self.assertLessEqual(loading[-1][0], 100)
        self.assertEqual(len(json.loads(out)["token_ids"]), 2)
        self.assertNotIn("\x1b", out)

    def test_on_a_terminal_a_line_says_how_many_tokens_of_the_prompt_are_computed_and_goes(self):
        out, computing = self.shown(lambda _: self.ask(self.ids), COMPUTING)
        self.assertEqual({of for _, of, _ in computing}, {TOKENS})
        self.assertLess(computing[0][0], TOKENS)
        self.assertGreaterEqual(computing[0][2], 1, "within the first second there is no line")
        self.assertGreater(len({done for done, _, _ in computing}), 1)
        plain = subprocess.run(self.ask(self.ids), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(json.loads(out)["token_ids"], json.loads(plain.stdout)["token_ids"])
        self.assertNotIn("\x1b", out)

    def slowly_on(self, wanted, **terminal):
        """Returns the screen of a prompt of many tokens; tries more than once, for a busy machine."""
        for attempt in range(8):
            _, screen = run_slowly(self.ask(self.ids), on_terminal=True, steps=STEPS << attempt, still=still_of(attempt),
                                   **terminal)
            if len(re.findall(wanted, screen)) > 1:
                return screen
        self.fail(f"no line: {screen!r}")

    def test_on_a_narrow_terminal_a_line_takes_one_row(self):
        columns = 20  # "computing 1800 of 1800 tokens, 1 s" has more
        lines = lines_of(self.slowly_on("computing", columns=columns))
        self.assertEqual(max(map(len, lines)), columns - 1, lines)
        self.assertEqual(lines[-1], "")

    def test_on_a_terminal_without_escape_sequences_blanks_take_the_line_away(self):
        screen = self.slowly_on("computing", term="dumb")
        self.assertNotIn("\x1b", screen)
        row = ""
        for drawn in screen.split("\r"):  # each is written over what stands there
            row = drawn + row[len(drawn):]
            self.assertRegex(row.rstrip(), r"\A(loading \d+ %|computing \d+ of 1800 tokens, \d+ s)?\Z")
        self.assertEqual(row.strip(), "")

    def test_the_count_grows_within_a_step_too(self):
        whole = [each for each in self.ask(self.ids) if each not in self.slow[2:]]  # one step computes the prompt
        _, computing = self.shown(lambda _: whole, COMPUTING, wanted=4, steps=2 * STEPS)
        within = {done for done, _, _ in computing if 0 < done < TOKENS}
        self.assertGreater(len(within), 1, computing)

    def test_the_tokens_of_the_chat_template_and_of_documents_count(self):
        text = "Ada keeps a goose. " * 200
        with open(self.folder / "card", "w") as file:
            file.write(text)
        asked = ["--document", self.folder / "card", "--temperature", "0", "--max-tokens", "2", "--ignore-eos", *self.slow]
        told = json.loads(subprocess.run(command("run", MODEL, "Who?", "--format", "json", *asked), stdin=subprocess.DEVNULL,
                                         capture_output=True, text=True, timeout=SECONDS).stdout)
        _, computing = self.shown(lambda _: command("run", MODEL, "Who?", *asked), COMPUTING)
        self.assertEqual({of for _, of, _ in computing}, {told["usage"]["prompt_tokens"]})

    def test_a_chat_says_how_many_tokens_of_its_documents_are_computed_before_the_first_question(self):
        with open(self.folder / "card", "w") as file:
            file.write("Ada keeps a goose. " * 300)
        _, computing = self.shown(lambda _: command("chat", MODEL, "--document", self.folder / "card", *self.slow), COMPUTING)
        self.assertGreater(computing[-1][1], 1000)
        self.assertGreater(len({done for done, _, _ in computing}), 1)

    def test_on_a_terminal_registering_says_how_many_tokens_it_has_computed(self):
        out, computing = self.shown(lambda attempt: self.add(f"slow-{attempt}"), COMPUTING,
                                    like=lambda attempt: self.add(f"quick-{attempt}"))
        self.assertEqual({of for _, of, _ in computing}, {TOKENS})
        self.assertGreater(len({done for done, _, _ in computing}), 1)
        self.assertLessEqual(computing[-1][0], TOKENS)
        self.assertRegex(out, r"\A[0-9a-f]{64}\n\Z")

    def test_on_a_pipe_nothing_is_said_however_long_it_takes(self):
        for arguments, like in ((self.ask(self.ids), None), (self.add("slow"), self.add("quick"))):
            with self.subTest(arguments[1]):
                start = time.monotonic()
                out, said = run_slowly(arguments, on_terminal=False, like=like, still=3 * STILL)
                self.assertGreater(time.monotonic() - start, 2)
                self.assertEqual(said, "")
                self.assertNotEqual(out, "")

    def test_what_takes_less_than_a_second_shows_no_line(self):
        ours, theirs = pty.openpty()
        child = subprocess.Popen(command("run", MODEL, "--prompt-ids", "5,6", "--max-tokens", "1"), stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        start = time.monotonic()
        self.assertEqual(child.wait(SECONDS), 0)
        quick = time.monotonic() - start < 1
        said = b""
        with contextlib.suppress(OSError):  # nobody has the other end, and nothing was said
            said = os.read(ours, 65536) if quick else b""
        os.close(ours)
        self.assertEqual(said, b"")


def run_at_once():
    """Runs each test in a process of its own, since they stand still most of the time. Returns the exit code."""
    names = unittest.TestLoader().getTestCaseNames(ProgressTest)
    running = [subprocess.Popen([sys.executable, __file__, PROGRAM, MODEL, f"ProgressTest.{name}"]) for name in names]
    return max(child.wait() for child in running)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    if len(sys.argv) == 1:
        sys.exit(run_at_once())
    unittest.main()
