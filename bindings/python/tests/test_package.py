"""The package as a program finds it: documented, typed, and a program itself."""

import inspect
import subprocess
import sys

import pytest

import quire

pytestmark = pytest.mark.cpu_only  # of the wheel: a GPU machine may have the extension without the rest


def public_members(cls):
    """Functions and properties of a class, without their wrapping."""
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
