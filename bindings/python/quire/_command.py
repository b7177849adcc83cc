"""The `quire` command of the wheel: hands over to the program that lies in the package."""

import os
import pathlib
import sys


def main() -> None:
    program = pathlib.Path(__file__).parent / "bin" / "quire"
    os.execv(program, [str(program), *sys.argv[1:]])
