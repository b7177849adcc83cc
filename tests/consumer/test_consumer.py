"""An installed Quire as other projects use it: install into an empty prefix, build examples/cpp there, run it.

Run by CTest as `test_consumer.py CMAKE BUILD_FOLDER SOURCE_FOLDER`; standard library only.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

CMAKE, BUILD, SOURCE = "", pathlib.Path(), pathlib.Path()


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class ConsumerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.prefix = pathlib.Path(cls.folder.name, "prefix")
        run(CMAKE, "--install", BUILD, "--prefix", cls.prefix)

    def test_example_builds_with_find_package_and_answers(self):
        build = pathlib.Path(self.folder.name, "build")
        run(CMAKE, "-S", SOURCE / "examples" / "cpp", "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run(CMAKE, "--build", build)
        lines = run(build / "ask", SOURCE / "models" / "cardfile" / "model").splitlines()
        self.assertEqual(len(lines), 2)
        self.assertRegex(lines[0], r"^What does Ada trade in\? apples\. \(0 of \d+ ")
        self.assertRegex(lines[1], r"^Where does the cousin of Ruben live\? Foxley\. \([1-9]\d* of \d+ ")

    def test_installed_program_finds_its_library(self):
        environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        self.assertIn("quire", run(self.prefix / "bin" / "quire", "--version", env=environment))

    def test_every_public_header_compiles_alone(self):
        include = self.prefix / "include"
        for header in sorted((include / "quire").glob("*.h")):
            with self.subTest(header.name):
                run("c++", "-std=c++20", "-Wall", "-Wextra", "-fsyntax-only", "-I", include, "-x", "c++", header)

    def test_options_with_some_fields_named_compile_without_a_warning(self):
        source = SOURCE / "tests" / "consumer" / "options.cc"
        run("c++", "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I", self.prefix / "include", source)


if __name__ == "__main__":
    CMAKE, BUILD, SOURCE = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1)), pathlib.Path(sys.argv.pop(1))
    unittest.main()
