"""Fail when files include each other in a circle, a class grows beyond its limits, or a friend lives in another file.

    python3 tools/check_structure.py [ROOT]

A header, the source of its name and its private header (x_internal.h) are one file here. Limits: 250 lines and 25 public methods of a class (constructors, destructor
and operators not counted), the 95th percentile of functions 30 lines and of files 420. tools/class_waivers.txt lists the classes
that may be larger, with a reason each, and the circles that are still there. A waiver that nothing needs is an error, too.
"""

import re
import sys

import cpp_functions
import source_text

PRODUCT = ("src", "include", "apps", "bindings")
WAIVERS = "tools/class_waivers.txt"
LIMITS = {"lines": 250, "public methods": 25}
FUNCTION_P95 = 30
FILE_P95 = 420
CLASS = re.compile(r"\b(class|struct)\s+(?:\[\[\w+\]\]\s+)?((?:\w+::)*\w+)(?:\s+final)?\s*(?::[^;{}()]*(?:<[^;{}]*>)?[^;{}()]*)?\{")
FRIEND = re.compile(r"\bfriend\s+(?:class|struct)\s+((?:\w+::)*\w+)\s*;")
ACCESS = re.compile(r"^\s*(public|protected|private)\s*:(?!:)")


def node(path, root):
    """Returns the name under which a header, its source and its private header are one."""
    return str(path.relative_to(root).with_suffix("")).removesuffix("_internal")


def include_graph(root):
    """Returns {file: {file that it includes}} of the product; names as quoted includes give them, below src and include."""
    paths = [path for path in source_text.files(root, *PRODUCT) if not source_text.is_test(path)]
    places = {str(path.relative_to(root)): node(path, root) for path in paths}
    graph = {name: set() for name in places.values()}
    for path in paths:
        for _, name, quoted in source_text.includes(path):
            for folder in ("src/", "include/", f"{path.parent.relative_to(root)}/"):
                if quoted and folder + name in places:
                    graph[node(path, root)].add(places[folder + name])
    return {name: uses - {name} for name, uses in graph.items()}


def circles(graph):
    """Yields the strongly connected parts of more than one file (Tarjan 1972)."""
    index, low, stack, found = {}, {}, [], []

    def visit(name):
        index[name] = low[name] = len(index)
        stack.append(name)
        for use in sorted(graph[name]):
            if use not in index:
                visit(use)
            if use in stack:
                low[name] = min(low[name], low[use])
        if low[name] == index[name]:
            part = stack[stack.index(name):]
            del stack[stack.index(name):]
            if len(part) > 1:
                found.append(sorted(part))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return sorted(found)


def body_end(text, start):
    """Returns the place behind the brace that closes the one before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    return len(text)


def without_bodies(text):
    """Returns `text` with what stands within braces removed."""
    kept, depth = [], 0
    for letter in text:
        depth -= letter == "}"
        if depth == 0:
            kept.append(letter)
        depth += letter == "{"
    return "".join(kept)


def public_methods(kind, name, body):
    """Counts the public functions that a class declares, as callers see them: overloads are methods of their own."""
    access = "public" if kind == "struct" else "private"
    count = 0
    for statement in re.split(r"[;}]|(?<=:)(?=\s)", without_bodies(body)):
        if match := ACCESS.match(statement):
            access = match[1]
            continue
        match = re.search(r"(~?\b\w+|operator\S*)\s*\(", re.sub(r"\[\[.*?\]\]|=\s*[^(]*$", "", statement))
        if access == "public" and match and match[1] not in (name, f"~{name}") and "operator" not in statement \
                and not re.search(r"\busing\b|\bfriend\b|\btypedef\b", statement):
            count += 1
    return count


def classes(text):
    """Yields (line, name, {unit: value}) of each class in code without comments and literals."""
    for match in CLASS.finditer(text):
        end = body_end(text, match.end())
        body = text[match.end():end - 1]
        name = match[2].rsplit("::", 1)[-1]
        line = text.count("\n", 0, match.start()) + 1
        yield line, name, {"lines": body.count("\n") + 1, "public methods": public_methods(match[1], name, body)}


def read_waivers(root):
    """Returns {key: reason}; a line is `path:Class | reason` or `path path | reason`, the files of a circle."""
    lines = [line for line in (root / WAIVERS).read_text().splitlines() if line.strip() and not line.startswith("#")]
    return dict(line.split(" | ", 1) for line in lines)


def check_circles(root, waivers, needed):
    for part in circles(include_graph(root)):
        key = " ".join(part)
        needed.add(key)
        if key not in waivers:
            yield f"{part[0]}: a circle of includes: {', '.join(part)}"


def check_classes(root, waivers, needed):
    for path in source_text.files(root, *PRODUCT):
        if source_text.is_test(path):
            continue
        for line, name, sizes in classes(source_text.code_only(path.read_text())):
            key = f"{path.relative_to(root)}:{name}"
            for unit, limit in LIMITS.items():
                if sizes[unit] <= limit:
                    continue
                needed.add(key)
                if key not in waivers:
                    yield f"{path.relative_to(root)}:{line}: {name} has {sizes[unit]} {unit}, at most {limit} are allowed"


def check_friends(root):
    texts = {}
    for path in source_text.files(root, *PRODUCT):
        texts.setdefault(node(path, root), []).append((path, source_text.code_only(path.read_text())))
    for parts in texts.values():
        for path, text in parts:
            for match in FRIEND.finditer(text):
                name = match[1].rsplit("::", 1)[-1]
                if not any(re.search(rf"\b(class|struct)\s+(?:\w+::)*{name}\b[^;{{]*\{{", other) for _, other in parts):
                    line = text.count("\n", 0, match.start()) + 1
                    yield f"{path.relative_to(root)}:{line}: the friend {name} is not of this file; give what it needs a name"


def percentile95(values):
    values = sorted(values)
    return values[int(len(values) * 0.95)] if values else 0


def check_percentiles(root):
    files, functions = [], []
    for path in source_text.files(root, *PRODUCT):
        if not source_text.is_test(path):
            text = path.read_text()
            files.append(len(text.splitlines()))
            functions += [function.lines for function in cpp_functions.functions(source_text.code_only(text))]
    for what, value, limit in (("functions", percentile95(functions), FUNCTION_P95), ("files", percentile95(files), FILE_P95)):
        if value > limit:
            yield f"the 95th percentile of {what} is {value} lines, at most {limit} are allowed"


def check(root):
    waivers, needed = read_waivers(root), set()
    errors = [*check_circles(root, waivers, needed), *check_classes(root, waivers, needed), *check_friends(root), *check_percentiles(root)]
    return errors + [f"{WAIVERS}: the waiver for {key} is not needed any more" for key in sorted(waivers.keys() - needed)]


if __name__ == "__main__":
    sys.exit(source_text.report("structure", check(source_text.root_from_arguments(sys.argv))))
