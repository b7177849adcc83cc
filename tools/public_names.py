"""The public names of Quire, read from the sources: those of the Python package, and those of include/quire."""

import ast
import re

import source_text

ALSO = {"outputs": ("Record", "Usage", "Reuse", "Timing")}  # Bases and fields of outputs


def python_exports(root):
    """Returns {module: its names in __all__} in the order of the package's imports."""
    tree = ast.parse((root / "bindings/python/quire/__init__.py").read_text())
    listed = next(ast.literal_eval(each.value) for each in tree.body if isinstance(each, ast.Assign) and each.targets[0].id == "__all__")
    found = {each.module: [name.name for name in each.names if not (name.asname or "").startswith("_")]
             for each in tree.body if isinstance(each, ast.ImportFrom)}
    found = {module: names for module, names in found.items() if names}
    assert sorted(listed) == sorted(sum(found.values(), [])), "every name of __all__ is imported in __init__.py"
    return found


def python_members(root):
    """Returns the public names of the package and of its classes, as `quire.LLM.generate`; classes are found in their files."""
    found = set()
    for module, names in python_exports(root).items():
        path = root / "bindings/python/quire" / module
        source = path.with_suffix(".pyi") if path.with_suffix(".pyi").exists() else path.with_suffix(".py")
        classes = {each.name: each for each in ast.parse(source.read_text()).body if isinstance(each, ast.ClassDef)}
        for name in names:
            found.add(f"quire.{name}")
            for each in classes[name].body if name in classes else ():
                member = each.target.id if isinstance(each, ast.AnnAssign) else getattr(each, "name", "_")
                if not member.startswith("_"):
                    found.add(f"quire.{name}.{member}")
    return found


# --- include/quire, without a compiler and without Doxygen

OWN = re.compile(r"^ *// For the library itself\..*?(?=^ *private:)", re.M | re.S)
NOISE = re.compile(r"^ *#(?:.*\\\n)*.*|\bQUIRE_API\b|\[\[.*?\]\]", re.M)
SCOPE = re.compile(r"(?:template <.*>\s*)?(namespace|class|struct|enum class)\s+([\w:]+)(?:\s*:[^:].*)?", re.S)
LABEL = re.compile(r"(public|private|protected):")


def cpp_names(text):
    """Returns the public names of a header, as `LLM::open`; without operators, destructors and what is deleted."""
    text = OWN.sub("", text)
    names = set(re.findall(r"^#define (\w+)", text, re.M))
    _scan(NOISE.sub("", source_text.code_only(text)), "", "public", names)
    return names


def _scan(code, scope, access, names):
    """Adds the names that are declared in `code`, the inside of a namespace or class."""
    statement, index = "", 0
    while index < len(code):
        char = code[index]
        if char == "{":
            end = _closing(code, index)
            head, inside = statement.strip(), code[index + 1:end]
            index = end
            if match := SCOPE.fullmatch(head):
                if access == "public":
                    _enter(match[1], scope, match[2], inside, names)
                statement = ""
            elif "(" in head and head.count("(") == head.count(")") and not head.endswith("="):  # the body of a function
                _declare(head, scope, access, names)
                statement = ""
            else:
                statement += "{}"
        elif char == ";":
            _declare(statement.strip(), scope, access, names)
            statement = ""
        else:
            statement += char
            if match := LABEL.fullmatch(statement.strip()):
                access, statement = match[1], ""
        index += 1


def _closing(code, start):
    """Returns the index of the brace that closes the one at `start`."""
    depth = 0
    for index in range(start, len(code)):
        depth += (code[index] == "{") - (code[index] == "}")
        if depth == 0:
            return index
    raise ValueError("a brace is not closed")


def _enter(kind, scope, name, inside, names):
    """Adds the names of a namespace, class or enum."""
    if kind == "namespace":
        _scan(inside, scope, "public", names)
        return
    whole = f"{scope}::{name}" if scope else name
    names.add(whole)
    if kind == "enum class":
        names.update(f"{whole}::{value}" for value in re.findall(r"(\w+)\s*(?:=[^,]*)?(?:,|$)", inside.strip()))
    else:
        _scan(inside, whole, "private" if kind == "class" else "public", names)


def _declare(statement, scope, access, names):
    """Adds the names that a statement declares."""
    bare = re.sub(r"template\s*<[^()]*?>\s*(?=[\w:]+[ &*<])", "", statement, count=1) if statement.startswith("template <") else statement
    if access != "public" or re.match(r"(?:friend|static_assert|class|struct|enum|template <>)", statement):
        return
    if match := re.match(r"(?:using|concept)\s+(\w+)\s*=", bare):
        found = [match[1]]
    elif re.match("using ", bare) or re.search(r"=\s*delete$|\boperator\b|\boperator\W|~\w+\(", bare):
        found = []
    else:
        plain = _without_angles(bare)
        function = re.match(r"[^=({]*?(\w+)\s*\(", plain)
        found = [function[1]] if function else re.findall(r"(\w+)\s*(?:=[^,]*|\{\}|\[\w*\])?(?:,|$)", plain)
    names.update(f"{scope}::{name}" if scope else name for name in found)


def _without_angles(code):
    """Returns code without what stands in <> and without what stands in the parentheses of parameters."""
    out, depth = "", 0
    for char in code:
        depth += char == "<"
        out += "" if depth else char
        depth -= char == ">" and depth > 0
    return out
