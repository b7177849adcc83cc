"""Reads Doxygen's output for include/quire: the public names of each header in order, with their comments as
they are written."""

import pathlib
import re
import xml.etree.ElementTree as ElementTree

from doxygen_filter import RULE

WIDTH = 90  # Columns of a declaration on a page


class Entry:
    """One name of a header: a class, an enum, a function, a field, a type or a macro."""

    def __init__(self, element, scope=""):
        place = element.find("location")
        body = int(place.get("bodystart") or -1)
        self.element, self.kind, self.header = element, element.get("kind"), pathlib.Path(place.get("file")).name
        self.line = body if body > 0 else int(place.get("line") or 0)
        self.last = max(self.line, int(place.get("bodyend") or -1))
        whole = element.findtext("name") or element.findtext("compoundname").removeprefix("quire::")
        self.name, self.key = whole.split("::")[-1], f"{scope}::{whole}" if scope else whole
        self.anchor = re.sub(r"[^\w:~]", lambda match: f"-{ord(match[0]):x}", self.key)
        self.type, self.arguments, self.value = (code_of(element.find(part)) for part in ("type", "argsstring", "initializer"))
        self.section, self.text = comment(element)
        self.values = [(each.findtext("name"), comment(each)[1]) for each in element.findall("enumvalue")]
        self.members = []

    def is_shown(self):
        """Returns false for what nobody calls: deleted functions, destructors without a comment, specialisations."""
        silent = self.name.startswith("~") and not self.text
        return not silent and not self.arguments.endswith("delete") and not re.search(r"\w ?<.*>", self.name)

    def shares_comment_of(self, other):
        """Returns true when one comment is on both: `other` stands right above, and is of its name or of its type."""
        alike = self.name == other.name or (self.type, self.arguments) == (other.type, other.arguments)
        return not self.text and self.kind == other.kind and 0 <= self.line - other.last <= 1 and alike

    def declaration(self):
        """Returns the C++ that declares it, without its body."""
        parameters = self.element.findall("templateparamlist/param")
        template = ", ".join(" ".join(filter(None, (code_of(each.find("type")), each.findtext("declname")))) for each in parameters)
        above = f"template <{template}>\n" if template else ""
        value = f" {self.value}" if self.value else ""
        if self.kind == "define":
            names = ", ".join(each.findtext("defname") for each in self.element.findall("param"))
            return f"#define {self.name}({names})" if names else f"#define {self.name}{value}"
        if self.kind == "concept":
            return above + f"concept {self.name} = {self.value.partition(' = ')[2]};"
        if self.kind in ("class", "struct"):
            bases = ", ".join(code_of(each) for each in self.element.findall("basecompoundref"))
            return above + f"{self.kind} {self.key}" + (f" : public {bases};" if bases else ";")
        if self.kind == "enum":
            return f"enum class {self.name}" + (f" : {self.type};" if self.type else ";")
        if self.kind == "typedef":
            return above + f"using {self.name} = {self.type};"
        words = [word for word in ("friend", "static", "explicit") if word == self.kind or self.element.get(word) == "yes"]
        head = " ".join(filter(None, [*words, self.type, self.name]))
        return above + (f"{head}{value};" if self.kind == "variable" else f"{wrapped(head, self.arguments)};")


def code_of(element):
    """Returns the code of an element, with blanks as the headers have them."""
    code = " ".join("".join(() if element is None else element.itertext()).replace("quire::", "").split())
    for pattern, to in ((r"< ", "<"), (r" >(?!=)", ">"), (r" ([&*]+)(?=[,)>]|$)", r"\1"), (r" ([&*]+)(?=[\w.])", r"\1 "),
                        (r"(?<=[\w\])])=(?=[\w{\"])", " = "), (r"\)(&+)", r") \1"), (r" <<(?=\d)", " << ")):
        code = re.sub(pattern, to, code)
    return code


def wrapped(head, arguments):
    """Returns a function's declaration, with its parameters below each other where they are long."""
    if len(head + arguments) <= WIDTH:
        return head + arguments
    end, depth, parts = arguments.rindex(")"), 0, [""]
    for char in arguments[1:end]:
        depth += (char in "<({") - (char in ">)}")
        parts[-1] += char
        if char == "," and depth == 0:
            parts.append("")
    return f"{head}(" + "".join(f"\n    {part.strip()}" for part in parts) + arguments[end:]


def comment(element):
    """Returns the lines of an element's comment: (on several declarations, on this one)."""
    found = element.find("detaileddescription//verbatim")
    text = "" if found is None else "".join(found.itertext())
    lines = [re.sub(r"^ */// ?", "", line).rstrip() for line in text.strip().splitlines()]
    at = max((at for at, line in enumerate(lines) if line == RULE), default=-1)
    return lines[:max(at, 0)], lines[at + 1:]


def read(folder):
    """Returns ({header: lines of its comment}, {header: its names in order}); a class has its members in order."""
    intros, names = {}, {}
    for path in sorted(folder.glob("*.xml")):
        compound = ElementTree.parse(path).getroot().find("compounddef")
        kind = "" if compound is None else compound.get("kind")
        members = [] if compound is None else [each for each in compound.iter("memberdef") if each.get("prot") == "public"]
        if kind == "file":
            intros[compound.findtext("compoundname")] = comment(compound)[1]
        if kind in ("file", "namespace"):  # a file repeats its part of the namespace
            entries = [Entry(each) for each in members if kind == "namespace" or each.get("kind") == "define"]
        elif kind in ("class", "struct", "concept"):
            owner = Entry(compound)
            owner.members = sorted(filter(Entry.is_shown, (Entry(each, owner.key) for each in members)), key=lambda each: each.line)
            entries = [owner]
        else:
            continue
        for entry in filter(Entry.is_shown, entries):
            names.setdefault(entry.header, []).append(entry)
    return intros, {header: sorted(entries, key=lambda each: each.line) for header, entries in names.items()}
