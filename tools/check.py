"""`make check`: builds and runs every test and check, stage by stage.

Each stage writes build/logs/<stage>.log. The first failing output is shown, later stages still run
where they can, and the last line is `N passed, M failed`: test cases, plus one failure for each
stage that failed otherwise.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from dataclasses import dataclass

import tidy

ROOT = pathlib.Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "logs"
JOBS = os.cpu_count() or 2
FUZZ_SECONDS = 15
SHOWN_LINES = 60
# Strongest first: CTest's own "***Failed" stands before all that the program printed.
FAILURE_SIGNS = (r"WARNING: ThreadSanitizer|ERROR: (Address|Leak|Undefined)|runtime error:|: Failure$|\berror:|^(FAIL|ERROR): |^E  +",
                 r"\[  FAILED  \]|FAILED|ERROR:", r"Failed|Timeout|Exception:")
THREADED_MODULES = ("kv", "sched", "engine", "api")


@dataclass
class Count:
    passed: int = 0
    failed: int = 0

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed


class Failure(Exception):
    """A command of a stage failed; the log has its output."""


class Log:
    """The output of one stage, and how its commands are run."""

    def __init__(self, stage):
        LOGS.mkdir(parents=True, exist_ok=True)
        self.path = LOGS / f"{stage}.log"
        self.path.write_text("")

    def run(self, *command, env=None, check=True):
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
        """The lines about the first failure: what the strongest sign of one stands beside, or else the end."""
        lines = self.path.read_text(errors="replace").splitlines()
        for sign in FAILURE_SIGNS:
            first = next((i for i, line in enumerate(lines) if re.search(sign, line)), None)
            if first is not None:
                start = max(0, min(first - 5, len(lines) - SHOWN_LINES))
                return "\n".join(lines[start:start + SHOWN_LINES])
        return "\n".join(lines[-SHOWN_LINES:])


def build(log, preset, *targets):
    log.run("cmake", "--preset", preset)
    log.run("cmake", "--build", "--preset", preset, "-j", JOBS, *(["--target", *targets] if targets else []))


def count_cases(cases):
    """GoogleTest's reports in the folder `cases`: one test a case, skipped ones left out."""
    count = Count()
    for file in cases.glob("*.json"):
        for suite in json.loads(file.read_text())["testsuites"]:
            ran = [case for case in suite["testsuite"] if case["result"] == "COMPLETED"]
            failed = sum("failures" in case for case in ran)
            count.add(Count(len(ran) - failed, failed))
    return count


def count_programs(report):
    """What CTest's report adds to that: unittest's tests, other programs as one, GoogleTest programs only when they crashed."""
    count = Count()
    for test in xml.parse(report).getroot().iter("testcase"):
        output, failed = test.findtext("system-out") or "", test.get("status") == "fail"
        ran = re.search(r"^Ran (\d+) tests?", output, re.M)
        if "[==========] " in output:
            count.failed += failed and "[  FAILED  ]" not in output
        elif ran:
            bad = sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", output)) or int(failed)
            skipped = sum(int(n) for n in re.findall(r"skipped=(\d+)", output))
            count.add(Count(int(ran[1]) - skipped - bad, bad))
        elif test.get("status") != "notrun":
            count.add(Count(int(not failed), int(failed)))
    return count


def ctest(log, preset, *arguments):
    cases = ROOT / "build" / preset / "cases"
    shutil.rmtree(cases, ignore_errors=True)
    report = ROOT / "build" / preset / "ctest.xml"
    log.run("ctest", "--preset", preset, "-j", JOBS, "--output-junit", report, *arguments,
            env={"GTEST_OUTPUT": f"json:{cases}/"}, check=False)
    count = count_cases(cases)
    count.add(count_programs(report))
    return count


def fetch(log):
    """What tests labelled `fetched` read. Without a network they are skipped, and the log says so."""
    for tool in ("fetch_smollm.py", "fetch_vocabs.py"):
        if log.run(sys.executable, f"tools/{tool}", check=False) != 0:
            log.write(f"{tool} could not fetch: its tests will be skipped")


def stage_dev(log):
    build(log, "dev")
    fetch(log)
    return ctest(log, "dev")


def install_wheel(log):
    """`pip install .` as a user does it, but with the dev build's objects through ccache."""
    log.run(sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--force-reinstall", ".",
            env={"CXX": shutil.which("c++")})  # by the name that the dev build uses: ccache tells names apart


def stage_python(log):
    report = ROOT / "build" / "pytest.xml"
    install_wheel(log)
    log.run(sys.executable, "-m", "pytest", "-q", "bindings/python/tests", "tests/python", f"--junitxml={report}", check=False)
    suite = xml.parse(report).getroot().find("testsuite")
    bad = int(suite.get("failures")) + int(suite.get("errors"))
    return Count(int(suite.get("tests")) - int(suite.get("skipped")) - bad, bad)


def stage_asan(log):
    build(log, "asan")
    return ctest(log, "asan")


def stage_tsan(log):
    build(log, "tsan", *(f"{module}_test" for module in THREADED_MODULES))
    return ctest(log, "tsan", "-R", f"^({'|'.join(THREADED_MODULES)})$")


def stage_fuzz(log):
    log.run("tools/run_fuzz.sh", FUZZ_SECONDS, check=False)
    results = re.findall(r"^fuzz_\w+: (.*)$", log.path.read_text(), re.M)
    if not results:
        raise Failure("no fuzzer ran")
    findings = sum("FINDING" in result for result in results)
    return Count(len(results) - findings, findings)


def stage_cuda(log):
    """The GPU programs of the dev build: CUDA is compiled there, for every chip. Without a GPU they start, and fail for want of one."""
    build(log, "dev")
    programs = sorted((ROOT / "build" / "dev" / "gpu").glob("*_gpu_test"))
    if not programs:
        print("  cuda: nothing compiled, there is no nvcc")
    count, cases = Count(), 0
    for program in programs:
        cases += len(re.findall(r"^  \S", subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout, re.M))
        if not pathlib.Path("/dev/nvidia0").exists():
            alone = subprocess.run([program], capture_output=True, text=True)
            log.write(alone.stdout + alone.stderr)
            loud = alone.returncode != 0 and "DeviceError: " in alone.stderr
            count.add(Count(int(loud), int(not loud)))
    if programs:
        print(f"  cuda: {cases} tests compiled in {len(programs)} programs; make check-gpu runs them on a GPU")
    return count


def stage_style(log):
    sources = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", "*.cc", "*.h", "*.cu", "*.cuh"], cwd=ROOT,
                             capture_output=True, text=True, check=True).stdout.split()
    log.run("clang-format-19", "--dry-run", "-Werror", *(s for s in sources if (ROOT / s).exists()))
    return Count()


def stage_tidy(log, seconds):
    if not (ROOT / "build" / "dev" / "compile_commands.json").exists():
        build(log, "dev")
    if not tidy.wheel_commands(ROOT):
        install_wheel(log)
    report = tidy.run(ROOT, JOBS, seconds)
    log.write(report.text)
    if report.failed:
        raise Failure(f"{report.failed} files are not clean")
    if report.left:
        print(f"  tidy: {report.left} of {report.total} files left for the next run (make tidy does all)")
    return Count()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=["dev", "python", "asan", "tsan", "fuzz", "cuda", "style", "tidy"])
    parser.add_argument("--tidy-seconds", type=float, default=float("inf"))
    args = parser.parse_args()
    os.environ.update(CCACHE_NOHASHDIR="true", CMAKE_CXX_COMPILER_LAUNCHER="ccache",
                      CMAKE_CUDA_COMPILER_LAUNCHER="ccache")  # the wheel's build finds the dev build's objects
    stages = {"style": stage_style, "dev": stage_dev, "python": stage_python, "asan": stage_asan, "tsan": stage_tsan,
              "fuzz": stage_fuzz, "cuda": stage_cuda, "tidy": lambda log: stage_tidy(log, args.tidy_seconds)}
    total, shown = Count(), False
    for name, stage in stages.items():
        if args.only and name not in args.only:
            continue
        start, log, note = time.monotonic(), Log(name), ""
        try:
            count = stage(log)
        except Failure as failure:
            count, note = Count(0, 1), f"  {failure}"
        total.add(count)
        print(f"{name:7} {time.monotonic() - start:6.1f} s  {count.passed} passed, {count.failed} failed{note}", flush=True)
        if count.failed and not shown:
            shown = True
            print(f"--- {log.path.relative_to(ROOT)}\n{log.tail()}\n---", flush=True)
    print(f"{total.passed} passed, {total.failed} failed")
    return 1 if total.failed or not total.passed and not args.only else 0


if __name__ == "__main__":
    sys.exit(main())
