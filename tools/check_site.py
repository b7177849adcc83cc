"""Looks at the built site: links and anchors lead somewhere, nothing is fetched from elsewhere, and every public name is there.

    python3 tools/check_site.py [SITE]
"""

import html
import pathlib
import posixpath
import re
import sys
from urllib.parse import unquote

import public_names
from site_pages import PYTHON, page_of

ROOT = pathlib.Path(__file__).resolve().parents[1]
TAG = re.compile(r"<(\w+)((?:\s+[\w:-]+(?:=\"[^\"]*\"|=[^\s\">]+)?)+)\s*/?>")
ATTRIBUTE = re.compile(r"([\w:-]+)=(?:\"([^\"]*)\"|([^\s\">]+))")
FETCHED = re.compile(r"(?:url\(|@import|\bsrc=|[\"'`])[\"']?(?:https?:)?//[\w.-]*(?:fonts|unpkg|jsdelivr|cdnjs|cdn)\b[^\"')]*")


class Page:
    """The anchors and links of one page."""

    def __init__(self, text):
        self.anchors, self.links, self.fetched = set(), set(), set()
        for tag, attributes in TAG.findall(text):
            values = {name: html.unescape(quoted or plain) for name, quoted, plain in ATTRIBUTE.findall(attributes)}
            self.anchors |= {values[name] for name in ("id", "name") if name in values and tag != "meta"}
            for name in ("href", "src"):
                if name in values:
                    (self.links if tag == "a" else self.fetched).add(values[name])


def broken_links(pages, files):
    """Returns a line for each link that leads to no file or anchor of the site, and for each thing that comes from elsewhere."""
    errors = []
    for place, page in pages.items():
        for link in sorted(page.links | page.fetched):
            if re.match(r"(?:[a-z][a-z+.-]*:|//)", link):
                errors += [f"{place}: fetches {link}"] if link in page.fetched and not link.startswith("data:") else []
                continue
            path, _, anchor = link.partition("#")
            there = posixpath.normpath(posixpath.join(posixpath.dirname(place), unquote(path))) if path else place
            if there not in files and place != "404.html":
                errors.append(f"{place}: leads to no file: {link}")
            elif anchor and there in pages and unquote(anchor) not in pages[there].anchors and anchor != "__skip":
                errors.append(f"{place}: leads to no heading: {link}")
    return errors


def missing_names(pages, root):
    """Returns a line for each public name that its reference does not have."""
    python = set().union(*(page.anchors for place, page in pages.items() if place.startswith(PYTHON)))
    errors = [f"the Python reference has no {name}" for name in sorted(public_names.python_members(root) - python)]
    for header in sorted((root / "include/quire").glob("*.h")):
        place = page_of(f"include/quire/{header.name}").removesuffix(".md") + ".html"
        there = pages[place].anchors if place in pages else set()
        errors += [f"{place} has no {name}" for name in sorted(public_names.cpp_names(header.read_text()) - there)]
    return errors


def check(site, root=ROOT):
    """Returns (pages, errors)."""
    files = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    pages = {place: Page((site / place).read_text()) for place in sorted(files) if place.endswith(".html")}
    errors = broken_links(pages, files) + missing_names(pages, root)
    for place in sorted(files):
        if place.endswith((".css", ".js")):
            errors += [f"{place}: fetches {match[0][:80]}" for match in FETCHED.finditer((site / place).read_text())]
    return pages, errors


def main():
    pages, errors = check(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/site"))
    print("\n".join(errors) or f"{len(pages)} pages")
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main())
