"""Writes THIRD_PARTY_NOTICES and sbom.cdx.json (CycloneDX 1.5): what a build of Quire is linked of.

    python3 tools/third_party.py OUT PART... [--include DIR] [--cuda VERSION]

PART is library, program, server or python. The list is packaging/third_party.toml; versions are those that
are installed here. A build repeated gives equal bytes: no time and no random number stands in them. Standard
library only.
"""
import argparse
import importlib.metadata
import json
import pathlib
import platform
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LICENSES = ROOT / "packaging" / "licenses"
INCLUDES = ("/usr/include", "/usr/local/include")


def fail(message):
    sys.exit(f"error: {message}")


def version_of_quire():
    text = (ROOT / "include" / "quire" / "version.h").read_text()
    return ".".join(re.findall(r"#define QUIRE_VERSION_\w+ (\d+)", text))


def macro(text, name):
    found = re.search(rf"#\s*define\s+{name}\s+\"?([\w.]+)", text)
    return found and found[1].replace("_", ".")


def version_in_header(component, folders):
    path = component["header"]["path"]
    for folder in folders:
        header = pathlib.Path(folder, path)
        if header.exists():
            numbers = [macro(header.read_text(), name) for name in component["header"]["macros"]]
            return ".".join(filter(None, numbers))
    return fail(f"{component['name']}: no {path} below {', '.join(map(str, folders))}")


def system_version(name):
    return platform.libc_ver()[1] if name == "glibc" else subprocess.run(
        ["c++", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()


def version_of(component, arguments):
    """Returns the version that is installed here."""
    if component.get("version") == "cuda":
        return arguments.cuda
    if component.get("version") == "system":
        return system_version(component["name"])
    if "pkg" in component:
        done = subprocess.run(["pkg-config", "--modversion", component["pkg"]], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else fail(f"{component['name']}: {done.stderr.strip()}")
    if "header" not in component:
        return importlib.metadata.version(component["module"])
    if "module" in component:
        return version_in_header(component, [importlib.metadata.distribution(component["module"]).locate_file(component["module"])])
    return version_in_header(component, [*arguments.include, *INCLUDES])


def sonames(component):
    names = component.get("soname", [])
    return [names] if isinstance(names, str) else names


def license_texts(component):
    """Returns, by SPDX id, those of the expression that must go along."""
    texts = {}
    for word in re.findall(r"[\w.-]+", component["license"]):
        path = LICENSES / f"{word}.txt"
        if word == "Apache-2.0":
            path = ROOT / "LICENSE"
        if path.exists():
            texts[word] = path.read_text()
    return texts


def notices(components):
    lines = ["Quire contains or is linked with the following software of others.", ""]
    texts = {}
    for component, version in components:
        how = f"shared: {', '.join(sonames(component))}" if sonames(component) else "compiled in"
        lines += [f"{component['name']} {version} ({how})", f"  License: {component['license']}"]
        lines += [f"  Copyright: {holder}" for holder in component["copyright"]] + [""]
        texts |= license_texts(component)
    for name in sorted(texts):
        lines += ["-" * 80, name, "-" * 80, "", texts[name].strip("\n"), ""]
    return "\n".join(lines)


def bill_of_materials(components):
    entries = []
    for component, version in components:
        name = component["name"]
        is_id = re.fullmatch(r"[\w.-]+", component["license"]) and not component["license"].startswith("LicenseRef")
        entry = {"type": "library", "bom-ref": f"{name}@{version}", "name": name, "version": version,
                 "licenses": [{"license": {"id": component["license"]}} if is_id else {"expression": component["license"]}],
                 "copyright": "; ".join(component["copyright"]),
                 "purl": f"pkg:pypi/{name}@{version}" if name == "nanobind" else f"pkg:generic/{name}@{version}",
                 "properties": [{"name": "quire:linked", "value": "shared" if sonames(component) else "compiled in"},
                                *({"name": "quire:soname", "value": soname} for soname in sonames(component))]}
        entries.append(entry)
    version = version_of_quire()
    product = {"type": "library", "bom-ref": f"quire@{version}", "name": "quire", "version": version,
               "licenses": [{"license": {"id": "Apache-2.0"}}], "purl": f"pkg:generic/quire@{version}"}
    return {"$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.5",
            "version": 1, "metadata": {"component": product}, "components": entries,
            "dependencies": [{"ref": product["bom-ref"], "dependsOn": [entry["bom-ref"] for entry in entries]}]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("parts", nargs="+", choices=("library", "program", "server", "python"))
    parser.add_argument("--include", action="append", default=[], metavar="DIR", help="where headers are looked for first")
    parser.add_argument("--cuda", default="", metavar="VERSION", help="of the runtime that is compiled in")
    arguments = parser.parse_args()
    parts = {*arguments.parts, *(["cuda"] if arguments.cuda else [])}
    listed = tomllib.loads((ROOT / "packaging" / "third_party.toml").read_text())["component"]
    components = [(component, version_of(component, arguments)) for component in listed if parts & {*component["in"]}]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "THIRD_PARTY_NOTICES").write_text(notices(components))
    (arguments.out / "sbom.cdx.json").write_text(json.dumps(bill_of_materials(components), indent=2) + "\n")


if __name__ == "__main__":
    main()
