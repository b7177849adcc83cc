"""clang-tidy over the product's sources: those that differ from the merge base, completely, or every one.

A changed source is looked at itself, a changed header through one source that includes it. Findings in a header that nobody
changed are found by the run over everything. A file is known to be clean when .cache/tidy holds the hash of its compile command,
the configuration, and itself with every header of ours that it includes.
"""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

TOOL = pathlib.Path(sys.executable).with_name("clang-tidy")
PATHS = "-clang-analyzer-*"  # the analyzer walks every path: two thirds of the time, so it takes turns
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.M)
MAIN_SECONDS = 6 * 3600  # of commits that are looked at on main itself, where nothing says what is new
PRODUCT = ("src", "apps", "bindings", "bench", "examples")


@dataclass
class Report:
    checked: int = 0
    failed: int = 0
    text: str = ""


class Tree:
    """The files of the tree, and which of them each includes."""

    def __init__(self, root):
        self.root, self.known = root, {}

    def direct(self, path):
        """Returns the hash of `path` and the files of the tree that it includes by itself."""
        if path not in self.known:
            content = path.read_bytes()
            bases = (path.parent, self.root / "src", self.root / "include")
            names = [name.decode() for name in INCLUDE.findall(content)]
            hits = [next((b / n for b in bases if (b / n).is_file()), None) for n in names]
            self.known[path] = (hashlib.sha256(content).digest(), [h.resolve() for h in hits if h])
        return self.known[path]

    def seen(self, source):
        """Returns `source` and the files of the tree that it includes, directly or not."""
        found, queue = set(), [source]
        while queue:
            path = queue.pop()
            if path not in found:
                found.add(path)
                queue += self.direct(path)[1]
        return found

    def key(self, entry, configuration):
        digest = hashlib.sha256(configuration)
        digest.update(entry["command"].encode())
        for path in sorted(self.seen(pathlib.Path(entry["file"]))):
            digest.update(self.direct(path)[0])
        return digest.hexdigest()


def git(root, *arguments):
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def merge_base(root):
    """Returns the commit that changes are counted from, "" where there is none: BASE of the environment; or where origin/main was
    left; or, on main itself, the last commit that is six hours older than its head."""
    asked = os.environ.get("BASE")
    if asked:
        return git(root, "rev-parse", "--verify", f"{asked}^{{commit}}")
    head, base = git(root, "rev-parse", "HEAD"), git(root, "merge-base", "origin/main", "HEAD")
    if base and base != head:
        return base
    before = int(git(root, "show", "-s", "--format=%ct", "HEAD") or 0) - MAIN_SECONDS
    return git(root, "rev-list", "-1", f"--before={before}", "HEAD")


def changed_files(root):
    """Returns the files that differ from the merge base, with those that are not committed; none where there is no base."""
    base = merge_base(root)
    if not base:
        return None
    names = git(root, "diff", "--name-only", base).splitlines() + git(root, "ls-files", "-o", "--exclude-standard").splitlines()
    return {(root / name).resolve() for name in names}


def compile_commands(root):
    """Returns the compile command of each product file, from the build that compiles each alone."""
    product = tuple(str(root / part) + "/" for part in PRODUCT)
    entries = json.loads((root / "build" / "dev" / "compile_commands.json").read_text())
    # nvcc's command lines mean nothing to clang
    return {e["file"]: e for e in entries if e["file"].startswith(product) and not e["file"].endswith(("_test.cc", ".cu"))}


def of_changes(tree, sources, changed):
    """Returns those of `sources` that show each changed file once: itself, or for a header one that includes it."""
    chosen = {source for source in sources if pathlib.Path(source) in changed}
    shown = {path for source in chosen for path in tree.direct(pathlib.Path(source))[1]}
    for header in sorted(path for path in changed if path.suffix == ".h" and path not in shown):
        including = [s for s in sources if header in tree.direct(pathlib.Path(s))[1]]
        same_name = [s for s in including if pathlib.Path(s).stem == header.stem]
        chosen.update((same_name or including)[:1])
    return chosen


def configurations(root):
    return [root / name for name in sorted(git(root, "ls-files", "-co", "--exclude-standard", "--", "*.clang-tidy").splitlines())]


def run(root, jobs, everything=False, analyzer=True, among=lambda name: True):
    """Checks what differs from the merge base, or everything; with or without the static analyzer. Leaves out
    files that `among` is false for. However long it takes."""
    folder = root / ".cache" / "tidy"
    folder.mkdir(parents=True, exist_ok=True)
    tree, entries = Tree(root), compile_commands(root)
    changed = None if everything else changed_files(root)
    chosen = sorted(entries) if changed is None else sorted(of_changes(tree, sorted(entries), changed))
    chosen = [name for name in chosen if among(name)]
    checks = [] if analyzer else [f"--checks={PATHS}"]
    configuration = b"".join([" ".join(checks).encode(), *(path.read_bytes() for path in configurations(root))])
    keys = {name: tree.key(entries[name], configuration) for name in chosen}

    def check(name):
        if (folder / keys[name]).exists():
            return None
        done = subprocess.run([TOOL, "--quiet", *checks, "-p", str(root / "build" / "dev"), name], capture_output=True, text=True, errors="replace")
        if done.returncode == 0:
            (folder / keys[name]).touch()
            return None
        return f"{name}: not clean\n{done.stdout}{done.stderr}\n"

    with ThreadPoolExecutor(jobs) as pool:
        findings = [text for text in pool.map(check, chosen) if text]
    return Report(len(chosen), len(findings), "".join([f"{len(chosen)} of {len(entries)} files\n", *findings]))
