"""Extension of Griffe (mkdocs.yml): what a docstring says of parameters becomes a list."""

import re

import griffe

# `name: text`, or `name, other: text`, and text on deeper lines below.
LINE = re.compile(r"((?:\*{0,2}[a-z]\w*(?:, )?)+): (.*)")
# A sentence that begins with a name in backticks; it may go on for lines.
SENTENCE = re.compile(r"(^|(?<=[.;)])[ \n])`(\w+)`:(?=\s)", re.M)


def as_markdown(text, parameters):
    """Returns a docstring as Markdown, with a list of what lines and sentences say of parameters.
    Behind a line that ends in a colon any such line is an item."""

    def own_line(match):
        return f"{match[1] and chr(10)}`{match[2]}`:" if match[2] in parameters else match[0]

    out, goes_on, before = [], None, ""
    for line in SENTENCE.sub(own_line, text).splitlines():
        if not line.strip():
            out.append("")
            goes_on = None
            continue
        sentence = re.match(r"`(\w+)`:\s*(.*)", line)
        item = LINE.fullmatch(line)
        names = [name.lstrip("*") for name in item[1].split(", ")] if item else []
        if sentence and sentence[1] in parameters:
            item, goes_on = f"* `{sentence[1]}`: {sentence[2]}", r"."
        elif item and (parameters.issuperset(names) or goes_on or before.endswith(":")):
            item, goes_on = f"* {', '.join(f'`{name}`' for name in names)}: {item[2]}", r"\s"
        elif goes_on and re.match(goes_on, line):
            item = "    " + line.strip()
        else:
            item, goes_on = line, None
        starts, ends = item.startswith("* ") and not before.startswith("* "), goes_on is None and before[:1] in ("*", " ")
        out += [*([""] if out and out[-1] and (starts and before[:1] != " " or ends) else []), item]
        before = item
    return "\n".join(out).strip()


class Docstrings(griffe.Extension):
    def on_function_instance(self, *, func, **_):
        if func.docstring:
            func.docstring.value = as_markdown(func.docstring.value, {each.name for each in func.parameters})

    def on_class_instance(self, *, cls, **_):
        if cls.docstring:
            cls.docstring.value = as_markdown(cls.docstring.value, set())
