"""Writes a Markdown page for each public header from Doxygen's XML.

    python3 tools/cpp_reference.py XML_FOLDER OUT_FOLDER

A page has all public names of its header, in the order of the header. A name that stands in a comment becomes a link.
"""

import pathlib
import re
import sys

import doxygen_xml

FULL = 88  # A line of a comment that could have been longer was ended on purpose
GUIDES, ERRORS = "../../docs", "../python/errors.md"  # From a page of the reference
# Pieces of a comment: an error of Python, code, a guide, a header, a word with what it is called on, and what Markdown takes for markup.
PIECE = re.compile(r"(?<=Python: )(?!ValueError|OSError)(\w+)|`([^`]+)`|docs/([\w-]+\.md)|\b(\w+\.h)\b|"
                   r"((?:\w+(?:\(\))?(?:::|\.(?=\w)|->))*\w+(?:\(\))?)|[<*\[_]")


class Pages:
    """Writes the pages of what read() returns."""

    def __init__(self, intros, names):
        self.intros, self.names, self.places = intros, names, {}
        for header, entries in names.items():
            for each in (each for entry in entries for each in (entry, *entry.members)):
                page = f"{header.removesuffix('.h')}.md"
                self.places.setdefault(each.key, f"{page}#{each.anchor}")
                self.places.update({f"{each.key}::{value}": f"{page}#{each.key}::{value}" for value, _ in each.values})

    def name(self, word, scope, own=""):
        """Returns a word of code as Markdown: with a link where it names something else than `own`."""
        key = word.removeprefix("quire::").removesuffix("()")
        inner = [f"{scope}::{key}", f"{scope.rpartition('::')[0]}::{key}"]
        order = [key, *inner] if key[:1].isupper() else [*inner, key]
        place = next((place for place in [*order, f"ErrorCode::{key}"] if place in self.places), own)
        return f"`{word}`" if place in (own, scope) else f"[`{word}`]({self.places[place]})"

    def linked(self, text, scope, own=""):
        """Returns text as Markdown: code as code, names with links, and nothing else that Markdown would take for markup."""

        def piece(match):
            error, code, page, header, word = match.groups()
            if error:
                return f"[`{error}`]({ERRORS}#quire.{error})"
            if code:
                return self.name(code, scope, own)
            if page:
                return f"[{page}]({GUIDES}/{page})"
            if header in self.intros:
                return f"[{header}]({header.removesuffix('.h')}.md)"
            if not word:
                return {"<": "&lt;"}.get(match[0], "\\" + match[0])
            is_type = word in self.places and word[0].isupper()
            return self.name(word, scope, own) if is_type or re.search(r"\w::\w|\w_\w|\w\(\)|^k[A-Z]\w", word) else word

        return PIECE.sub(piece, text)

    def paragraphs(self, lines, scope, own=""):
        """Returns the lines of a comment as Markdown."""
        out, code, ended = [], [], True
        for at, line in enumerate(lines):
            before, item = lines[at - 1] if at else "", re.match(r"\* ", line)
            if re.match(r" {2,}\S", line) and (code or not before):
                code.append(line[2:])
                continue
            if ended and not item or item and not re.match(r"[* ] ", before):
                out.append("")
            words = lines[at + 1].split() if at + 1 < len(lines) else []
            ended = not line or bool(words) and not re.match(r"[* ] ", line) and len(line) + len(words[0]) < FULL
            start = "* " if item else "  " if line.startswith("  ") else ""
            out.append(start + self.linked(line.removeprefix("* ").strip(), scope, own))
        return [*out, "", *(["```cpp", *code, "```", ""] if code else [])]

    def entry(self, entries, scope, level):
        """Returns the part of a page on names that have one heading."""
        first, anchors = entries[0], list(dict.fromkeys(each.anchor for each in entries))
        title = ", ".join(dict.fromkeys(each.key if level == 2 else each.name for each in entries))
        out = [*(f'<a id="{anchor}"></a>' for anchor in anchors[1:]), "", f"{'#' * level} `{title}` {{ #{anchors[0]} }}", ""]
        groups = []
        for entry in entries:
            if groups and entry.shares_comment_of(groups[-1][-1]):
                groups[-1].append(entry)
            else:
                groups.append([entry])
        for group in groups:
            out += ["```cpp", *(each.declaration() for each in group), "```", *self.paragraphs(group[0].text, scope, first.key)]
        for value, lines in first.values:
            text = " ".join(self.linked(line, first.key, f"{first.key}::{value}") for line in lines)
            out.append(f"* `{value}`{{ #{first.key}::{value} }}" + (f": {text}" if text else ""))
        return [*out, ""]

    def listed(self, entries, scope, level):
        """Returns the part of a page on `entries`. Overloads, and names with one comment, have one heading."""
        out, done = [], []
        for at, entry in enumerate(entries):
            if entry in done:
                continue
            together = [entry]
            for other in entries[at + 1:]:
                if other.kind == entry.kind and (other.name == entry.name or other.shares_comment_of(together[-1])):
                    together.append(other)
            done += together
            inside = entry.key if entry.members or entry.values else scope
            out += [*self.paragraphs(entry.section, scope), *self.entry(together, inside, level), *self.listed(entry.members, entry.key, level + 1)]
        return out

    def page(self, header):
        """Returns the page of a header."""
        include = ["```cpp", f"#include <quire/{header}>", "```", ""]
        return "\n".join([f"# {header}", "", *self.paragraphs(self.intros[header], ""), *include, *self.listed(self.names.get(header, []), "", 2)])


if __name__ == "__main__":
    pages, out = Pages(*doxygen_xml.read(pathlib.Path(sys.argv[1]))), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for name in pages.intros:
        (out / name).with_suffix(".md").write_text(pages.page(name))
