"""An installed Quire as other projects use it: install into an empty prefix, build examples/cpp there, run it.

Run by CTest as `test_consumer.py CMAKE BUILD_FOLDER SOURCE_FOLDER`; standard library only.
"""
import json
import os
import pathlib
import re
import shutil
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

    def page_program(self):
        """Makes the folder with the program and the CMakeLists.txt of docs/cpp.md, as they stand there."""
        page = (SOURCE / "docs" / "cpp.md").read_text()
        folder = pathlib.Path(self.folder.name, "page")
        folder.mkdir(exist_ok=True)
        for language, name in (("cpp", "first.cc"), ("cmake", "CMakeLists.txt")):
            (block,) = re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)
            (folder / name).write_text(block)
        return folder

    def assert_talks(self, program):
        self.assertRegex(run(program, SOURCE / "models" / "cardfile" / "model"), r"\n\d+ tokens\n\Z")
        done = subprocess.run([program, "no/such"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"\A\w+: [^\n]*no/such")

    def test_the_program_of_the_page_on_cpp_builds_with_cmake(self):
        folder = self.page_program()
        run(CMAKE, "-S", folder, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run(CMAKE, "--build", folder / "build")
        self.assert_talks(folder / "build" / "first")

    def test_the_program_of_the_page_on_cpp_builds_with_pkg_config_from_a_prefix_that_has_moved(self):
        folder = self.page_program()
        moved = pathlib.Path(self.folder.name, "moved")
        shutil.copytree(self.prefix, moved, symlinks=True)
        (pc,) = moved.rglob("quire.pc")
        environment = {**os.environ, "PKG_CONFIG_PATH": str(pc.parent)}
        flags = run("pkg-config", "--cflags", "--libs", "quire", env=environment).split()
        libraries = run("pkg-config", "--variable=libdir", "quire", env=environment).strip()
        version = run("pkg-config", "--modversion", "quire", env=environment).strip()
        self.assertIn(f"quire {version}\n", run(moved / "bin" / "quire", "--version"))
        run("c++", "-std=c++20", folder / "first.cc", *flags, f"-Wl,-rpath,{libraries}", "-o", folder / "first")
        self.assert_talks(folder / "first")

    def needs_static(self):
        if "QUIRE_STATIC:BOOL=ON" not in (BUILD / "CMakeCache.txt").read_text():
            self.skipTest("built without QUIRE_STATIC")

    def static_project(self, folder, prefix):
        """Configures the page's program with quire::quire_static, from `prefix`; returns how that ended."""
        project = shutil.copytree(self.page_program(), folder, ignore=shutil.ignore_patterns("build"))
        lines = (project / "CMakeLists.txt").read_text()
        lines = lines.replace("0.1 REQUIRED", "0.1 REQUIRED COMPONENTS static").replace("quire::quire", "quire::quire_static")
        (project / "CMakeLists.txt").write_text(lines)
        return subprocess.run([CMAKE, "-S", project, "-B", project / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def assert_needs_no_library_of_quire(self, program):
        self.assertNotIn("libquire", run("readelf", "--dynamic", program))

    def test_the_static_library_links_with_cmake_from_a_prefix_that_has_moved(self):
        self.needs_static()
        with tempfile.TemporaryDirectory() as folder:
            moved = shutil.copytree(self.prefix, pathlib.Path(folder, "moved"), symlinks=True)
            configured = self.static_project(pathlib.Path(folder, "project"), moved)
            self.assertEqual(configured.returncode, 0, configured.stderr)
            run(CMAKE, "--build", pathlib.Path(folder, "project", "build"))
            program = pathlib.Path(folder, "project", "build", "first")
            self.assert_needs_no_library_of_quire(program)
            self.assert_talks(program)

    def test_the_static_library_links_with_pkg_config_as_the_page_says(self):
        self.needs_static()
        (line,) = re.findall(r"^\$ (g\+\+ .*--static.*)$", (SOURCE / "docs" / "cpp.md").read_text(), re.M)
        (pc,) = self.prefix.rglob("quire.pc")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(self.page_program() / "first.cc", folder)
            run("bash", "-c", line, cwd=folder, env={**os.environ, "PKG_CONFIG_PATH": str(pc.parent)})
            self.assert_needs_no_library_of_quire(pathlib.Path(folder, "first"))
            self.assert_talks(pathlib.Path(folder, "first"))

    def test_a_package_without_the_static_library_says_so_and_has_the_shared_one(self):
        self.needs_static()
        with tempfile.TemporaryDirectory() as folder:
            bare = shutil.copytree(self.prefix, pathlib.Path(folder, "bare"), symlinks=True)
            for archive in bare.rglob("libquire.a"):
                archive.unlink()
            refused = self.static_project(pathlib.Path(folder, "static"), bare)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("QUIRE_STATIC=ON", refused.stderr)
            run(CMAKE, "-S", self.page_program(), "-B", pathlib.Path(folder, "shared"), "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={bare}")

    def test_components_install_what_they_name(self):
        for component, there, missing in (("library", "libquire.so.0", "llm.h"), ("development", "llm.h", "libquire.so.0"),
                                          ("program", "quire", "llm.h")):
            with self.subTest(component), tempfile.TemporaryDirectory() as prefix:
                run(CMAKE, "--install", BUILD, "--prefix", prefix, "--component", component)
                names = {path.name for path in pathlib.Path(prefix).rglob("*") if not path.is_dir()}
                self.assertIn(there, names)
                self.assertNotIn(missing, names)

    def test_what_was_not_built_is_named_and_left_out(self):
        rules = (BUILD / "apps" / "cli" / "cmake_install.cmake").read_text()
        program = BUILD / "apps" / "cli" / "quire"
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "install.cmake")  # the same rules, of a build without the program
            script.write_text(rules.replace(str(program), folder + "/quire"))
            said = run(CMAKE, f"-DCMAKE_INSTALL_PREFIX={folder}/prefix", "-DCMAKE_INSTALL_COMPONENT=program", "-P", script)
            self.assertFalse(pathlib.Path(folder, "prefix", "bin", "quire").exists())
        self.assertIn("not built", said)

    def test_the_versions_of_headers_library_and_package_agree(self):
        header = (self.prefix / "include" / "quire" / "version.h").read_text()
        version = ".".join(re.findall(r"#define QUIRE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header))
        self.assertEqual(run(self.prefix / "bin" / "quire", "version"), f"quire {version}\n")
        self.assertIn(f'version = "{version}"', (SOURCE / "pyproject.toml").read_text())

    def test_in_another_project_quire_is_its_library_alone(self):
        folder = pathlib.Path(self.folder.name, "outer")
        folder.mkdir()
        (folder / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(outer LANGUAGES CXX)\n"
                                               f"add_subdirectory({SOURCE} quire)\nadd_executable(outer outer.cc)\n"
                                               "target_link_libraries(outer PRIVATE quire::quire)\n")
        (folder / "outer.cc").write_text("#include <quire/quire.h>\nint main() {}\n")
        run(CMAKE, "-S", folder, "-B", folder / "build", "-G", "Ninja", "-DQUIRE_CUDA=OFF")
        found = (folder / "build" / "CMakeCache.txt").read_text()
        for package in ("CLI11_DIR", "GTest_DIR", "EDIT_FOUND"):
            self.assertNotIn(package, found)
        targets = run(CMAKE, "--build", folder / "build", "--target", "help")
        self.assertNotRegex(targets, r"(?m)^(?:quire_cli|kv_test|benches):")

    def test_every_linked_library_stands_in_the_notices_and_in_the_bill_of_materials(self):
        (bill,) = self.prefix.rglob("sbom.cdx.json")
        (notices,) = self.prefix.rglob("THIRD_PARTY_NOTICES")
        components = json.loads(bill.read_text())["components"]
        listed = {each["value"]: part["name"] for part in components for each in part["properties"]
                  if each["name"] == "quire:soname"}
        text = notices.read_text()
        (library,) = self.prefix.rglob("libquire.so.0")
        for binary in (library, self.prefix / "bin" / "quire"):
            needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", binary))
            for name in (name.partition(".so")[0] + ".so" for name in needed if not name.startswith("libquire")):
                self.assertIn(name, listed)
                self.assertIn(f"\n{listed[name]} ", text)
        for compiled_in in ("boost", "cli11"):
            self.assertIn(compiled_in, [part["name"] for part in components])
            self.assertIn(f"\n{compiled_in} ", text)
        for part in components:
            self.assertRegex(part["version"], r"\A\d")

    def test_library_and_program_are_hardened(self):
        (library,) = self.prefix.rglob("libquire.so.0")
        for binary in (library, self.prefix / "bin" / "quire"):
            said = run("readelf", "--wide", "--dynamic", "--segments", binary)
            with self.subTest(binary.name):
                self.assertRegex(said, r"\(FLAGS\).*BIND_NOW")
                self.assertIn("GNU_RELRO", said)
                self.assertRegex(said, r"GNU_STACK\s+(?:0x\w+\s+){5}RW ")
                symbols = run("readelf", "--wide", "--dyn-syms", binary)
                self.assertIn("__stack_chk_fail", symbols)
                self.assertRegex(symbols, r"__\w+_chk\b")
                self.assertIn("__glibcxx_assert_fail", symbols)
                if "x86-64" in run("readelf", "--file-header", binary).lower():
                    # The mark in the file is the linker's, and needs start files of the C library that have it too.
                    self.assertGreater(binary.read_bytes().count(b"\xf3\x0f\x1e\xfa"), 500, "endbr64 at what is called indirectly")

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
