"""Builds and tests Quire, stage by stage: `make check`, and with `all` or `rest` what `make check-all` does beside it.

Stages are compiled one after the other, and the tests of one run while the next is compiled. Each stage writes
build/logs/<stage>.log. The first failing output is shown, later stages still run, and the last line is `N passed, M failed`:
test cases, plus one failure for each stage that failed otherwise. build/logs/times.json says where the time went.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
import traceback

import check_stages
from check_log import LOGS, ROOT, Count, Failure, Log
from check_times import Times

SHOWN_FAILURES = 40
HINT = "not run here: sanitizers, fuzzers, clang-tidy, CUDA and the wheel (make check-all, about half an hour more)"


class Progress:
    """Prints one line for each phase that ends, and the first failing output."""

    def __init__(self, times):
        self.times, self.total, self.shown, self.lock = times, Count(), False, threading.Lock()
        self.failed = []  # "stage: test", in the order of their ends

    def phase(self, stage, name, start, log, failure=None, count=None):
        seconds = time.monotonic() - start
        counted = Count(0, 1, [f"{name}: {failure}"]) if failure else count or Count()
        with self.lock:
            self.failed += [f"{stage.name}: {each}" for each in counted.names]
            self.times.add(stage.name, name, seconds)
            self.total.add(counted)
            said = f"  {failure}" if failure else f"  {count.passed} passed, {count.failed} failed" if count else ""
            print(f"{stage.name:8} {name:6} {seconds:6.1f} s{said}", flush=True)
            if counted.failed and not self.shown:
                self.shown = True
                print(f"--- {log.path.relative_to(ROOT)}\n{log.tail()}\n---", flush=True)


def attempt(work, log):
    """Does `work(log)`; returns (count or none, the failure or none). An error of this program is a failure of the stage."""
    try:
        return work(log), None
    except Failure as failure:
        return None, failure
    except Exception as error:
        log.write(traceback.format_exc())
        return None, Failure(f"{type(error).__name__}: {error}")


def run(stages, progress):
    """Builds the stages in a thread, in turn; tests each here as soon as it is built."""
    logs = {stage.name: Log(stage.name) for stage in stages}
    built = {stage.name: threading.Event() for stage in stages}
    failed = set()

    def build_all():
        for stage in stages:
            if stage.build:
                start = time.monotonic()
                _, failure = attempt(stage.build, logs[stage.name])
                progress.phase(stage, "build", start, logs[stage.name], failure)
                if failure:
                    failed.add(stage.name)
            built[stage.name].set()

    builder = threading.Thread(target=build_all, name="builder")
    builder.start()
    for stage in stages:
        built[stage.name].wait()
        if stage.test and stage.name not in failed:
            start = time.monotonic()
            count, failure = attempt(stage.test, logs[stage.name])
            progress.phase(stage, "test", start, logs[stage.name], failure, count)
    builder.join()


def chosen(arguments):
    """Returns the stages that the command line asks for."""
    if arguments.only:
        return [stage for stage in check_stages.ALL if stage.name in arguments.only]
    every = [*check_stages.ALTERNATING, *check_stages.ROTATING, *check_stages.ASKED]
    rest = [*check_stages.REST, *(every if arguments.every else check_stages.of_this_commit())]
    return {"check": check_stages.CHECK, "rest": rest, "all": [*check_stages.CHECK, *rest]}[arguments.what]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="?", choices=["check", "rest", "all"], default="check")
    parser.add_argument("--only", nargs="+", choices=[stage.name for stage in check_stages.ALL])
    parser.add_argument("--every", action="store_true", help="all of what rotates from commit to commit, and clang-tidy over every file")
    arguments = parser.parse_args()
    stages = chosen(arguments)
    print(f"{len(stages)} stages: {', '.join(stage.name for stage in stages)}; output in {LOGS.relative_to(ROOT)}", flush=True)
    progress = Progress(Times(ROOT))
    run(stages, progress)
    print(progress.times.table())
    for name in progress.failed[:SHOWN_FAILURES]:
        print(f"failed: {name}")
    if arguments.what == "check" and not arguments.only:
        print(HINT)
    print(f"{progress.total.passed} passed, {progress.total.failed} failed")
    return 1 if progress.total.failed or not progress.total.passed and not arguments.only else 0


if __name__ == "__main__":
    sys.exit(main())
