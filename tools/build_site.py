"""Builds the documentation site into build/site (make docs). Prints a line for each stage, and what failed."""

import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
MADE = ROOT / "build/docs"
SITE = ROOT / "build/site"
STAGES = [
    ("headers", "Doxygen reads include/quire", ["doxygen", "tools/Doxyfile"]),
    ("pages", "a page for each header", [sys.executable, "tools/cpp_reference.py", MADE / "xml", MADE / "cpp"]),
    ("site", "MkDocs builds all pages", [sys.executable, "-m", "mkdocs", "build", "--strict"]),
    ("check", "links, anchors and public names", [sys.executable, "tools/check_site.py", SITE]),
]


def main():
    shutil.rmtree(MADE, ignore_errors=True)
    MADE.mkdir(parents=True)
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    for name, says, command in STAGES:
        start = time.monotonic()
        done = subprocess.run([str(word) for word in command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        print(f"{name:8} {time.monotonic() - start:5.1f} s  {says}", flush=True)
        if done.returncode:
            print(done.stdout + done.stderr, end="")
            return 1
    print(SITE / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
