"""Where the package keeps what a C++ program is compiled and linked with."""

import pathlib

_FOLDER = pathlib.Path(__file__).resolve().parent


def get_include() -> str:
    """Returns the folder of the C++ headers: pass it to the compiler behind -I."""
    return str(_FOLDER / "include")


def get_library_dir() -> str:
    """Returns the folder of libquire.so.0: pass it to the linker behind -L, and as the rpath."""
    return str(_FOLDER / "lib")
