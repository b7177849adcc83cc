"""The stages of tools/check.py: how each is built, how it is tested, and which commands run it."""

import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import tidy
from check_log import ROOT, Count, Failure, count_cases, count_programs, count_pytest

JOBS = os.cpu_count() or 2
FUZZ_SECONDS = 10
REQUEST_FUZZ_SECONDS = 60  # for its two layers, connections and bodies
ANALYZED = 8  # The static analyzer takes one file in so many
COMPILED_ALONE = 4  # and so does the build of each file alone
SANITIZED = 3  # Address and undefined-behaviour sanitizers take one test program in so many
TSAN_MODULES = "kv;sched;device;kernels;kv_cache;kv_store;attention;engine;tiers;chunks;sequences;runtime;contexts;api"
THREADED = ("kv", "sched", "device", "engine", "tiers", "chunks", "api")
PYTHON_TESTS = ("bindings/python/tests", "tests/python")
SERVER_TESTS = pathlib.Path("tests/clients")
FRAMEWORK_TESTS = SERVER_TESTS / "frameworks"
BUILD = ROOT / "build"


@dataclass(frozen=True)
class Stage:
    """One part of a check. `build` and `test` take the stage's log; `test` returns how many tests passed and failed."""

    name: str
    says: str
    build: Callable | None = None
    test: Callable | None = None


def configure(log, preset, *options):
    log.run("cmake", "--preset", preset, *options)


def build(log, preset, *targets, options=()):
    """Configures and builds; the tests of the stage before go first where both want the processor."""
    configure(log, preset, *options)
    log.run("nice", "-n", "5", "cmake", "--build", "--preset", preset, "-j", JOBS, *(["--target", *targets] if targets else []))


def objects(preset, wanted):
    """Returns one object file for each source of the tree that a configured preset compiles and that is, relative to it, `wanted`."""
    commands = json.loads((BUILD / preset / "compile_commands.json").read_text())
    outputs = {}
    for command in commands:
        source = os.path.relpath(command["file"], ROOT)
        outputs.setdefault(source, re.search(r" -o (\S+)", command["command"])[1])
    return [output for source, output in outputs.items() if not source.startswith("build/") and wanted(source)]


def programs(preset):
    """Returns what each test of a configured preset runs of what the preset builds: {test: its files}. CTest itself says so only once
    they are built."""
    folder = BUILD / preset.removesuffix("-slow")
    listed = subprocess.run(["ctest", "--preset", preset, "-N"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {}
    for file in folder.rglob("CTestTestfile.cmake"):
        for name, words in re.findall(r'^add_test\((?:\[=\[)?(.+?)(?:\]=\])? "(.*)"\)$', file.read_text(), re.M):
            files[name] = [word.removeprefix(f"{folder}/") for word in words.split('" "') if word.startswith(f"{folder}/")]
    return {name: files[name] for name in re.findall(r"^ +Test +#\d+: (\S+)", listed, re.M)}


def share_of_this_commit(parts):
    """Returns a predicate of paths: true for one path in `parts`; the commit's hash chooses which."""
    mine = turn() // len(ROTATING) % parts
    return lambda path: zlib.crc32(path.encode()) % parts == mine


def ctest(log, preset, *arguments, folder=None):
    """Runs CTest with a test preset, whose build folder is `folder` if not of its name."""
    cases = BUILD / (folder or preset) / "cases"
    shutil.rmtree(cases, ignore_errors=True)
    report = BUILD / (folder or preset) / f"ctest-{preset}.xml"
    log.run("ctest", "--preset", preset, "-j", JOBS, "--output-junit", report, *arguments, check=False)
    count = count_cases(cases)
    count.add(count_programs(report))
    return count


def python_options():
    """Returns CMake's options for the extension, built for the Python that runs this."""
    return ("-DQUIRE_PYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}")


def fetch(log):
    """Fetches what tests labelled `fetched` read. Without a network they are skipped, and the log says so."""
    for tool in ("fetch_smollm.py", "fetch_gemma3.py", "fetch_vocabs.py"):
        if log.run(sys.executable, f"tools/{tool}", check=False) != 0:
            log.write(f"{tool} could not fetch: its tests will be skipped")


# --- make check


def test_style(log):
    sources = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "--", "*.cc", "*.h", "*.cu", "*.cuh"], cwd=ROOT,
                             capture_output=True, text=True, check=True).stdout.split()
    log.run("clang-format-19", "--dry-run", "-Werror", *(s for s in sources if (ROOT / s).exists()))
    return Count()


def build_release(log):
    build(log, "release", options=("-DQUIRE_TESTS=ON", "-DQUIRE_STATIC=ON", *python_options()))


def test_release(log):
    fetch(log)
    return ctest(log, "release")


def build_python(log):
    build(log, "release", "python_package", options=python_options())


def pytest(log, name, *arguments, env=None, python=sys.executable):
    report = BUILD / f"pytest-{name}.xml"
    log.run(python, "-m", "pytest", "-q", f"--junitxml={report}", *arguments, env=env, check=False)
    return count_pytest(report)


def test_python(log):
    return pytest(log, "package", "-n", JOBS, "--dist", "loadfile", *PYTHON_TESTS, env={"PYTHONPATH": str(BUILD / "release" / "python")})


def build_clients(log):
    """Fetches the clients of others, most of the time beside the tests of the stage before."""
    log.run("tools/setup.sh", "clients")


def test_server(log):
    """Asks `quire serve` with real clients: those of .venv-server, then the frameworks, which want other versions."""
    count = pytest(log, "server", f"--ignore={FRAMEWORK_TESTS}", SERVER_TESTS, python=ROOT / ".venv-server/bin/python")
    count.add(pytest(log, "frameworks", FRAMEWORK_TESTS, python=ROOT / ".venv-frameworks/bin/python"))
    return count


# --- the rest of make check-all


def build_tidy(log):
    configure(log, "dev", *python_options())


def test_tidy(log, **what):
    report = tidy.run(ROOT, JOBS, **what)
    log.write(report.text)
    if report.failed:
        raise Failure(f"{report.failed} of {report.checked} files are not clean")
    return Count()


def test_analyzer(log):
    """Runs the static analyzer over one file in ANALYZED."""
    return test_tidy(log, everything=True, among=share_of_this_commit(ANALYZED))


def part_of_this_commit(tests, mine):
    """Returns every third program's tests of {test: its files}: those that the commit's hash chooses, or all others."""
    order = sorted({(files or [name])[0] for name, files in tests.items()})
    chosen = set(order[turn() // len(ROTATING) % SANITIZED::SANITIZED])
    return {name: files for name, files in tests.items() if ((files or [name])[0] in chosen) == mine}


def build_asan(log, tests):
    build(log, "asan", *sorted(set(itertools.chain(["fuzz"], *tests.values()))))


def asan_part(mine):
    """Returns how to build and test a third of the programs with sanitizers: that of the commit; or the other two."""
    def build_part(log):
        configure(log, "asan")
        build_asan(log, part_of_this_commit(programs("asan"), mine))

    def test_part(log):
        return ctest(log, "asan", "-R", f"^({'|'.join(map(re.escape, part_of_this_commit(programs('asan'), mine)))})$")

    return build_part, test_part


def build_asan_slow(log):
    configure(log, "asan")
    build_asan(log, programs("asan-slow"))


def test_asan_slow(log):
    return ctest(log, "asan-slow", folder="asan")


def build_tsan(log, modules=TSAN_MODULES):
    build(log, "tsan", *(f"{module}_test" for module in THREADED), options=(f"-DQUIRE_TSAN_MODULES={modules}",))


def test_tsan(log):
    return ctest(log, "tsan", "-R", f"^({'|'.join(THREADED)})(/|$)")


def test_fuzz(log):
    names = sorted(path.stem.removeprefix("fuzz_") for path in (ROOT / "tests/fuzz").glob("fuzz_*.cc"))
    log.run("tools/run_fuzz.sh", FUZZ_SECONDS, *(name for name in names if name != "request"), check=False)
    log.run("tools/run_fuzz.sh", REQUEST_FUZZ_SECONDS, "request", check=False)
    results = re.findall(r"^fuzz_\w+: (.*)$", log.path.read_text(), re.M)
    if not results:
        raise Failure("no fuzzer ran")
    findings = sum("FINDING" in result for result in results)
    return Count(len(results) - findings, findings)


def configure_cuda(log, chip):
    """Configures the GPU build for one chip and returns true, or returns false where there is no nvcc."""
    if not shutil.which("nvcc") and not pathlib.Path("/usr/local/cuda/bin/nvcc").exists():
        log.write("nothing compiled, there is no nvcc")
        return False
    configure(log, "cuda", f"-DCMAKE_CUDA_ARCHITECTURES={chip}")
    return True


def build_cuda(log, chip="90a-real"):
    """Compiles what only the GPU build has, and links one program; the rest of it is that of the release build."""
    if configure_cuda(log, chip):
        build(log, "cuda", "device_gpu_test", *objects("cuda", lambda path: "/cuda/" in path or "/gpu/" in path))


def build_gpu(log):
    """Builds every GPU program."""
    if configure_cuda(log, "90a-real"):
        build(log, "cuda")


def test_cuda(log):
    """Starts the GPU programs that were built. Without a GPU each fails for want of one."""
    count = Count()
    for program in sorted((BUILD / "cuda" / "gpu").glob("*_gpu_test")):
        listed = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
        tests = len(re.findall(r"^  \S", listed, re.M))
        log.write(f"{program.name} has {tests} tests; make check-gpu runs them on a GPU")
        if not pathlib.Path("/dev/nvidia0").exists():
            alone = subprocess.run([program], capture_output=True, text=True)
            log.write(alone.stdout + alone.stderr)
            loud = alone.returncode != 0 and "DeviceError: " in alone.stderr
            count.add(Count(int(loud), int(not loud)))
    return count


def build_wheel(log):
    """Does `pip install .` as a user does: the binding is compiled, the rest is of the main build."""
    log.run("nice", "-n", "5", sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--force-reinstall", ".")


def test_wheel(log):
    """Tests the installed package from outside the tree's own packages."""
    return pytest(log, "wheel", "bindings/python/tests/test_package.py", "bindings/python/tests/test_llm.py", "tests/python/test_readme_code.py")


# --- what takes turns: of ALTERNATING one of two a commit, of ROTATING one of all


def build_plain(log):
    """Compiles one file in COMPILED_ALONE by itself."""
    configure(log, "dev")
    build(log, "dev", *objects("dev", share_of_this_commit(COMPILED_ALONE)))


def test_long(log):
    return ctest(log, "long", folder="release")


def test_docs(log):
    """Builds the documentation site, and looks at its links and names."""
    log.run("tools/setup.sh", "docs")
    log.run(BUILD.parent / ".venv-docs/bin/python", "tools/build_site.py")
    return Count()


CHECK = [
    Stage("style", "clang-format over every file", test=test_style),
    Stage("release", "the library, the command and every unit and behaviour test", build_release, test_release),
    Stage("python", "the Python package and its tests", build_python, test_python),
    Stage("server", "the server, asked by the clients of others", build_clients, test_server),
]
REST = [
    Stage("asan", "address and undefined-behaviour sanitizers, over a third of the programs", *asan_part(mine=True)),
    Stage("fuzz", f"{FUZZ_SECONDS} seconds of each fuzzer, {REQUEST_FUZZ_SECONDS} of that of requests", test=test_fuzz),
    Stage("wheel", "pip install ., and the package that it installs", build_wheel, test_wheel),
    Stage("tidy", "clang-tidy over what differs from the merge base", build_tidy, lambda log: test_tidy(log, analyzer=False)),
]
ALTERNATING = [
    Stage("tsan", "the thread sanitizer over the modules whose threads meet", build_tsan, test_tsan),
    Stage("cuda", "the GPU code, compiled for Hopper", build_cuda, test_cuda),
]
ROTATING = [
    Stage("plain", "a quarter of the files compiled alone, without precompiled headers", build_plain),
    Stage("long", "random and stress tests at their full length", None, test_long),
    Stage("asan-rest", "the sanitizers over the other two thirds", *asan_part(mine=False)),
    Stage("asan-slow", "the sanitizers over the tests that compute long", build_asan_slow, test_asan_slow),
    Stage("tsan-all", "the thread sanitizer over every module", lambda log: build_tsan(log, "all"), test_tsan),
    Stage("analyzer", "the static analyzer over an eighth of the files", build_tidy, test_analyzer),
    Stage("cuda-80", "the GPU code, compiled for Ampere", lambda log: build_cuda(log, "80-real"), test_cuda),
    Stage("gpu-programs", "the GPU programs, linked", build_gpu, test_cuda),
    Stage("docs", "the documentation site: links, anchors, every public name", test=test_docs),
]
ASKED = [  # by ALL=1, or by name
    Stage("tidy-all", "clang-tidy over every file", build_tidy, lambda log: test_tidy(log, everything=True)),
]
ALL = [*CHECK, *REST, *ALTERNATING, *ROTATING, *ASKED]


def turn():
    """Returns the commit's hash as a number, which chooses what takes turns."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return int(head or "0", 16)


def of_this_commit():
    """Returns the stages of ALTERNATING and ROTATING that the commit's hash chooses, one of each."""
    return [group[turn() % len(group)] for group in (ALTERNATING, ROTATING)]
