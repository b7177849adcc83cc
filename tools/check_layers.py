"""Fail when a file includes what its place in the tree does not allow.

    python3 tools/check_layers.py [ROOT]

src/quire/<module>: modules that tools/layers.toml names, always as "quire/<module>/<file>.h"; CMakeLists.txt links them.
Each of its modules is a folder, and each use an include. Headers of the public classes: only the module `api`, which
implements them; other modules include the headers of values. include/quire, and what stands on the library (apps,
bindings, ...): public headers only. CUDA headers: only */cuda/ and device/.
"""

import pathlib
import re
import sys
import tomllib

import source_text

# Public headers whose classes or functions stand on modules above the ones that would include them.
FACADES = ("llm", "chunks", "context", "sequence", "store", "checkpoints", "tokenizer", "answer", "tools", "quire")
USERS = ("apps", "bindings", "integrations", "mlir", "examples")
CUDA = re.compile(r"(cuda\w*|cublas\w*|cudnn\w*|curand\w*|cutlass/.*|cute/.*|nccl|nvrtc|nvtx3/.*|cooperative_groups)(\.hp?p?)?")
MODULE_OF_CMAKE = re.compile(r"^quire_module\((\w+)(?:\s+USES((?:\s+\w+)+?))?(?:\s+DEPENDS[^)]*)?\)", re.M)


def check_declarations(allowed):
    """Checks that modules are declared bottom-up: a use of a later one would be a cycle."""
    seen = set()
    for module, uses in allowed.items():
        for use in uses:
            if use not in seen:
                yield f"tools/layers.toml: {module} uses {use}, which is not declared above it"
        seen.add(module)


def included_modules(path):
    """Yields line and module of each include from a module's folder."""
    for line, name, _ in source_text.includes(path):
        if match := re.match(r"quire/(\w+)/", name):
            yield line, match[1]


def check_declared_are_used(root, allowed):
    """Yields what tools/layers.toml declares and the tree does not have."""
    for module, uses in allowed.items():
        folder = f"src/quire/{module}"
        if not (root / folder).is_dir():
            yield f"tools/layers.toml: {module} has no folder {folder}; remove its line"
            continue
        used = {name for path in source_text.files(root, folder) for _, name in included_modules(path)}
        for use in uses:
            if use not in used:
                yield f"tools/layers.toml: no file of {module} includes {use}; remove {use} from the line of {module}"


def check_links(root, allowed):
    """Yields uses that CMakeLists.txt does not link."""
    linked = {name: uses.split() for name, uses in MODULE_OF_CMAKE.findall((root / "CMakeLists.txt").read_text())}
    for module, uses in allowed.items():
        for use in uses:
            if use not in linked.get(module, []):
                yield f"CMakeLists.txt: quire_module({module}) must name {use} behind USES, as tools/layers.toml does"


def is_facade(name):
    return name in {f"quire/{facade}.h" for facade in FACADES}


def check_module_file(root, path, allowed):
    place = path.relative_to(root)
    module = place.parts[2]
    if module not in allowed:
        yield f"{place}: module '{module}' is not in tools/layers.toml"
        return
    for line, name in included_modules(path):
        if name != module and name not in allowed[module]:
            names = ", ".join(allowed[module]) or "nothing"
            yield f"{place}:{line}: {module} must not include {name} (allowed: {names})"
    for line, name, quoted in source_text.includes(path):
        if quoted and not name.startswith("quire/"):
            yield f'{place}:{line}: include "{name}" as "quire/<module>/<file>.h"'
        if module != "api" and is_facade(name):
            yield f"{place}:{line}: {module} must not include {name}, which the module api implements; include the header of the values"
        if CUDA.fullmatch(name) and "cuda" not in place.parts and module != "device":
            yield f"{place}:{line}: CUDA header {name} outside */cuda/ and device/"


def check_user_file(root, path):
    place = path.relative_to(root)
    if place.parent == pathlib.Path("include/quire") and not is_facade(f"quire/{place.name}"):
        for line, name, _ in source_text.includes(path):
            if is_facade(name):
                yield f"{place}:{line}: a header of values must not include {name}, whose class stands on the whole library"
    for line, name, _ in source_text.includes(path):
        if re.match(r"(src/)?quire/", name) and not (root / "include" / name).is_file():
            yield f"{place}:{line}: {place.parts[0]} may include only the public headers of include/quire, not {name}"


def check(root):
    allowed = tomllib.loads((root / "tools" / "layers.toml").read_text())["may_use"]
    errors = [*check_declarations(allowed), *check_declared_are_used(root, allowed), *check_links(root, allowed)]
    for path in source_text.files(root, "src/quire"):
        errors += check_module_file(root, path, allowed)
    for path in source_text.files(root, "include", *USERS):
        errors += check_user_file(root, path)
    return errors


if __name__ == "__main__":
    sys.exit(source_text.report("layers", check(source_text.root_from_arguments(sys.argv))))
