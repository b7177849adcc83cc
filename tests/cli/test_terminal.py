"""quire on terminals of many kinds: narrow ones, one without escape sequences, one of whose output goes into a pipe.

Oracle: the screen that the bytes make on a terminal of that width, and what is said where nothing is a terminal.
Run by CTest as `test_terminal.py PROGRAM MODEL`; standard library only.
"""
import contextlib
import fcntl
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

PROGRAM, MODEL = "", ""
SECONDS = 60  # a limit for a hanging program
LONG = "Card 7. Ada trades in apples and pears, and lives in the house by the old bridge in Foxley."
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program on a terminal of its own, or on one but for stdout."""

    def __init__(self, test, *arguments, columns=80, piped=False, cwd=None, **env):
        state = tempfile.TemporaryDirectory()
        test.addCleanup(state.cleanup)
        self.test, self.seen, self.screen = test, "", ""
        self.side, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        self.child = subprocess.Popen([PROGRAM, *map(str, arguments)], stdin=theirs, stdout=subprocess.PIPE if piped else theirs,
                                      stderr=theirs, cwd=cwd, start_new_session=True,
                                      preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C is a signal there
                                      env={**environment, "TERM": "xterm", "XDG_STATE_HOME": state.name, **env})
        os.close(theirs)
        test.addCleanup(os.close, self.side)
        test.addCleanup(self.end)

    def end(self):
        self.child.kill()
        self.child.wait()
        if self.child.stdout:
            self.child.stdout.close()

    def read(self, seconds):
        if not select.select([self.side], [], [], seconds)[0]:
            return False
        try:
            more = os.read(self.side, 65536).decode(errors="replace")
        except OSError:  # the other end is closed
            return False
        self.seen += more
        self.screen += more
        return True

    def wait_for(self, text):
        """Reads until `text` comes, and forgets what came up to it."""
        deadline = time.monotonic() + SECONDS
        while text not in self.seen:
            if not self.read(max(0, deadline - time.monotonic())):
                self.test.fail(f"waited for {text!r}, saw {self.seen!r}")
        self.seen = self.seen[self.seen.index(text) + len(text):]

    def type(self, text):
        os.write(self.side, text.encode())

    def say(self, line):
        """Enters a line and waits for the next prompt."""
        self.type(line + "\r")
        self.wait_for("> ")

    def code(self):
        """Returns the exit code, once all was read."""
        deadline = time.monotonic() + SECONDS
        while self.child.poll() is None and time.monotonic() < deadline:
            self.read(0.05)
        while self.read(0.1):
            pass
        return self.child.poll()

    def lines(self):
        """Returns the lines of the screen, without escape sequences."""
        return ESCAPES.sub("", self.screen).split("\r\n")


class ChatTest(unittest.TestCase):
    def chat(self, *options, **how):
        chat = Terminal(self, "chat", MODEL, "--max-tokens", "8", *options, **how)
        if not how.get("piped"):
            chat.wait_for("> ")
        return chat

    def leave(self, chat, word="/bye"):
        chat.type(word + "\r")
        self.assertEqual(chat.code(), 0)

    def test_rows_of_items_fit_the_terminal(self):
        whole = subprocess.run([PROGRAM, "chat", MODEL], input=f"/add name=ada {LONG}\n/list\n", capture_output=True, text=True,
                               timeout=SECONDS).stdout.splitlines()
        self.assertGreater(max(map(len, whole)), 110)  # elsewhere than on a terminal they have their full length
        for columns in (80, 100):
            chat = self.chat(columns=columns)
            chat.say(f"/add name=ada {LONG}")
            chat.say("/list")
            self.leave(chat)
            rows = [line for line in chat.lines() if re.match(r"[0-9a-f]{12}  ", line)]
            self.assertEqual(len(rows), 2, chat.lines())
            self.assertLessEqual(max(map(len, rows)), columns)
            self.assertRegex(rows[1], r"context .*Card 7\. Ada.*\.\.\.$")
        for line in (row.removesuffix("...") for row in rows):
            self.assertTrue(any(full.startswith(line) for full in whole), (line, whole))

    def test_a_very_narrow_terminal_still_sees_how_a_text_begins(self):
        chat = self.chat(columns=40)
        chat.say("/list")
        self.leave(chat)
        self.assertRegex("\n".join(chat.lines()), r"system .* You are the ")

    def test_a_terminal_without_escape_sequences_gets_none(self):
        chat = self.chat(TERM="dumb")
        chat.say(f"/add name=ada {LONG}")
        chat.say("Where does Ada live?")
        chat.say("/?")
        self.leave(chat)
        self.assertNotIn("\x1b", re.sub(r"\x1b\[2m|\x1b\[0m", "", chat.screen))

    def test_the_answers_of_a_terminal_may_go_into_a_pipe(self):
        chat = self.chat("--temperature", "0", piped=True)
        chat.type("Where does Ada live?\r/bye\r")
        out = chat.child.stdout.read().decode()
        self.assertEqual(chat.code(), 0)
        plain = subprocess.run([PROGRAM, "chat", MODEL, "--max-tokens", "8", "--temperature", "0"], input="Where does Ada live?\n",
                               capture_output=True, text=True, timeout=SECONDS)
        self.assertEqual(out, plain.stdout)

    def test_the_model_is_called_by_its_folder_however_it_is_written(self):
        folder = pathlib.Path(MODEL)
        for model, cwd in ((f"{folder}/", None), (".", folder), (f"{folder}/../{folder.name}", None), ("./", folder)):
            chat = Terminal(self, "chat", model, cwd=cwd)
            chat.wait_for(f"{folder.name}, context of 2048 tokens, mode exact")
            chat.wait_for("> ")
            self.leave(chat)

    def test_words_without_a_slash_count_in_capital_letters_too(self):
        for word in ("Bye", "QUIT", "Exit", "q", "/bye"):
            self.leave(self.chat(), word)
        chat = self.chat()
        for word in ("help", "Help", "?"):
            chat.say(word)
            chat.type("")
        chat.say("Clear")
        chat.say("/BYE")
        self.leave(chat)
        screen = "\n".join(chat.lines())
        self.assertEqual(screen.count("A line without a slash is a question."), 3)
        self.assertIn('error: "clear" is /clear, which forgets items, or /new; /query clear asks the model', screen)
        self.assertIn('unknown command "/BYE"; did you mean /bye?', screen)

    def test_ctrl_c_in_a_text_of_several_lines_forgets_it_and_stays(self):
        chat = self.chat()
        chat.type('"""\r')
        chat.wait_for("... ")
        chat.type("some words\r")
        chat.wait_for("... ")
        chat.type("\x03")
        chat.wait_for("again")
        chat.wait_for("> ")
        chat.say("/conversation")
        self.leave(chat)
        self.assertNotIn("user: ", "\n".join(chat.lines()))

    def test_pasted_lines_within_quotes_belong_to_the_text(self):
        chat = self.chat()
        chat.type('"""\r')
        chat.wait_for("... ")
        chat.type("\x1b[200~one\rtwo\x1b[201~\r")
        chat.wait_for("... ")
        chat.type('"""\r')
        chat.wait_for("> ")
        chat.say("/conversation")
        self.leave(chat)
        self.assertIn("user: one\ntwo", "\n".join(chat.lines()))

    def test_ctrl_d_leaves_and_keeps_what_was_pasted_before(self):
        chat = self.chat()
        chat.type("\x1b[200~one\rtwo\x1b[201~")
        chat.wait_for("two")
        chat.type("\r")
        chat.wait_for("> ")
        deadline = time.monotonic() + SECONDS
        while chat.child.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # ended in this moment
                chat.type("\x04")
            chat.read(0.1)
        self.assertEqual(chat.code(), 0)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
