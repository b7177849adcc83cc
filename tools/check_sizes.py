"""Fail when a file or function is longer, or a function takes more parameters, than CONTRIBUTING.md allows.

    python3 tools/check_sizes.py [ROOT]

Limits: files 600 lines (tests and CUDA 800), functions 60 lines from brace to brace (kernels, which are the files below */cpu/
and */cuda/, and tests, which hold tables of cases, 120), 6 parameters. Exceptions are in tools/size_waivers.txt, which is read
strictly: one that is no longer needed is an error, too.
"""

import dataclasses
import re
import sys

import cpp_functions
import source_text

FOLDERS = ("src", "include", "apps", "bindings", "bench", "examples", "integrations", "tests")
WAIVERS = "tools/size_waivers.txt"
PARAMETER_LIMIT = 6


@dataclasses.dataclass(frozen=True)
class Size:
    """One measured thing. `key` is how a waiver names it."""
    key: str
    line: int
    value: int
    limit: int
    unit: str


def limits(place):
    """Returns (lines of a file, lines of a function)."""
    test = source_text.is_test(place)
    kernel = "cpu" in place.parts or "cuda" in place.parts
    cuda = place.suffix in {".cu", ".cuh"}
    return 800 if test or cuda else 600, 120 if test or kernel else 60


def measure(root):
    for path in source_text.files(root, *FOLDERS):
        place = path.relative_to(root)
        text = path.read_text()
        file_limit, function_limit = limits(place)
        yield Size(str(place), 1, len(text.splitlines()), file_limit, "lines")
        for function in cpp_functions.functions(source_text.code_only(text)):
            key = f"{place}:{function.name}"
            yield Size(key, function.line, function.lines, function_limit, "lines")
            yield Size(key, function.line, function.parameters, PARAMETER_LIMIT, "parameters")


def read_waivers(root):
    """Returns {(key, unit): allowed value}; a line is `path[:function] | 700 lines | reason | 2026-05-31`."""
    waivers, errors = {}, []
    for number, line in enumerate((root / WAIVERS).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+) \| (\d+) (lines|parameters) \| \S.{9,} \| \d{4}-\d\d-\d\d", line)
        if not match:
            errors.append(f"{WAIVERS}:{number}: write `path[:function] | 700 lines | reason | 2026-05-31`, not: {line}")
        elif (match[1], match[3]) in waivers:
            errors.append(f"{WAIVERS}:{number}: {match[1]} is waived twice")
        else:
            waivers[match[1], match[3]] = int(match[2])
    return waivers, errors


def check(root):
    waivers, errors = read_waivers(root)
    needed = set()
    for size in measure(root):
        if size.value <= size.limit:
            continue
        key = size.key, size.unit
        needed.add(key)
        limit = waivers.get(key, size.limit)
        if size.value > limit:
            place = size.key.replace(":", f":{size.line}: ", 1) if ":" in size.key else f"{size.key}:1"
            errors.append(f"{place}: has {size.value} {size.unit}, at most {limit} are allowed")
    errors += [f"{WAIVERS}: the waiver for {key} ({unit}) is not needed any more" for key, unit in waivers.keys() - needed]
    return errors


if __name__ == "__main__":
    sys.exit(source_text.report("sizes", check(source_text.root_from_arguments(sys.argv))))
