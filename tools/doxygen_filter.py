"""Prints a header of include/quire as Doxygen takes it (INPUT_FILTER of tools/Doxyfile).

    python3 tools/doxygen_filter.py HEADER

Comments of the headers are plain text, without Doxygen's commands. So each becomes a Doxygen comment whose text is \\verbatim.
Every line keeps its number: tools/cpp_reference.py looks which declarations stand together.
"""

import pathlib
import re
import sys

NO_TEXT = re.compile(r"NOLINT|IWYU|clang-format")
OWN = "For the library itself."  # Names below this comment, up to `private:`, are no part of the interface
RULE = "-----"  # Parts a comment on several declarations from the comment on the first of them


def comment_blocks(lines):
    """Yields (first line, line behind, texts) of each block of comment lines."""
    index = 0
    while index < len(lines):
        first, texts = index, []
        while index < len(lines) and (match := re.fullmatch(r" *//(?: (.*))?", lines[index])) and not NO_TEXT.match(match[1] or ""):
            texts.append(match[1] or "")
            index += 1
        if texts:
            yield first, index, texts
        index = max(index, first + 1)


def filtered(text):
    """Returns a header whose comments are Doxygen comments."""
    lines = text.splitlines()
    since = None  # Where a comment on several declarations begins
    for first, behind, texts in list(comment_blocks(lines)):
        if texts[0].startswith(OWN):
            lines[first:behind] = ["private:", *[""] * (behind - first - 1)]
            continue
        lines[first:behind] = [f"/// {text}" for text in texts]
        since = first if since is None else since
        if lines[behind] == "#pragma once":
            lines[behind] = "/// \\file"
        elif not lines[behind].strip():
            if re.match(r" *// ", lines[behind + 1]):
                lines[behind] = f"/// {RULE}"
            else:  # on nothing
                lines[since:behind] = [""] * (behind - since)
                since = None
            continue
        lines[since] = lines[since].replace("/// ", "/// \\verbatim ", 1)
        lines[behind - 1] += " \\endverbatim"
        since = None
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(filtered(pathlib.Path(sys.argv[1]).read_text()), end="")
