"""Fail when a sentence begins as docs/voice.md says that no sentence begins, or has too many words, or a line of Markdown is
too long.

    python3 tools/check_voice.py [ROOT]
    python3 tools/check_voice.py --lower

Reads Markdown below docs, every comment in C++ and CUDA, and every comment and docstring in Python. Questions may begin with
"What"; code and headings of Markdown are no sentences. Lines of each Markdown file have at most 120 characters; tables, code and
the targets of links do not count, and texts that programs read are no pages.
Sentences have at most 25 words in each Markdown file but bench/journal and CHANGELOG.md. So do those of comments and docstrings
below apps, bindings, include and src. A word is what stands between spaces and has a letter or a digit: a number is one, and so is
a name. A code span is one word. A formula has as many as it has names and numbers between spaces. An operator and the target of a
link are none. Tables are no sentences, and each item of a list begins one. Nothing waives this rule.
A comment directly above a function in a header below apps, include and src begins with neither an article nor one of the openings,
nor with "Where" or a word in lower case: a verb stands there. Headers of tests are left out. Nothing waives this rule either.
tools/voice_waivers.txt counts the sentences of a file that begin so today, and its long lines. A count may only fall: more is an
error, and so is a count that is too high. `--lower` writes the lower counts into that file; it raises none.
"""

import ast
import collections
import io
import itertools
import pathlib
import re
import sys
import tokenize

import cpp_functions
import source_text

OPENINGS = ("What ", "Of ", "Whether ", "As ", "The same ")
WAIVERS = "tools/voice_waivers.txt"
WAIVER = re.compile(r"(\S+) \| ([1-9]\d*)( long lines)?")
LINE_LIMIT = 120
WORD_LIMIT = 25
SKIPPED = {"build", "node_modules"}
FOLDERS = ("apps", "bench", "bindings", "examples", "include", "models", "src", "tests", "tools")
COUNTED = ("apps", "bindings", "include", "src")  # folders whose comments have their words counted
HEADERS = ("apps", "include", "src")              # folders in whose headers the comments of functions begin with a verb
UNCOUNTED = ("bench/journal/", "CHANGELOG.md")    # pages that keep what was written on a day
DATA = ("docs/samples/", "tests/golden/", "tests/python/data/")  # texts that programs read

# A sentence ends at a full stop, a question mark or an exclamation mark, behind which perhaps a bracket or a quote closes.
END = re.compile(r"(?<=[.?!])[)\]*\"']*\s+")
ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|No)\.)$")
# Bullets, numbers, quotes and emphasis before the first word of a piece of Markdown.
DECORATION = re.compile(r"^(?:[-*+>]+\s+|\d+\.\s+|\(\w\)\s+|\*\*|[*_\[(])+")
BULLET = re.compile(r"(?:[-*+]|\d+\.|>)\s")
PARAMETER = re.compile(r"(?:\*{0,2}[a-z]\w*(?:, )?)+: |`\w+`: ")  # a line of a docstring that site_docstrings.py makes an item
ROW = re.compile(r"\S {2,}\S")  # of a table of a comment
NO_VERB = re.compile(r"(?:The|A|An|What|Whether|Of|As|Where)\b|`?[a-z]")  # begins no comment of a function


def sentences(text):
    """Yields the sentences of a paragraph."""
    whole = ""
    for piece in END.split(" ".join(text.split())):
        whole = f"{whole} {piece}" if whole else piece
        if not ABBREVIATION.search(whole):
            yield whole
            whole = ""
    if whole:
        yield whole


def markdown_pieces(text):
    """Yields (line, text) of each paragraph, list item and table cell; code and headings are left out."""
    fence, lines = "", []
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*(```+|~~~+)", line):
            fence = "" if fence and match[1].startswith(fence) else fence or match[1]
            line = ""
        lines.append((number, "" if fence else re.sub(r"`[^`]*`", "`code`", line)))
    start, paragraph = 0, []

    def flush():
        if paragraph:
            yield start, " ".join(paragraph)
            paragraph.clear()

    for number, line in lines:
        stripped = line.strip()
        if stripped.startswith("|"):
            yield from flush()
            yield from ((number, cell.strip()) for cell in re.split(r"(?<!\\)\|", stripped) if cell.strip())
        elif not stripped or re.match(r"#+\s", stripped):
            yield from flush()
        else:
            if BULLET.match(stripped):
                yield from flush()
            if not paragraph:
                start = number
            paragraph.append(stripped)
    yield from flush()


def prose_pieces(text):
    """Yields (line, text) of each paragraph and list item of Markdown; tables and indented code are left out."""
    lines, inside, is_code = [], False, False  # inside a list an indented line belongs to an item
    for before, line in itertools.pairwise(["", *text.splitlines()]):
        if not before.strip():
            is_code = line.startswith("    ") and not inside
        if line.strip() and not line[0].isspace():
            inside = bool(BULLET.match(line)) or (inside and bool(before.strip()))
        lines.append("" if is_code or line.lstrip().startswith("|") else line)
    yield from markdown_pieces("\n".join(lines))


def joined(comments):
    """Yields (line, text) of each comment of {line: (column, whether no code is before it, text)}.

    Lines are one comment where they begin in one column, without code before the later ones. Each item of a list is a comment,
    and so is each row of a table with what stands deeper below it.
    """
    start, column, row, words = 0, -1, None, []
    for line in sorted(comments):
        at, own, part = comments[line]
        indent, part = len(part) - len(part.lstrip()), part.strip()
        is_row = bool(ROW.search(part))
        apart = is_row or BULLET.match(part) or (row is not None and indent <= row)
        if words and (line - 1 not in comments or at != column or not own or not part or apart):
            yield start, " ".join(words)
            words = []
        if part:
            if not words:
                start, row = line, indent if is_row else None
            column = at
            words.append(part)
    if words:
        yield start, " ".join(words)


def comment_pieces(text):
    """Yields (line, text) of each comment of C++."""
    found = {}
    for match in source_text.TOKEN.finditer(text):
        if match[0].startswith("/"):
            line = text.count("\n", 0, match.start()) + 1
            begin = text.rfind("\n", 0, match.start()) + 1
            own = not text[begin:match.start()].strip()
            for offset, part in enumerate(match[0].splitlines()):
                words = re.sub(r"^\s*(?:/\*+|\*+/|\*|///?!?<?)|\*/$", "", part)
                found[line + offset] = (match.start() - begin, own or offset > 0, words)
    yield from joined(found)


def comments_of_functions(text):
    """Yields (line, first line) of each comment directly above a function of C++."""
    lines = text.splitlines()
    for function in cpp_functions.functions(source_text.code_only(text)):
        first = last = function.line - 1
        indent = re.match(r"\s*", lines[last])[0]
        while first > 0 and lines[first - 1].startswith(f"{indent}//"):
            first -= 1
        if first < last:
            yield first + 1, lines[first].strip().lstrip("/ ")


def listed(docstring):
    """Returns the docstring with a bullet before each line that says something of a parameter, and before the text behind the
    last one."""
    lines, inside = [], False
    for line in docstring.splitlines():
        item = PARAMETER.match(line)
        lines.append(f"- {line}" if item or (inside and line and not line[0].isspace()) else line)
        inside = bool(item) or (inside and line[:1].isspace())
    return "\n".join(lines)


def python_pieces(text):
    """Yields (line, text) of each comment of Python, and of each paragraph of its docstrings."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            found[line] = (column, not token.line[:column].strip(), token.string.lstrip("#:! "))
    yield from joined(found)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if docstring := ast.get_docstring(node):
                yield from ((node.body[0].lineno + line - 1, piece) for line, piece in markdown_pieces(listed(docstring)))


def sources(root):
    """Yields (file, function that finds its pieces) of each file whose sentences the check reads."""
    yield from ((guide, markdown_pieces) for guide in sorted((root / "docs").rglob("*.md")))
    kinds = {".py": python_pieces, ".pyi": python_pieces, **dict.fromkeys(source_text.SUFFIXES, comment_pieces)}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in kinds and not any(part in SKIPPED or part.startswith(".") for part in path.relative_to(root).parts):
                yield path, kinds[path.suffix]


def pages(root):
    """Yields each Markdown file of the tree, but those of what is built or fetched, and texts that programs read."""
    for path in sorted(root.rglob("*.md")):
        place = path.relative_to(root)
        if not any(part in SKIPPED or part.startswith(".") for part in place.parts) and not str(place).startswith(DATA):
            yield path


def long_lines(text):
    """Yields (line, length) of each line of Markdown that is too long."""
    text = re.sub(r"^( *)(```|~~~).*?^ *\2 *$", lambda match: "\n" * match[0].count("\n"), text, flags=re.M | re.S)
    for number, line in enumerate(text.splitlines(), 1):
        shown = re.sub(r"`[^`]*`", "", re.sub(r"\]\([^)]*\)", "]", line))
        if not line.lstrip().startswith("|") and len(shown) > LINE_LIMIT:
            yield number, len(shown)


def findings(root):
    """Yields (place, line, sentence) of each sentence that begins so."""
    for path, pieces in sources(root):
        for line, piece in pieces(path.read_text()):
            for sentence in sentences(DECORATION.sub("", piece)):
                if DECORATION.sub("", sentence).startswith(OPENINGS) and not sentence.rstrip("*_)\"'").endswith("?"):
                    yield str(path.relative_to(root)), line, sentence


def long_line_findings(root):
    """Yields (place, line, length) of each long line of a page."""
    for path in pages(root):
        for line, length in long_lines(path.read_text()):
            yield str(path.relative_to(root)), line, length


def words(sentence):
    """Counts the words of a sentence: what has a letter or a digit between spaces, where a code span is one and a link's
    target none."""
    return len(re.findall(r"\S*\w\S*", re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", sentence))))


def counted(root):
    """Yields (file, function that finds its pieces) of each file whose sentences have their words counted."""
    yield from ((page, prose_pieces) for page in pages(root) if not str(page.relative_to(root)).startswith(UNCOUNTED))
    yield from ((path, pieces) for path, pieces in sources(root) if path.relative_to(root).parts[0] in COUNTED)


def wordy_findings(root):
    """Yields (place, line, words, sentence) of each sentence that has too many words."""
    for path, pieces in counted(root):
        for line, piece in pieces(path.read_text()):
            for sentence in sentences(re.sub(r"`[^`]*`", "`code`", DECORATION.sub("", piece))):
                if not ROW.search(piece) and words(sentence) > WORD_LIMIT:
                    yield str(path.relative_to(root)), line, words(sentence), sentence


def noun_findings(root):
    """Yields (place, line, first line) of each comment of a function in a header that does not begin with a verb."""
    for path in source_text.files(root, *HEADERS):
        place = path.relative_to(root)
        if path.suffix in {".h", ".cuh"} and not source_text.is_test(path) and not {"testing", *SKIPPED} & set(place.parts):
            for line, first in comments_of_functions(path.read_text()):
                if NO_VERB.match(first) and not first.startswith("clang-format"):
                    yield str(place), line, first


def counts_of(begun, long):
    """Returns {key: count} of the findings; the key of long lines ends so."""
    counts = collections.Counter(place for place, _, _ in begun)
    counts.update(f"{place} long lines" for place, _, _ in long)
    return counts


def read_waivers(root):
    """Returns ({key: count}, errors); a line is `path | 12` or `path | 12 long lines`."""
    waivers, errors = {}, []
    for number, line in enumerate((root / WAIVERS).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = WAIVER.fullmatch(line)
        key = match and match[1] + (match[3] or "")
        if not match or key in waivers:
            errors.append(f"{WAIVERS}:{number}: write `path | count` or `path | count long lines`, each once, not: {line}")
            continue
        waivers[key] = int(match[2])
    return waivers, errors


def check(root):
    waivers, errors = read_waivers(root)
    begun, long = list(findings(root)), list(long_line_findings(root))
    counts = counts_of(begun, long)
    for place, line, sentence in begun:
        if counts[place] > waivers.get(place, 0):
            opening = next(opening for opening in OPENINGS if DECORATION.sub("", sentence).startswith(opening)).strip()
            allowed = f" ({counts[place]} begin so, {waivers[place]} are waived)" if place in waivers else ""
            errors.append(f'{place}:{line}: begin with a subject or a verb, not with "{opening}" (docs/voice.md){allowed}: {sentence[:60]}')
    for place, line, length in long:
        key = f"{place} long lines"
        if counts[key] > waivers.get(key, 0):
            errors.append(f"{place}:{line}: {length} characters, at most {LINE_LIMIT}")
    for place, line, count, sentence in wordy_findings(root):
        errors.append(f"{place}:{line}: {count} words, at most {WORD_LIMIT} to a sentence (docs/voice.md): {sentence[:60]}")
    for place, line, first in noun_findings(root):
        errors.append(f'{place}:{line}: begin the comment of a function with a verb, as "Returns" (docs/voice.md): {first[:60]}')
    for key, allowed in waivers.items():
        if counts[key] < allowed:
            errors.append(f"{WAIVERS}: {key} has {counts[key]}, not {allowed}; run tools/check_voice.py --lower")
    return errors


def lower(root):
    """Writes today's counts where they are lower than those of the list."""
    counts = counts_of(findings(root), long_line_findings(root))
    kept = []
    for line in (root / WAIVERS).read_text().splitlines():
        if match := WAIVER.fullmatch(line):
            suffix = match[3] or ""
            count = min(int(match[2]), counts[match[1] + suffix])
            line = f"{match[1]} | {count}{suffix}" if count else None
        if line is not None:
            kept.append(line)
    (root / WAIVERS).write_text("\n".join(kept) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--lower"]:
        lower(pathlib.Path(__file__).resolve().parents[1])
        sys.exit(0)
    sys.exit(source_text.report("voice", check(source_text.root_from_arguments(sys.argv))))
