"""Finds the functions of a C++ file by matching braces: enough for code that clang-format has laid out, and no compiler.

Input is text without comments and literals (source_text.code_only). At namespace and class scope, whatever ends in a block and
looks like `name(parameters) qualifiers` is a function; inside a function nothing is looked for, so lambdas count as part of it.
"""

import dataclasses
import re

QUALIFIERS = re.compile(r"\s*(?:\b(?:const|override|final|mutable|try)\b|\bnoexcept\b(?:\s*\([^()]*(?:\([^()]*\))?[^()]*\))?|&&?|"
                        r"->\s*[\w:<>,*&\s()]+?|\brequires\b.*)\s*$", re.DOTALL)
SCOPE = re.compile(r"\s*(?:(?:inline\s+|typedef\s+)?(?:namespace|class|struct|union|enum)\b(?!.*[)=]\s*$)|extern\s*\"\"\s*$)", re.DOTALL)
LABEL = re.compile(r"(?:\s*(?:public|protected|private)\s*:(?!:))+")
NOT_NAMES = {"decltype", "noexcept", "alignas", "requires", "__attribute__", "if", "for", "while", "switch", "sizeof", "static_assert"}


@dataclasses.dataclass(frozen=True)
class Function:
    name: str
    line: int  # where its statement begins
    lines: int  # from the opening brace to the closing one; 0 for a declaration
    parameters: int


def match_parenthesis(text, start):
    """Returns the index of the parenthesis that closes the one at `start`, or None."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return None


def count_parameters(text):
    if text.strip() in {"", "void"}:
        return 0
    depth, count = 0, 1
    for index, char in enumerate(text):
        if char in "([{<":
            depth += 1
        elif char in ")]}" or char == ">" and text[index - 1] != "-":
            depth -= 1
        count += char == "," and depth == 0
    return count


def signature(header):
    """Returns (name, parameters) of the function whose text before its block is `header`, or None."""
    for match in re.finditer(r"((?:operator\s*(?:\(\)|[^\s\w(]+|\s\w+))|[~\w]+)\s*\(", header):
        name = match[1]
        close = match_parenthesis(header, match.end() - 1)
        if close is None:
            return None
        before = header[:match.start()]
        if name in NOT_NAMES or before.count("<") > before.count(">") or before.count("(") > before.count(")"):
            continue
        rest = header[close + 1:]
        if not re.match(r"\s*:(?!:)", rest):  # a constructor's initialisers may end in anything
            while rest != (shorter := QUALIFIERS.sub("", rest)):
                rest = shorter
            if rest.strip():
                continue
        return name, count_parameters(header[match.end():close])
    return None


def without_template(header):
    """Returns `header` after its template<...> clauses."""
    while match := re.match(r"\s*template\s*<", header):
        depth, index = 1, match.end()
        while depth and index < len(header):
            depth += (header[index] == "<") - (header[index] == ">")
            index += 1
        header = header[index:]
    return header


def assigns(header):
    """Tells whether an = stands outside all parentheses: the block or statement gives a value, not a body."""
    depth = 0
    for index, char in enumerate(header):
        depth += (char == "(") - (char == ")")
        if char == "=" and depth == 0 and not header[:index].rstrip("=<>!+-*/ ").endswith("operator"):
            return True
    return False


def is_initialiser(header):
    """Tells whether a brace after `header` opens a value, as in `Foo() : member_{1}` or `f(Options o = {})`,
    and not a block."""
    if header.count("(") > header.count(")"):
        return True
    in_list = re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", header)
    return bool(in_list and re.search(r"[\w>]\s*$", header))


def functions(code):
    """Returns every function of `code`, declarations included, in order."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", "", m[0]), code, flags=re.MULTILINE)
    found, start, index = [], 0, 0
    while index < len(code):
        if code[index] not in "{};":
            index += 1
            continue
        if label := LABEL.match(code, start, index):
            start = label.end()
        header = without_template(code[start:index])
        if code[index] == "{" and is_initialiser(header):
            index = skip_block(code, index) + 1
            continue
        end = index
        if code[index] == "{" and not SCOPE.match(header):
            end = skip_block(code, index)
        statement = re.sub(r"=\s*(?:default|delete|0)\s*$", "", header)
        if code[index] != "}" and not re.match(r"\s*(?:using|typedef|friend class)\b", header) and not assigns(statement):
            if named := signature(statement):
                found.append(Function(named[0], line_of(code, start), code.count("\n", index, end), named[1]))
        start = index = end + 1
    return found


def skip_block(code, start):
    """Returns the index of the brace that closes the one at `start` (the last character when none does)."""
    depth = 0
    for index in range(start, len(code)):
        depth += (code[index] == "{") - (code[index] == "}")
        if depth == 0:
            return index
    return len(code) - 1


def line_of(code, start):
    """Returns the line of the first character of a statement that begins at or after `start`."""
    while start < len(code) and code[start].isspace():
        start += 1
    return code.count("\n", 0, start) + 1
