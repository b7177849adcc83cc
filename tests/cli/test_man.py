"""The manual page quire(1): every command and option is in it, and no reader of manual pages complains. Oracle: the program's help.

Run by CTest as `test_man.py PROGRAM`; standard library only. A reader that is not installed is skipped.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import test_completion  # noqa: E402  (its list of commands and options)

PROGRAM = ""


def quire(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def shown(page):
    """Returns the page as text: macros of sections stay, all else is as a reader shows it."""
    text = re.sub(r"\\f[BIR]|\\&", "", page)
    return text.replace("\\-", "-").replace("\\(dq", '"').replace("\\(ga", "`").replace("\\e", "\\")


class ManTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.page = quire("help", "--man")
        cls.sections = dict(re.findall(r'^\.SS "([^"]*)"\n((?:(?!\.S[SH] ).*\n)*)', shown(cls.page), re.M))

    def section(self, path):
        name = " ".join(["quire", *path])
        (found,) = [text for title, text in self.sections.items() if re.fullmatch(re.escape(name) + r" \[OPTIONS\].*", title)]
        return found

    def test_every_command_and_option_is_in_it(self):
        for path in test_completion.commands():
            if path:
                section = self.section(path)
                above = [self.section(path[:i]) for i in range(1, len(path))]
                for option in test_completion.options(path) - {"--help"}:
                    found = [re.search(re.escape(option) + r"(?![a-z-])", text) for text in [section, *above]]
                    self.assertTrue(any(found), (path, option))
        self.assertRegex(shown(self.page), r'\.SS "Engine options"\n\.TP\n')
        self.assertEqual(len(re.findall(r"^--block-tokens .*$", shown(self.page), re.M)), 1, "what commands share is explained once")

    def test_every_command_of_a_chat_is_in_it(self):
        chat = shown(self.page).partition(".SH COMMANDS OF A CHAT")[2]
        for line in ("/pin ID... [--off]", "/add [name=NAME] TEXT", "/set [SETTING] [TEXT]", "/? [COMMAND]", "/bye"):
            self.assertIn(f"\n{line}\n", chat)

    def test_no_line_is_taken_for_a_macro_that_is_none(self):
        used = {line.split()[0] for line in self.page.splitlines() if line.startswith((".", "'"))}
        self.assertEqual(used, {".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".I", ".nf", ".fi"})

    def test_readers_have_no_complaint(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "quire.1"
            file.write_text(self.page)
            for reader in (["man", "--warnings=w", "-l", str(file)], ["groff", "-man", "-ww", "-z", str(file)],
                           ["mandoc", "-T", "lint", "-W", "warning", str(file)]):
                with self.subTest(reader=reader[0]):
                    if shutil.which(reader[0]) is None:
                        self.skipTest("is not installed")
                    done = subprocess.run(reader, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                                          env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANPAGER": "cat", "MANWIDTH": "100"})
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
                    if reader[0] == "mandoc":
                        self.assertEqual(done.stdout, "")

    def test_it_is_asked_for_alone(self):
        done = subprocess.run([PROGRAM, "help", "run", "--man"], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--man", done.stderr)


if __name__ == "__main__":
    PROGRAM = test_completion.PROGRAM = sys.argv.pop(1)
    unittest.main()
