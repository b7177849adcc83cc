"""Links and anchors of Markdown as the code host reads them. Standard library only."""

import re

LINK = re.compile(r"(?<!\\)\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
DEFINITION = re.compile(r"^\[[^\]]+\]:\s+(\S+)", re.M)


def without_code(text):
    """Returns the text with blocks and spans of code emptied; lines keep their numbers."""
    text = re.sub(r"^( *)(```|~~~).*?^ *\2 *$", lambda match: "\n" * match[0].count("\n"), text, flags=re.M | re.S)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text)


def relative_links(text):
    """Returns the targets in `text` that are neither addresses nor absolute paths."""
    text = without_code(text)
    targets = LINK.findall(text) + DEFINITION.findall(text)
    return [target for target in targets if not re.match(r"[a-z][a-z+.-]*:|/", target)]


def anchor(heading):
    """Returns the anchor of a heading, given without its links."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text):
    """Returns the anchors of a page's headings."""
    found = set()
    for heading in re.findall(r"^#+ +(.*?) *$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M):
        name = anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        while name in found:
            name += "-1"
        found.add(name)
    return found
