"""Writes a log for each stage of tools/check.py, and counts the tests that passed and failed."""

import json
import os
import pathlib
import re
import subprocess
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "logs"
SHOWN_LINES = 60
# Strongest first: CTest's own "***Failed" stands before all that the program printed.
FAILURE_SIGNS = (
    r"WARNING: ThreadSanitizer|ERROR: (Address|Leak|Undefined)|runtime error:|: Failure$|\berror:|^(FAIL|ERROR): |^E  +",
    r"\[  FAILED  \]|FAILED|ERROR:",
    r"Failed|Timeout|Exception:",
)


@dataclass
class Count:
    """How many tests passed and failed, and what the failed ones are called."""

    passed: int = 0
    failed: int = 0
    names: list[str] = field(default_factory=list, compare=False)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.names += other.names


class Failure(Exception):
    """A command of a stage failed; the log has its output."""


class Log:
    """The output of one stage, and how its commands are run."""

    def __init__(self, stage):
        LOGS.mkdir(parents=True, exist_ok=True)
        self.path = LOGS / f"{stage}.log"
        self.path.write_text("")

    def run(self, *command, env=None, check=True):
        """Runs `command` in the tree; returns its exit code, or raises Failure where `check` is asked for."""
        with self.path.open("a") as out:
            print("$", *command[:12], f"... {len(command)} words" if len(command) > 12 else "", file=out, flush=True)
            code = subprocess.run([str(c) for c in command], cwd=ROOT, stdout=out, stderr=out,
                                  stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}).returncode
        if check and code != 0:
            raise Failure(f"{command[0]} exited with {code}")
        return code

    def write(self, text):
        with self.path.open("a") as out:
            out.write(text + "\n")

    def tail(self):
        """Returns the lines about the first failure: those beside its strongest sign, or else the end."""
        lines = self.path.read_text(errors="replace").splitlines()
        for sign in FAILURE_SIGNS:
            first = next((i for i, line in enumerate(lines) if re.search(sign, line)), None)
            if first is not None:
                start = max(0, min(first - 5, len(lines) - SHOWN_LINES))
                return "\n".join(lines[start:start + SHOWN_LINES])
        return "\n".join(lines[-SHOWN_LINES:])


def count_cases(cases):
    """Counts GoogleTest's reports in the folder `cases`: one test a case, skipped ones left out."""
    count = Count()
    for file in cases.glob("*.json"):
        for suite in json.loads(file.read_text())["testsuites"]:
            ran = [case for case in suite["testsuite"] if case["result"] == "COMPLETED"]
            failed = [f"{suite['name']}.{case['name']}" for case in ran if "failures" in case]
            count.add(Count(len(ran) - len(failed), len(failed), failed))
    return count


def count_programs(report):
    """Counts what CTest's report adds: unittest's tests, other programs as one, GoogleTest programs only when they crashed
    or were not built."""
    count = Count()
    for test in xml.parse(report).getroot().iter("testcase"):
        output, failed = test.findtext("system-out") or "", test.get("status") == "fail"
        ran = re.search(r"^Ran (\d+) tests?", output, re.M)
        passed, bad = int(not failed), int(failed)
        if "[==========] " in output:
            passed, bad = 0, int(failed and "[  FAILED  ]" not in output)
        elif ran:
            bad = sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", output)) or bad
            skipped = sum(int(n) for n in re.findall(r"skipped=(\d+)", output))
            passed = int(ran[1]) - skipped - bad
        elif test.get("status") == "notrun":
            passed, bad = 0, int("Unable to find executable" in output)
        count.add(Count(passed, bad, [test.get("name")] if bad else []))
    return count


def count_pytest(report):
    """Counts pytest's report."""
    suite = xml.parse(report).getroot().find("testsuite")
    bad = int(suite.get("failures")) + int(suite.get("errors"))
    names = [f"{case.get('classname')}.{case.get('name')}" for case in suite.iter("testcase")
             if case.find("failure") is not None or case.find("error") is not None]
    return Count(int(suite.get("tests")) - int(suite.get("skipped")) - bad, bad, names)
