"""Runs `quire bench` of two builds in turn, and compares their medians record by record.

    python3 bench/compare_builds.py BEFORE AFTER [--rounds 5] [--seconds 600] -- MODEL [options of quire bench]

BEFORE and AFTER are two `quire` commands. Rounds alternate which of them runs first, so that a slow minute of the machine hits both.
No round begins after so many seconds.
Prints one line for each record: the medians of the seconds, their ratio (above 1: AFTER is faster), and the spread of each build
(largest over smallest). A ratio closer to 1 than the spread is noise.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time

IDENTITY = ("metric", "prompt_tokens", "depth_tokens", "batch", "shared_tokens", "weights", "kv", "device", "threads")


def records(command, arguments):
    """Returns {identity of a record: seconds} of one run."""
    done = subprocess.run([command, "bench", *arguments, "--format", "json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command} bench: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return {tuple(record.get(name) for name in IDENTITY): record["seconds"] for record in json.loads(done.stdout)}


def compare(before, after, rounds, arguments, limit=math.inf):
    """Returns [(identity, seconds before, seconds after)] with the seconds of all rounds that began within `limit` seconds."""
    seconds, start = {}, time.monotonic()
    for turn in range(rounds):
        if time.monotonic() - start > limit:
            break
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            for identity, value in records((before, after)[side], arguments).items():
                seconds.setdefault(identity, ([], []))[side].append(value)
    return [(identity, *both) for identity, both in seconds.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("arguments", nargs="+", help="MODEL and options of quire bench, behind --")
    given = parser.parse_args()
    print(f"{'record':60} {'before ms':>10} {'after ms':>10} {'ratio':>6} {'spread':>6} {'spread':>6}")
    for identity, before, after in compare(given.before, given.after, given.rounds, given.arguments, given.seconds):
        name = " ".join(f"{key.removesuffix('_tokens')}={value}" for key, value in zip(IDENTITY[1:], identity[1:]) if value)
        old, new = statistics.median(before), statistics.median(after)
        print(f"{identity[0] + ' ' + name:60} {old * 1e3:10.3f} {new * 1e3:10.3f} {old / new:6.3f} "
              f"{max(before) / min(before):6.3f} {max(after) / min(after):6.3f}")


if __name__ == "__main__":
    main()
