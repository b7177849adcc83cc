"""clang-tidy over the product's sources, those changed last first, each file only when something that it sees has changed.

A file is known to be clean when .cache/tidy holds the hash of its compile command, the configuration, and itself with every
header of ours that it includes.
"""
import hashlib
import json
import pathlib
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

TOOL = "clang-tidy-19"
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.M)


@dataclass
class Report:
    total: int = 0
    failed: int = 0
    left: int = 0
    text: str = ""


def seen_files(root, source, known):
    """`source` and the files of the tree that it includes, directly or not."""
    found, queue = set(), [source]
    while queue:
        path = queue.pop()
        if path in found:
            continue
        found.add(path)
        if path not in known:
            content = path.read_bytes()
            bases = (path.parent, root / "src", root / "include")
            names = [name.decode() for name in INCLUDE.findall(content)]
            hits = [next((b / n for b in bases if (b / n).is_file()), None) for n in names]
            known[path] = (hashlib.sha256(content).digest(), [h.resolve() for h in hits if h])
        queue += known[path][1]
    return found


def key_of(root, entry, known, configuration):
    digest = hashlib.sha256(configuration)
    digest.update(entry["command"].encode())
    for path in sorted(seen_files(root, pathlib.Path(entry["file"]), known)):
        digest.update(known[path][0])
    return digest.hexdigest()


def wheel_commands(root):
    """The files of compile commands that `pip install .` left, none before the first."""
    return sorted((root / "build").glob("python-*/compile_commands.json"))


def compile_commands(root):
    """Build folder and command of each product file: of the dev build, and of the wheel's for what is built there alone."""
    product = tuple(str(root / part) + "/" for part in ("src", "apps", "bindings", "bench", "examples"))
    found = {}
    for commands in [root / "build" / "dev" / "compile_commands.json", *wheel_commands(root)]:
        for entry in json.loads(commands.read_text()):
            # nvcc's command lines mean nothing to clang
            if entry["file"].startswith(product) and not entry["file"].endswith(("_test.cc", ".cu")):
                found.setdefault(entry["file"], (commands.parent, entry))
    return found


def configurations(root):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", "*.clang-tidy"], cwd=root, capture_output=True, text=True)
    return [root / name for name in sorted(listed.stdout.splitlines())]


def ages(root):
    """The place of each file among those that commits changed, the last first; uncommitted ones are not in it."""
    log = subprocess.run(["git", "log", "--format=", "--name-only"], cwd=root, capture_output=True, text=True)
    age = {}
    for line in filter(None, log.stdout.splitlines()):
        age.setdefault(str(root / line), len(age))
    status = subprocess.run(["git", "status", "--porcelain", "--untracked-files=all"], cwd=root, capture_output=True, text=True)
    for line in status.stdout.splitlines():
        age.pop(str(root / line[3:]), None)
    return age


def run(root, jobs, seconds):
    """Checks until `seconds` have passed; says how many files are left."""
    folder = root / ".cache" / "tidy"
    folder.mkdir(parents=True, exist_ok=True)
    commands = compile_commands(root)
    entries = {name: entry for name, (_, entry) in commands.items()}
    configuration = b"".join(path.read_bytes() for path in configurations(root))
    known, keys = {}, {}
    for name, entry in entries.items():
        key = key_of(root, entry, known, configuration)
        if not (folder / key).exists():
            keys[name] = key
    age = ages(root)
    order = sorted(keys, key=lambda name: age.get(name, -1))
    deadline = time.monotonic() + seconds

    def check(name):
        if time.monotonic() > deadline:
            return None
        done = subprocess.run([TOOL, "--quiet", "-p", str(commands[name][0]), name], capture_output=True, text=True, errors="replace")
        if done.returncode == 0:
            (folder / keys[name]).touch()
        return done

    report = Report(total=len(entries))
    with ThreadPoolExecutor(jobs) as pool:
        for name, done in zip(order, pool.map(check, order)):
            if done is None:
                report.left += 1
            elif done.returncode != 0:
                report.failed += 1
                report.text += f"{name}: not clean\n{done.stdout}\n"
    return report
