"""Memory that is refused to the binding: every call raises OutOfMemoryError, changes nothing, and answers as before afterwards."""

import os
import pathlib
import subprocess
import sys

import pytest

from conftest import MODEL

SUPPORT = pathlib.Path(__file__).parent / "support"
KINDS = ("encode", "ask", "decode", "generate", "batch", "stream", "forward", "explain", "compose", "register", "save", "context",
         "open")


@pytest.fixture(scope="module")
def refusing_library(tmp_path_factory):
    """Builds a library that refuses allocations, for LD_PRELOAD."""
    library = tmp_path_factory.mktemp("refuse") / "librefuse.so"
    subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC", SUPPORT / "refuse_memory.cc", "-o", library],
                   check=True)
    return library


@pytest.mark.parametrize("kind", KINDS)
def test_each_allocation_of_a_call_is_refused_and_raises_out_of_memory_error(refusing_library, kind):
    ended = subprocess.run([sys.executable, SUPPORT / "refused_calls.py", MODEL, kind], capture_output=True, text=True, timeout=300,
                           env={**os.environ, "LD_PRELOAD": str(refusing_library)})
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert int(ended.stdout) > 0
