"""Fail when a file includes what its place in the tree does not allow.

    python3 tools/check_layers.py [ROOT]

src/quire/<module>: modules that tools/layers.toml names, always as "quire/<module>/<file>.h". include/quire, and what stands
on the library (apps, bindings, ...): public headers only. CUDA headers: only */cuda/ and device/.
"""

import re
import sys
import tomllib

import source_text

USERS = ("apps", "bindings", "integrations", "mlir", "examples")
CUDA = re.compile(r"(cuda\w*|cublas\w*|cudnn\w*|curand\w*|cutlass/.*|cute/.*|nccl|nvrtc|nvtx3/.*|cooperative_groups)(\.hp?p?)?")


def check_declarations(allowed):
    """Modules are declared bottom-up: a use of a later one would be a cycle."""
    seen = set()
    for module, uses in allowed.items():
        for use in uses:
            if use not in seen:
                yield f"tools/layers.toml: {module} uses {use}, which is not declared above it"
        seen.add(module)


def check_module_file(root, path, allowed):
    place = path.relative_to(root)
    module = place.parts[2]
    if module not in allowed:
        yield f"{place}: module '{module}' is not in tools/layers.toml"
        return
    for line, name, quoted in source_text.includes(path):
        match = re.match(r"quire/(\w+)/", name)
        if match and match[1] != module and match[1] not in allowed[module]:
            names = ", ".join(allowed[module]) or "nothing"
            yield f"{place}:{line}: {module} must not include {match[1]} (allowed: {names})"
        if quoted and not name.startswith("quire/"):
            yield f'{place}:{line}: include "{name}" as "quire/<module>/<file>.h"'
        if CUDA.fullmatch(name) and "cuda" not in place.parts and module != "device":
            yield f"{place}:{line}: CUDA header {name} outside */cuda/ and device/"


def check_user_file(root, path):
    place = path.relative_to(root)
    for line, name, _ in source_text.includes(path):
        if re.match(r"(src/)?quire/", name) and not (root / "include" / name).is_file():
            yield f"{place}:{line}: {place.parts[0]} may include only the public headers of include/quire, not {name}"


def check(root):
    allowed = tomllib.loads((root / "tools" / "layers.toml").read_text())["may_use"]
    errors = list(check_declarations(allowed))
    for path in source_text.files(root, "src/quire"):
        errors += check_module_file(root, path, allowed)
    for path in source_text.files(root, "include", *USERS):
        errors += check_user_file(root, path)
    return errors


if __name__ == "__main__":
    sys.exit(source_text.report("layers", check(source_text.root_from_arguments(sys.argv))))
