"""`quire completion`: what shells offer for a line. Oracle: the program's own help, and each shell itself.

Run by CTest as `test_completion.py PROGRAM`; standard library only. A shell that is not installed is skipped.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
SECONDS = 60  # a limit for a hanging shell, not a bar for speed

# Line, and what may stand in place of its last word: all of that, or some of it.
EXACTLY = (("quire ru", {"run"}), ("quire chunk a", {"add"}), ("quire chunk add --ty", {"--type"}),
           ("quire chunk add m --type ", {"system_prompt", "context", "query"}), ("quire chunk add m --sto", {"--store"}),
           ("quire run m --format j", {"json"}), ("quire run m --temp", {"--temperature"}), ("quire completion z", set()))


def quire(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=SECONDS)


def shell(name, script, *arguments):
    """Returns stdout of a shell that runs `script` without the user's settings."""
    plain = {"bash": ["--norc", "-c", script, "bash"], "zsh": ["-f", "-c", script, "zsh"], "fish": ["--no-config", "-c", script]}
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run([name, *plain[name], *arguments], capture_output=True, text=True, timeout=SECONDS, cwd=home,
                              env={"HOME": home, "PATH": os.environ["PATH"], "LANG": "C.UTF-8"})
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def commands():
    """Lists every command and command of a command, from the help."""
    found = []
    pending = [[]]
    while pending:
        path = pending.pop()
        found.append(path)
        below = quire(*path, "--help").stdout.partition("Subcommands:\n")[2]
        names = re.findall(r"^([a-z]+)$|^  ([a-z]+) {2,}", below, re.M)  # as far as they stand alone, or with a text
        pending += [[*path, alone or told] for alone, told in names]
    return found


def options(path):
    """Returns the long options that the help of a command lists, and those of the commands that it is one of."""
    found = set()
    for length in range(min(len(path), 1), len(path) + 1):  # those of the program stand before its commands
        lines = quire(*path[:length], "--help").stdout.partition("Subcommands:\n")[0]
        found |= set(re.findall(r"^ +(?:-\w,)?(--[a-z][a-z-]*)", lines, re.M))
    return found


class CompletionTest(unittest.TestCase):
    """bash; the other shells differ in what they run."""
    name = "bash"

    @classmethod
    def setUpClass(cls):
        if shutil.which(cls.name) is None:
            raise unittest.SkipTest(f"{cls.name} is not installed")
        done = quire("completion", cls.name)
        assert (done.returncode, done.stderr) == (0, "")
        cls.script = done.stdout

    def offered(self, line):
        """Returns the words that may stand in place of the last one of the line."""
        words = line.split(" ")
        run = (f"{self.script}\nCOMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _quire; "
               "[ ${#COMPREPLY[@]} = 0 ] || printf '%s\\n' \"${COMPREPLY[@]}\"")
        return set(shell("bash", run, *words).splitlines())

    def test_words_that_begin_as_the_last_one_are_offered(self):
        for line, words in EXACTLY:
            with self.subTest(line):
                self.assertEqual(self.offered(line), words)

    def test_every_command_and_option_of_the_help_is_offered(self):
        for path in commands():
            with self.subTest(path):
                line = " ".join(["quire", *path])
                self.assertEqual({word for word in self.offered(f"{line} --") if word.startswith("--")}, options(path))
                below = {each[-1] for each in commands_below(path)}
                self.assertLessEqual(below, self.offered(f"{line} "))

    def test_files_are_offered_where_no_word_fits(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "notes.txt").touch()
            self.assertEqual(self.offered_path(f"{folder}/not"), f"{folder}/notes.txt")

    def offered_path(self, path):
        """Returns the completion of the word when the script's own completion finds nothing."""
        self.assertEqual(self.offered(f"quire run m {path}"), set())
        self.assertRegex(self.script, r"complete -o default -F _quire quire\n")
        return shell("bash", 'compgen -o default -- "$1"', path).strip()


class ZshCompletionTest(CompletionTest):
    name = "zsh"

    def offered(self, line):
        # compadd offers those of its words that begin as the last one of the line; files come from _files.
        stubs = ('compdef() { : }; _files() { : }\n'
                 'compadd() { shift; for word; do [[ "$word" == "${words[CURRENT]}"* ]] && print -r -- "$word"; done; : }\n')
        return set(shell("zsh", f'{stubs}{self.script}\nwords=("$@"); CURRENT=$#; _quire', *line.split(" ")).splitlines())

    def offered_path(self, path):
        self.assertEqual(self.offered(f"quire run m {path}"), set())
        self.assertRegex(self.script, r"\n  _files\n")
        return f"{path}es.txt"  # by zsh's own


class FishCompletionTest(CompletionTest):
    name = "fish"

    def offered(self, line):
        listed = shell("fish", f"{self.script}\ncomplete -C $argv[1]", line)
        return {offer.split("\t")[0] for offer in listed.splitlines()}

    def test_words_that_begin_as_the_last_one_are_offered(self):
        for line, words in EXACTLY:
            if words:  # fish offers files beside
                with self.subTest(line):
                    self.assertEqual(self.offered(line), words)

    def offered_path(self, path):
        (offer,) = self.offered(f"quire run m {path}")
        return offer


class UsageTest(unittest.TestCase):
    def test_a_shell_without_a_script_is_refused_by_name(self):
        done = quire("completion", "cmd")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("bash|zsh|fish", done.stderr)

    def test_scripts_of_all_three_shells_say_where_they_go(self):
        for name, first in (("bash", "source <(quire completion bash)"), ("zsh", "#compdef quire"),
                            ("fish", "quire completion fish | source")):
            self.assertIn(first, quire("completion", name).stdout)


def commands_below(path):
    return [each for each in commands() if len(each) == len(path) + 1 and each[:-1] == path]


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
