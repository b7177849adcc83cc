"""Runs the scripts of this folder through `quire chat` and compares what it prints, line by line.

    run_scripts.py PROGRAM MODEL [--update] [SCRIPT...]

A script is a list of cases with a blank line between them: lines to type, `----`, and all that must appear, stdout and stderr
together. A case that begins with `session` starts a new `quire chat` with the options behind it, on the same folder $DIR. In
what must appear, $DIR stands for that folder, <*> for anything, and <empty> for an empty line. --update writes what came, and
keeps lines that fit. Run by CTest; standard library only.
"""
import argparse
import dataclasses
import difflib
import itertools
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
SECONDS = 120  # a limit for a hanging program
SESSION = "session"
EMPTY = "<empty>"


@dataclasses.dataclass
class Case:
    comments: list  # lines above it
    typed: list
    expected: list
    printed: list = dataclasses.field(default_factory=list)

    def starts_session(self):
        return self.typed[:1] != [] and self.typed[0].split()[:1] == [SESSION]

    def as_text(self):
        return "\n".join([*self.comments, *self.typed, "----", *self.expected]) + "\n"


def parse(path):
    cases = []
    for part in re.split(r"\n{2,}", path.read_text().strip("\n")):
        lines = part.split("\n")
        comments = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
        rule = lines.index("----")
        cases.append(Case(comments, lines[len(comments):rule], lines[rule + 1:]))
    return cases


def sessions(cases):
    """Lists of cases that run in one `quire chat`."""
    found = []
    for case in cases:
        if case.starts_session() or not found:
            found.append([])
        found[-1].append(case)
    return found


def play(program, model, cases, folder):
    """Fills in what each case prints: the program repeats every line before what it does, which shows where to cut."""
    options = cases[0].typed[0].removeprefix(SESSION) if cases[0].starts_session() else ""
    typed = [(case, line) for case in cases for line in case.typed if not (case is cases[0] and line.split()[:1] == [SESSION])]
    command = [program, "chat", model, "--echo", "--temperature", "0", "--max-tokens", "8", "--threads", "2",
               *shlex.split(options.replace("$DIR", folder))]
    done = subprocess.run(command, input="".join(line.replace("$DIR", folder) + "\n" for _, line in typed), cwd=HERE, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS)
    rest = done.stdout.replace(folder, "$DIR")
    owner = cases[0]
    for case, line in typed:
        part, _, rest = rest.partition(f"> {line}\n")
        owner.printed += part.splitlines()
        owner = case
    owner.printed += rest.splitlines()
    if done.returncode != 0:
        owner.printed.append(f"(exit code {done.returncode})")


def fits(expected, line):
    return re.fullmatch(".*".join(map(re.escape, expected.split("<*>"))), line) is not None


def settle(case):
    """Returns the printed lines, as those that were expected where they fit."""
    printed = [line or EMPTY for line in case.printed]
    if len(printed) == len(case.expected):
        return [want if fits(want, line) else line for want, line in zip(case.expected, printed)]
    return printed


def run(program, model, path, update):
    """Returns the differences, as text."""
    cases = parse(path)
    with tempfile.TemporaryDirectory() as folder:
        for session in sessions(cases):
            play(program, model, session, folder)
    before = "\n".join(case.as_text() for case in cases)
    for case in cases:
        case.expected = settle(case)
    after = "\n".join(case.as_text() for case in cases)
    if update:
        path.write_text(after)
        return ""
    return "".join(difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"{path.name}: expected", "printed", n=8))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("scripts", nargs="*", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    scripts = arguments.scripts or sorted(HERE.glob("*.kv"))
    differences = [run(arguments.program.resolve(), arguments.model.resolve(), script, arguments.update) for script in scripts]
    print("".join(differences) + f"{len(scripts)} scripts, {sum(map(bool, differences))} differ")
    return any(differences) or not scripts


if __name__ == "__main__":
    sys.exit(main())
