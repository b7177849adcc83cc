"""Fail when library code does what library code never does (CONTRIBUTING.md, Where things go).

    python3 tools/check_rules.py [ROOT]

In src/quire and include/quire, tests apart: no printing, no ending of the process, no reading of the environment, no mutable
globals or function statics, and Boost.JSON in two files alone. Everywhere: no TODO without an issue number, and headers say `#pragma once` first.
"""

import re
import sys

import source_text

LIBRARY = ("src/quire", "include")
EVERYWHERE = (*LIBRARY, "apps", "bindings", "bench", "examples", "integrations", "mlir", "tests")
# The one place that may print and abort: a broken invariant. The one that may read the environment: what `~` means (ADR 0019).
CHECK_FAILED = "src/quire/base/check.cc"
HOME_PATH = "src/quire/base/home_path.cc"
# A program that takes the value of a failed Result ends in its own code, which this header is.
RESULT = "include/quire/result.h"
# SQLite's mutexes are the process's, and so is the lock that keeps forks away from them.
FORK_GATE = "src/quire/kv_store/out_of_fork.cc"
# Boost.JSON is 79,000 lines for each file that includes it: others look at JSON through base/json.h (ADR 0006).
BOOST_JSON = ("src/quire/base/json.cc", "src/quire/weights/safetensors_header.cc")

# Calls of exit and abort begin a statement (clang-format and braces see to that), so that methods of these names may exist.
RULES = [
    (re.compile(r"\b(?:v?f?printf|puts|fputs|putchar|perror|std::print(?:ln)?)\s*\("), "library code never prints"),
    (re.compile(r"\bstd::(?:cout|cerr|clog)\b|\bstd(?:out|err)\b"), "library code never prints"),
    (re.compile(r"(?:\bstd::|(?<![\w>])::|^\s*)(?:exit|_exit|_Exit|quick_exit|abort|terminate)\s*\("),
     "library code never ends the process"),
    (re.compile(r"\b(?:secure_getenv|getenv|setenv|putenv|unsetenv|environ)\b"), "library code never reads the environment"),
]

# Names at column 0, or behind `static`, that begin something constant or no variable at all.
NOT_A_VARIABLE = (r"(?!const\b|constexpr\b|consteval\b|constinit\s+const\b|inline constexpr\b|static const\b|static constexpr\b|using\b|typedef\b|"
                  r"namespace\b|class\b|struct\b|enum\b|union\b|template\b|extern\b|static_assert\b|friend\b|concept\b|requires\b)")
GLOBAL = re.compile(NOT_A_VARIABLE + r"[A-Za-z_][\w:<>,*& ]*[ *&](?!operator\b)\w+(?:\[[^\]]*\])*\s*(?:=(?!=)|\{|;)")
STATIC = re.compile(r"\s+(?:static|thread_local)\s+(?!const\b|constexpr\b|inline const|thread_local const\b)[^(=;{]*(?:=|;|\{)")
MUTABLE_STATE = "library code has no mutable globals and no singletons"


def check_library_file(place, text):
    for number, line in enumerate(source_text.code_only(text).splitlines(), 1):
        for pattern, message in RULES:
            if match := pattern.search(line):
                yield f"{place}:{number}: {message}: {match[0].strip(' (')}"
        if not line.lstrip().startswith("#") and (GLOBAL.match(line) or STATIC.match(line)):
            yield f"{place}:{number}: {MUTABLE_STATE}: {line.strip()}"


def check(root):
    errors = []
    for path in source_text.files(root, *LIBRARY):
        place = path.relative_to(root)
        if source_text.is_test(place):
            continue
        if str(place) not in (CHECK_FAILED, HOME_PATH, RESULT, FORK_GATE):
            errors += check_library_file(place, path.read_text())
        if str(place) not in BOOST_JSON:
            errors += [f"{place}:{number}: library code reads JSON through quire/base/json.h: {name}"
                       for number, name, _ in source_text.includes(path) if name.startswith("boost/json")]
    for path in source_text.files(root, *EVERYWHERE):
        if path.suffix in (".h", ".cuh") and not source_text.code_only(path.read_text()).lstrip().startswith("#pragma once\n"):
            errors.append(f"{path.relative_to(root)}:1: a header begins with #pragma once")
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"\b(?:TODO|FIXME|XXX)\b(?!\(#\d+\))", line):
                errors.append(f"{path.relative_to(root)}:{number}: name the issue: TODO(#123)")
    return errors


if __name__ == "__main__":
    sys.exit(source_text.report("rules", check(source_text.root_from_arguments(sys.argv))))
