"""The package as a program finds it: documented, typed, and a program itself."""

import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
from conftest import MODEL, ROOT

import quire

pytestmark = pytest.mark.cpu_only  # of the wheel: a GPU machine may have the extension without the rest


def public_members(cls):
    """Returns functions and properties of a class, without their wrapping."""
    for name, member in vars(cls).items():
        plain = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if not name.startswith("_") and callable(plain):
            yield name, plain


def test_everything_that_is_public_says_what_it_is():
    objects = {name: getattr(quire, name) for name in quire.__all__ if not name.startswith("__")}
    silent = [name for name, each in objects.items() if not inspect.getdoc(each)]
    for name, each in objects.items():
        if inspect.isclass(each) and each.__module__.startswith("quire.") and each.__module__ != "quire._quire":
            silent += [f"{name}.{member}" for member, plain in public_members(each) if not plain.__doc__]
    assert silent == []


def test_the_package_runs_as_the_command():
    done = subprocess.run([sys.executable, "-m", "quire", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"quire {quire.__version__}\n", "")


def test_a_cpp_program_builds_with_the_headers_and_the_library_of_the_package(tmp_path):
    page = (ROOT / "docs" / "cpp.md").read_text()
    (program,) = re.findall(r"^```cpp\n(.*?)^```$", page, re.M | re.S)
    (block,) = re.findall(r"^```console\n([^`]*get_include.*?)^```$", page, re.M | re.S)
    (tmp_path / "first.cc").write_text(program)
    commands = "\n".join(line.removeprefix("$ ") for line in block.splitlines())
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(pathlib.Path(quire.__file__).parents[1])}
    subprocess.run(["bash", "-ec", commands], cwd=tmp_path, env=environment, check=True)
    done = subprocess.run([tmp_path / "first", MODEL], capture_output=True, text=True, check=True)
    assert re.search(r"\n\d+ tokens\n\Z", done.stdout)


def test_the_headers_of_the_package_are_those_of_its_version():
    header = (pathlib.Path(quire.get_include()) / "quire" / "version.h").read_text()
    assert ".".join(re.findall(r"#define QUIRE_VERSION_\w+ (\d+)", header)) == quire.__version__
    assert {path.name for path in (ROOT / "include" / "quire").iterdir()} == {
        path.name for path in (pathlib.Path(quire.get_include()) / "quire").iterdir()
    }


def test_every_library_that_the_package_is_linked_of_stands_in_its_notices_and_its_bill_of_materials():
    folder = pathlib.Path(quire.__file__).parent
    notices = (folder / "THIRD_PARTY_NOTICES").read_text()
    components = json.loads((folder / "sbom.cdx.json").read_text())["components"]
    listed = {each["value"]: part["name"] for part in components for each in part["properties"]
              if each["name"] == "quire:soname"}
    binaries = [*folder.glob("_quire*.so"), *folder.glob("lib/libquire.so*"), folder / "bin" / "quire"]
    assert len(binaries) >= 3
    for binary in binaries:
        said = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True, check=True).stdout
        needed = {name.partition(".so")[0] + ".so" for name in re.findall(r"\(NEEDED\).*\[(.*)\]", said)}
        assert needed - {"libquire.so"} <= listed.keys()
    names = [part["name"] for part in components]
    for name in [*listed.values(), "boost", "cli11", "nanobind", "robin_map"]:
        assert name in names and f"\n{name} " in notices


def test_the_metadata_say_who_made_it_for_whom_and_which_pythons_run_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["authors"] and project["keywords"] and project["version"] == quire.__version__
    oldest = project["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in project["classifiers"]
    assert "Operating System :: POSIX :: Linux" in project["classifiers"] and "Typing :: Typed" in project["classifiers"]
