"""Fail when a file in src/quire/<module> includes a module that layers.toml does not allow."""
import pathlib, re, sys, tomllib

root = pathlib.Path(sys.argv[1])
src = root / "src" / "quire"
allowed = tomllib.loads((root / "tools" / "layers.toml").read_text())["may_use"]
seen, errors = set(), []
for module, uses in allowed.items():  # declared bottom-up: a use of a later module is a cycle
    errors += [f"layers.toml: {module} uses {u}, which is not declared above it" for u in uses if u not in seen]
    seen.add(module)
for path in sorted(p for p in src.rglob("*") if p.suffix in {".h", ".cc", ".cu", ".cuh"}):
    module = path.relative_to(src).parts[0]
    if module not in allowed:
        errors.append(f"{path}: module '{module}' is not in tools/layers.toml")
        continue
    for n, line in enumerate(path.read_text().splitlines(), 1):
        m = re.match(r'\s*#\s*include\s+"quire/(\w+)/', line)
        if m and m[1] != module and m[1] not in allowed[module]:
            errors.append(f"{path}:{n}: {module} must not include {m[1]} (allowed: {', '.join(allowed[module]) or 'nothing'})")
print("\n".join(errors) or "layers ok")
sys.exit(bool(errors))
