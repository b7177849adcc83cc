"""Lists the C++ files of the tree, and gives their text without comments and literals, for the repository
checks."""

import pathlib
import re

SUFFIXES = {".h", ".cc", ".cu", ".cuh"}

# Literals and comments, in the order in which they must be tried at a position.
TOKEN = re.compile(
    r'R"(?P<delimiter>[^()\\ ]{0,16})\(.*?\)(?P=delimiter)"'  # raw string
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)+'"  # not the separator of 1'000
    r"|//[^\n]*"
    r"|/\*.*?\*/",
    re.DOTALL)


def files(root, *folders):
    """Returns the C++ files below `folders` (all that exist), sorted."""
    return sorted(path for folder in folders for path in (root / folder).rglob("*") if path.suffix in SUFFIXES)


def code_only(text):
    """Returns `text` with comments blanked and literals emptied to "" or ''; every line keeps its number."""
    def blank(match):
        token = match[0]
        quotes = "" if token[0] == "/" else token[-1] * 2
        return quotes + re.sub(r"[^\n]", "", token)
    return TOKEN.sub(blank, text)


def includes(path):
    """Yields (line number, name, whether quoted) of each include."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := re.match(r'\s*#\s*include\s*(["<])([^">]+)', line):
            yield number, match[2], match[1] == '"'


def is_test(path):
    return path.name.endswith(("_test.cc", "test_support.h", "test_util.h", "test_length.h")) or "tests" in path.parts


def root_from_arguments(arguments):
    """Returns the tree to check: the first argument, or the one that holds this file."""
    return pathlib.Path(arguments[1] if len(arguments) > 1 else pathlib.Path(__file__).parents[1]).resolve()


def report(name, errors):
    """Prints the errors, or that all is well; returns the exit code."""
    print("\n".join(errors) or f"{name} ok")
    return int(bool(errors))
