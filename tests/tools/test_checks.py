"""The repository checks on small trees: each passes a clean one and names what is planted, with file and line."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_layers
import check_rules
import check_sizes
import check_structure
import check_voice
import cpp_functions
import source_text

LAYERS = '[may_use]\nbase = []\nkv = ["base"]\ndevice = ["base"]\nmodel = ["base", "device"]\n'
CLEAN = {
    "CMakeLists.txt": "quire_module(base DEPENDS OpenSSL::Crypto)\nquire_module(kv USES base)\n"
                      "quire_module(device USES base DEPENDS Threads::Threads\n             PkgConfig::ZSTD)\n"
                      "quire_module(model USES base\n             device)\n",
    "tools/layers.toml": LAYERS,
    "tools/size_waivers.txt": "# none\n",
    "tools/class_waivers.txt": "# none\n",
    "tools/voice_waivers.txt": "# none\n",
    "include/quire/result.h": "#pragma once\n#include <string>\n",
    "src/quire/base/str.h": '#pragma once\n#include "quire/result.h"\n',
    "src/quire/kv/ledger.cc": '#include "quire/kv/ledger.h"\n#include "quire/base/str.h"\n',
    "src/quire/device/pool.cc": '#include "quire/base/str.h"\n',
    "src/quire/model/cuda/decoder.cu": '#include "quire/base/str.h"\n#include "quire/device/pool.h"\n',
    "apps/cli/main.cc": '#include "options.h"\n#include "quire/result.h"\n',
}
SHORT = " ".join("abcdefghijklmnopqrstuvwxy")  # 25 words
LONG = f"{SHORT} z"


class CheckTest(unittest.TestCase):
    """Writes trees and compares what a check says about them."""

    def tree(self, changes):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        for name, text in {**CLEAN, **changes}.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    def assert_finds(self, check, name, text, expected):
        """Asserts that `check` finds exactly one thing in the clean tree plus this file, and that its message begins so."""
        errors = check(self.tree({name: text}))
        self.assertEqual(len(errors), 1, errors)
        self.assertTrue(errors[0].startswith(expected), errors[0])

    def assert_clean(self, check, changes):
        self.assertEqual(check(self.tree(changes)), [])


class Layers(CheckTest):
    def test_clean_tree_passes(self):
        self.assert_clean(check_layers.check, {})

    def test_include_of_a_forbidden_module_is_found(self):
        self.assert_finds(check_layers.check, "src/quire/kv/pool.h", '#pragma once\n#include "quire/model/decoder.h"\n',
                          "src/quire/kv/pool.h:2: kv must not include model (allowed: base)")
        self.assert_finds(check_layers.check, "src/quire/kv/pool.h", "#  include <quire/device/stream.h>\n",
                          "src/quire/kv/pool.h:1: kv must not include device")

    def test_undeclared_module_is_found(self):
        self.assert_finds(check_layers.check, "src/quire/extra/a.cc", "", "src/quire/extra/a.cc: module 'extra' is not in")

    def test_cycle_in_the_declarations_is_found(self):
        tree = self.tree({"tools/layers.toml": LAYERS.replace('kv = ["base"]', 'kv = ["base", "model"]'),
                          "src/quire/kv/a.cc": '#include "quire/model/decoder.h"\n',
                          "CMakeLists.txt": CLEAN["CMakeLists.txt"].replace("kv USES base", "kv USES base model")})
        self.assertEqual(check_layers.check(tree), ["tools/layers.toml: kv uses model, which is not declared above it"])

    def test_declared_module_without_a_folder_is_found(self):
        self.assert_finds(check_layers.check, "tools/layers.toml", LAYERS + "comm = []\n",
                          "tools/layers.toml: comm has no folder src/quire/comm; remove its line")

    def test_declared_use_that_no_file_includes_is_found(self):
        for text in ("", '#include "quire/device/pool.h"\n// #include "quire/base/str.h"\n'):  # nothing, or itself
            self.assert_finds(check_layers.check, "src/quire/device/pool.cc", text,
                              "tools/layers.toml: no file of device includes base; remove base from the line of device")

    def test_use_that_cmake_does_not_link_is_found(self):
        above = CLEAN["CMakeLists.txt"].split("quire_module(model")[0]
        for line, use in (("quire_module(model USES base)\n", "device"),
                          ("quire_module(model USES device DEPENDS Boost::base)\n", "base")):
            self.assert_finds(check_layers.check, "CMakeLists.txt", above + line,
                              f"CMakeLists.txt: quire_module(model) must name {use} behind USES, as tools/layers.toml")

    def test_include_by_relative_path_is_found(self):
        self.assert_finds(check_layers.check, "src/quire/kv/a.cc", '#include "../model/decoder.h"\n',
                          "src/quire/kv/a.cc:1: include \"../model/decoder.h\" as")

    def test_internal_header_in_a_program_is_found(self):
        for name in ("apps/cli/a.cc", "bindings/python/a.cc", "integrations/x/a.h", "include/quire/llm.h"):
            self.assert_finds(check_layers.check, name, '\n#include "quire/kv/ledger.h"\n', f"{name}:2: ")
        self.assert_finds(check_layers.check, "apps/cli/a.cc", '#include "quire/absent.h"\n', "apps/cli/a.cc:1: apps may include only")

    def test_header_of_a_public_class_below_api_is_found(self):
        for facade in check_layers.FACADES:
            self.assert_finds(check_layers.check, "src/quire/kv/a.cc", f'#include "quire/{facade}.h"\n',
                              f"src/quire/kv/a.cc:1: kv must not include quire/{facade}.h, which the module api implements")
        self.assert_clean(check_layers.check, {"src/quire/kv/a.cc": '#include "quire/options.h"\n#include "quire/kv/store.h"\n'})

    def test_api_may_include_the_headers_that_it_implements(self):
        self.assert_clean(check_layers.check, {"tools/layers.toml": LAYERS + 'api = ["base"]\n',
                                               "CMakeLists.txt": CLEAN["CMakeLists.txt"] + "quire_module(api USES base)\n",
                                               "src/quire/api/a.cc": '#include "quire/llm.h"\n#include "quire/base/str.h"\n'})

    def test_header_of_values_that_includes_a_public_class_is_found(self):
        tree = self.tree({"include/quire/llm.h": '#pragma once\n#include "quire/options.h"\n',
                          "include/quire/options.h": '#pragma once\n#include "quire/llm.h"\n'})
        self.assertEqual(check_layers.check(tree), ["include/quire/options.h:2: a header of values must not include quire/llm.h, "
                                                    "whose class stands on the whole library"])

    def test_cuda_header_outside_its_folders_is_found(self):
        self.assert_finds(check_layers.check, "src/quire/model/a.cc", "#include <cuda_runtime.h>\n",
                          "src/quire/model/a.cc:1: CUDA header cuda_runtime.h")
        self.assert_clean(check_layers.check, {"src/quire/model/cuda/a.cu": "#include <cuda_bf16.h>\n",
                                               "src/quire/device/a.cc": "#include <cuda_runtime.h>\n"})


class Rules(CheckTest):
    def test_clean_tree_passes(self):
        self.assert_clean(check_rules.check, {})

    def test_forbidden_calls_are_found(self):
        for line in ('  printf("x");', '  std::fprintf(file, "x");', "  std::cout << 1;", "  fwrite(p, 1, 1, stderr);", "  exit(1);",
                     "  std::abort();", "  ::_exit(0);", '  const char* home = std::getenv("HOME");'):
            with self.subTest(line=line):
                self.assert_finds(check_rules.check, "src/quire/kv/a.cc", f"void f() {{\n{line}\n}}\n",
                                  "src/quire/kv/a.cc:2: library code never ")

    def test_words_that_only_look_like_them_pass(self):
        self.assert_clean(check_rules.check, {"src/quire/kv/a.cc": '\n'.join([
            '  std::snprintf(buffer, size, "%d", 1);', "  // printf(1); exit(1);", '  fail("exit(1); getenv()");', "  engine.abort(id);",
            "bool Engine::abort(RequestId id) {", "  bool abort(RequestId id);", "  return abort(id);", '  R"(std::cout)";', ""])})

    def test_tests_programs_and_the_failed_check_may_print(self):
        text = 'int x = 0;\nvoid f() {\n  printf("x");\n  std::abort();\n}\n'
        self.assert_clean(check_rules.check, {name: text for name in (
            "src/quire/kv/a_test.cc", "apps/cli/a.cc", "src/quire/base/check.cc")})

    def test_mutable_state_is_found(self):
        for line in ("int counter = 0;", "std::mutex lock;", "static Pool pool;", "Table* table{};", "thread_local int depth;",
                     "std::map<int, int> names = {", "  static int calls = 0;", "  static Registry registry;", "  thread_local Buffer buffer;"):
            with self.subTest(line=line):
                self.assert_finds(check_rules.check, "src/quire/kv/a.cc", f"\n{line}\n", "src/quire/kv/a.cc:2: library code has no mutable")

    def test_constants_functions_and_types_pass(self):
        self.assert_clean(check_rules.check, {"src/quire/kv/a.cc": '\n'.join([
            "constexpr int kSize = 3;", "const std::string kName = f();", "inline constexpr int kTwo = 2;", "static const int kThree = 3;",
            "  static const Table table = make();", "  static constexpr int kLocal = 1;", "  static Result<Pool> open(int size);", "struct Pool;",
            "Pool& Pool::operator=(Pool&&) noexcept = default;", "int next(int x) {", "using A = int;", "namespace json = boost::json;",
            "template <class T>", "  int member_ = 0;", "#define QUIRE_X 1", "static_assert(true);", ""])})

    def test_boost_json_outside_of_its_files_is_found(self):
        for line in ("#include <boost/json.hpp>", "#include <boost/json/fwd.hpp>", '  # include "boost/json/value.hpp"'):
            with self.subTest(line=line):
                self.assert_finds(check_rules.check, "src/quire/text/a.cc", f"\n{line}\n",
                                  "src/quire/text/a.cc:2: library code reads JSON through quire/base/json.h: boost/json")
        self.assert_finds(check_rules.check, "include/quire/a.h", "#pragma once\n#include <boost/json/fwd.hpp>\n", "include/quire/a.h:2: ")

    def test_files_of_boost_json_tests_and_programs_may_include_it(self):
        self.assert_clean(check_rules.check, {name: "#include <boost/json.hpp>\n" for name in (
            "src/quire/base/json.cc", "src/quire/weights/safetensors_header.cc", "src/quire/text/a_test.cc", "apps/cli/a.cc", "tests/a/b.cc")})
        self.assert_clean(check_rules.check, {"src/quire/engine/a.cc": "#include <boost/version.hpp>\n// #include <boost/json.hpp>\n"})

    def test_header_that_may_be_included_twice_is_found(self):
        self.assert_finds(check_rules.check, "src/quire/kv/a.h", "// Blocks.\n#include <vector>\n", "src/quire/kv/a.h:1: a header begins with")
        self.assert_clean(check_rules.check, {"src/quire/kv/a.h": "// Blocks.\n#pragma once\n\n#include <vector>\n"})

    def test_todo_needs_an_issue(self):
        self.assert_finds(check_rules.check, "apps/cli/a.cc", "// TODO: later\n", "apps/cli/a.cc:1: name the issue")
        self.assert_clean(check_rules.check, {"apps/cli/a.cc": "// TODO(#12): later\n"})


def function(name, lines):
    return f"void {name}() {{\n" + "  g();\n" * (lines - 1) + "}\n"


class Sizes(CheckTest):
    def test_clean_tree_passes(self):
        self.assert_clean(check_sizes.check, {})

    def test_files_at_the_limit_pass_and_above_it_are_found(self):
        for name, limit in (("src/quire/kv/a.cc", 600), ("src/quire/kv/a_test.cc", 800), ("src/quire/model/cuda/a.cu", 800)):
            self.assert_clean(check_sizes.check, {name: "\n" * limit})
            self.assert_finds(check_sizes.check, name, "\n" * (limit + 1), f"{name}:1: has {limit + 1} lines, at most {limit}")

    def test_functions_at_the_limit_pass_and_above_it_are_found(self):
        for name, limit in (("src/quire/kv/a.cc", 60), ("src/quire/model/cpu/a.cc", 120), ("tests/a/b_test.cc", 120)):
            self.assert_clean(check_sizes.check, {name: function("f", limit)})
            self.assert_finds(check_sizes.check, name, "\n" + function("f", limit + 1), f"{name}:2: f: has {limit + 1} lines")

    def test_seven_parameters_are_found_in_definitions_and_declarations(self):
        self.assert_clean(check_sizes.check, {"src/quire/kv/a.h": "void f(int, int, int, int, int, std::map<int, int> m = {1, 2});\n"})
        for end in (";", " {\n}"):
            self.assert_finds(check_sizes.check, "src/quire/kv/a.h", f"void f(int, int, int, int, int, int, int){end}\n",
                              "src/quire/kv/a.h:1: f: has 7 parameters, at most 6")

    def test_a_waiver_allows_its_value_and_no_more(self):
        waiver = {"tools/size_waivers.txt": "src/quire/kv/a.cc:f | 70 lines | one table, read as a whole | 2026-05-01\n"}
        self.assert_clean(check_sizes.check, {**waiver, "src/quire/kv/a.cc": function("f", 70)})
        errors = check_sizes.check(self.tree({**waiver, "src/quire/kv/a.cc": function("f", 71)}))
        self.assertEqual(errors, ["src/quire/kv/a.cc:1: f: has 71 lines, at most 70 are allowed"])

    def test_waivers_are_read_strictly(self):
        good = "src/quire/kv/a.cc | 700 lines | generated, see its script | 2026-05-01\n"
        self.assert_finds(check_sizes.check, "tools/size_waivers.txt", good, "tools/size_waivers.txt: the waiver for src/quire/kv/a.cc")
        for bad in ("src/quire/kv/a.cc 700\n", good.replace("2026-05-01", "soon"), good.replace("generated, see its script", "big"),
                    good.replace("lines", "bytes")):
            self.assert_finds(check_sizes.check, "tools/size_waivers.txt", bad, "tools/size_waivers.txt:1: write")
        errors = check_sizes.check(self.tree({"tools/size_waivers.txt": good + good, "src/quire/kv/a.cc": "\n" * 650}))
        self.assertEqual(errors, ["tools/size_waivers.txt:2: src/quire/kv/a.cc is waived twice"])


class Structure(CheckTest):
    def test_clean_tree_passes(self):
        self.assert_clean(check_structure.check, {})

    def test_a_circle_of_includes_is_found_through_sources(self):
        changes = {"src/quire/kv/a.h": "", "src/quire/kv/a.cc": '#include "quire/kv/b.h"\n',
                   "src/quire/kv/b.h": "", "src/quire/kv/b.cc": '#include "quire/kv/a.h"\n'}
        self.assertEqual(check_structure.check(self.tree(changes)),
                         ["src/quire/kv/a: a circle of includes: src/quire/kv/a, src/quire/kv/b"])

    def test_a_private_header_is_of_its_source(self):
        self.assert_clean(check_structure.check, {"src/quire/kv/a.h": "", "src/quire/kv/a.cc": '#include "quire/kv/a_internal.h"\n',
                                                  "src/quire/kv/a_internal.h": '#include "quire/kv/a.h"\n'})

    def test_classes_at_the_limits_pass_and_above_them_are_found(self):
        def methods(count, access="public"):
            return f"class A {{\n {access}:\n" + "".join(f"  [[nodiscard]] int f{i}(int a = g(1)) const {{ return {i}; }}\n" for i in range(count)) + "};\n"

        self.assert_clean(check_structure.check, {"src/quire/kv/a.h": methods(25)})
        self.assert_clean(check_structure.check, {"src/quire/kv/a.h": methods(40, "private")})
        self.assert_finds(check_structure.check, "src/quire/kv/a.h", methods(26),
                          "src/quire/kv/a.h:1: A has 26 public methods, at most 25")
        self.assert_clean(check_structure.check, {"src/quire/kv/a.h": "struct A {\n" + "int a;\n" * 248 + "};\n"})
        self.assert_finds(check_structure.check, "src/quire/kv/a.h", "struct A : B<C> {\n" + "int a;\n" * 249 + "};\n",
                          "src/quire/kv/a.h:1: A has 251 lines, at most 250")

    def test_constructors_and_operators_are_no_methods(self):
        text = "class A {\n public:\n" + "  A(int);\n" * 20 + "  ~A();\n  A& operator=(const A&) = delete;\n" * 5 + "};\n"
        self.assert_clean(check_structure.check, {"src/quire/kv/a.h": text})

    def test_a_friend_of_another_file_is_found(self):
        self.assert_finds(check_structure.check, "src/quire/kv/a.h", "class A {\n  friend class B;\n};\n",
                          "src/quire/kv/a.h:2: the friend B is not of this file")
        self.assert_clean(check_structure.check, {"src/quire/kv/a.h": "class A {\n  friend class B;\n};\nclass B {};\n"})

    def test_a_waiver_that_nothing_needs_is_found(self):
        errors = check_structure.check(self.tree({"tools/class_waivers.txt": "src/quire/kv/a.h:A | it is a kernel\n"}))
        self.assertEqual(errors, ["tools/class_waivers.txt: the waiver for src/quire/kv/a.h:A is not needed any more"])


class Voice(CheckTest):
    def test_clean_tree_passes(self):
        self.assert_clean(check_voice.check, {})

    def test_each_opening_is_found_in_pages(self):
        for opening in ("What", "Of", "Whether", "As", "The same"):
            for text in (f"{opening} blocks hold stays.\n", f"Blocks stay. {opening} blocks hold goes.\n", f"- {opening} blocks hold.\n",
                         f"**{opening} blocks** hold.\n", f"| a |\n|---|\n| {opening} it is |\n", f"Blocks\nstay.\n{opening} it is.\n"):
                with self.subTest(text=text):
                    line = 3 if text.startswith("|") else 1
                    self.assert_finds(check_voice.check, "docs/a/b.md", text,
                                      f'docs/a/b.md:{line}: begin with a subject or a verb, not with "{opening}"')

    def test_comments_of_functions_in_headers_begin_with_a_verb(self):
        for opening in ("The name", "A name", "An id", "What it is called", "Whether it is", "Of one block", "As f", "Where it lies",
                        "its name", "`a` is borrowed"):
            comment = f"// {opening}.\n"
            for path, text, line in (("include/quire/a.h", f"{comment}int f();\n", 1),
                                     ("src/quire/kv/a.h", f"struct A {{\n public:\n  {comment}  int f() const {{ return 1; }}\n}};\n", 3),
                                     ("src/quire/kernels/cuda/a.cuh", f"int a;\n{comment}// Never fails.\ntemplate <int N>\nvoid f(int a) {{}}\n", 2),
                                     ("apps/cli/a.h", f"class A {{\n  struct B {{}};\n  {comment}  A(int a) : a_(a) {{}}\n}};\n", 3)):
                with self.subTest(path=path, opening=opening):
                    errors = check_voice.check(self.tree({path: text}))
                    self.assertIn(f'{path}:{line}: begin the comment of a function with a verb, as "Returns" (docs/voice.md): {opening}.',
                                  errors)

    def test_other_comments_may_be_nouns(self):
        function = "// The name.\nint f();\n"
        self.assert_clean(check_voice.check, {
            "include/quire/a.h": "// The names.\n#pragma once\n// Returns the name.\nint f();\n\n// The calls above.\n\nint g();\n",
            "src/quire/kv/a.h": "// A block.\nstruct A {\n  // The id.\n  int id = f(1);\n  // A function of the caller.\n  std::function<int(int)> call;\n"
                                "  int size;  // tokens that\n             // are cached\n  int f();\n};\n// An enumerator.\nenum class B { kA };\n",
            "src/quire/kv/b.h": "// clang-format off\nint f();\n// clang-format on\n// NOLINTNEXTLINE\nint g();\n// The number.\nconstexpr int kA = 1;\n",
            "src/quire/kv/a.cc": function, "src/quire/kv/test_support.h": function, "tests/a.h": function, "bench/a.h": function,
            "apps/server/testing/a.h": function})

    def test_questions_headings_and_code_pass(self):
        self.assert_clean(check_voice.check, {"docs/a.md": "\n".join([
            "# What reuse does", "", "What goes first? Blocks do. Is it so (What else?)", "", "`Of it` stays. A word: Of it.", "",
            "```", "What is read.", "```", "", "Asking is fine. Official too. Offers as well.", ""])})

    def test_openings_are_found_in_comments_of_public_headers(self):
        for text, line in (("// What it is.\n", 1), ("// Returns it.\n// Of those that go: one.\n", 1), ("int f();  // Whether it is\n", 1),
                           ("/* As f. */\n", 1), ("\nint f();  // it\n  // The same for g.\nint g();\n", 3)):
            with self.subTest(text=text):
                self.assert_finds(check_voice.check, "include/quire/a.h", "#pragma once\n" + text, f"include/quire/a.h:{line + 1}: begin with ")

    def test_comments_that_stand_apart_are_not_joined(self):
        self.assert_finds(check_voice.check, "include/quire/a.h", "int a;  // bytes\nint b;  // What it is\n", "include/quire/a.h:2: ")

    def test_strings_and_other_files_pass(self):
        self.assert_clean(check_voice.check, {
            "include/quire/a.h": '#pragma once\nconst char* kText = "// What it is";\n', "README.md": "What it is.\n",
            "build/a.cc": "// What it is.\n", "apps/build/a.cc": "// What it is.\n", "packaging/a.h": "// What it is.\n",
            "tools/a.py": 'TEXT = "What it is."\nOTHER = """\n# What it is.\n"""\n'})

    def test_openings_are_found_in_comments_of_each_folder(self):
        for path in ("include/quire/a.h", "src/quire/kv/a.h", "src/quire/kv/a.cc", "src/quire/kernels/cuda/a.cuh", "src/quire/kernels/cuda/a.cu",
                     "apps/cli/a.cc", "apps/server/http/a.h", "bindings/python/src/a.cc", "tests/engine/a_test.cc", "tests/fuzz/a.cc",
                     "bench/a.cc", "examples/cpp/a.cc"):
            with self.subTest(path=path):
                self.assert_finds(check_voice.check, path, "#pragma once\n// What it is.\n", f"{path}:2: begin with ")

    def test_openings_are_found_in_comments_of_python(self):
        for text, line in (("# What it is.\n", 1), ("#: Of those that go.\n", 1), ("a = 1  # Whether it is.\n", 1), ("# Sums it. As f does.\n", 1),
                           ("a = 1  # one\n# The same for b.\nb = 1\n", 2), ("# Sums\n# it.\n# What it is.\n", 1)):
            with self.subTest(text=text):
                self.assert_finds(check_voice.check, "tools/a.py", text, f"tools/a.py:{line}: begin with ")

    def test_openings_are_found_in_docstrings(self):
        def function(text):
            return f'class A:\n    def f(self):\n        """{text}"""\n'

        for opening in ("What", "Of", "Whether", "As", "The same"):
            for text, line in ((f'"""{opening} it is."""\n', 1), (f'class A:\n    """{opening} it is."""\n', 2),
                               (function(f"{opening} it is."), 3), (function(f"Sums it. {opening} it is."), 3),
                               (function(f"Sums it.\n\n        {opening} it is.\n        "), 5),
                               (function(f"Sums.\n\n        name: a text\n        - {opening} it is\n        "), 6)):
                with self.subTest(text=text):
                    self.assert_finds(check_voice.check, "bindings/python/a.py", text,
                                      f'bindings/python/a.py:{line}: begin with a subject or a verb, not with "{opening}"')
        self.assert_clean(check_voice.check, {"bench/a.py": function("Says `What it is`. Is it so?\n\n        ```\n        Of it.\n        ```\n        ")})

    def test_openings_are_found_in_stubs(self):
        self.assert_finds(check_voice.check, "bindings/python/a.pyi", 'class A:\n    """What it is."""\n', "bindings/python/a.pyi:2: ")

    def test_long_lines_of_each_markdown_file_are_found(self):
        long = "x" * 121
        for path in ("src/quire/kv/README.md", "README.md", "SECURITY.md", "docs/a.md", "docs/adr/0001-a.md", "bench/journal/a.md"):
            with self.subTest(path=path):
                self.assert_finds(check_voice.check, path, f"a\n{long}\n", f"{path}:2: 121 characters")
        self.assert_clean(check_voice.check, {"README.md": f"| {long} |\n\n```\n{long}\n```\n\n[a]({long}) `{long}`\n",
                                              "docs/samples/a.md": long, "tests/python/data/a.md": long, "build/a.md": long})

    def test_more_than_25_words_are_found_in_pages(self):
        for path in ("README.md", "CONTRIBUTING.md", "docs/a.md", "docs/adr/0001-a.md", "src/quire/kv/README.md", "bench/README.md"):
            for text, line in ((f"{LONG}.\n", 1), (f"Short.\n\nShort. {LONG}.\n", 3), (f"Short.\n- {LONG}\n", 2), (f"- a\n\n  {LONG}\n", 3),
                               (f"{LONG[:60]}\n{LONG[61:]}\n", 1), (f"**{LONG}**: a\n", 1), (f"{LONG}: a.\n", 1), (f"a: {LONG}?\n", 1)):
                with self.subTest(path=path, text=text):
                    errors = check_voice.check(self.tree({path: text}))
                    self.assertEqual(len(errors), 1, errors)
                    self.assertRegex(errors[0], rf"^{path}:{line}: 2[67] words, at most 25 to a sentence")

    def test_25_words_tables_code_and_records_of_a_day_pass(self):
        for text in (f"{SHORT}.\n", f"{SHORT}. {SHORT}!\n{SHORT}? {SHORT}\n", f"- {SHORT}\n- {SHORT}\n", f"# {LONG}\n", f"| {LONG} |\n",
                     f"```\n{LONG}\n```\n", f"a\n\n    {LONG}\n", f"{SHORT}\n\n{SHORT}\n", f"[{SHORT}](a/b.md)\n"):
            with self.subTest(text=text):
                self.assert_clean(check_voice.check, {"docs/a.md": text})
        self.assert_clean(check_voice.check, dict.fromkeys(("CHANGELOG.md", "bench/journal/a.md", "docs/samples/a.md"), f"{LONG}\n"))

    def test_code_spans_numbers_and_formulas_count_by_their_words(self):
        for text, count in (("one `a + b` three", 3), ("1,000 of 2.5 KiB", 4), ("24 x 2 = 48", 4), ("a -> b - c + d", 4), ("[a b](c d e.md) f", 3),
                            ("f(x), e.g. (so)", 3), ("-- ... * ", 0)):
            with self.subTest(text=text):
                self.assertEqual(check_voice.words(text), count)

    def test_more_than_25_words_are_found_in_comments(self):
        for path in ("include/quire/a.h", "src/quire/kv/a.cc", "src/quire/kernels/cuda/a.cu", "apps/cli/a.h", "bindings/python/src/a.cc"):
            for text, line in ((f"// {LONG}.\n", 2), (f"// Short.\n// Short. {LONG}\n", 2), (f"int a;  // {LONG}\n", 2),
                               (f"// {LONG[:60]}\n// {LONG[61:]}\n", 2), (f"// Short:\n//   * {LONG}\n", 3), (f"//   a   b\n// {LONG}\n", 3)):
                with self.subTest(path=path, text=text):
                    self.assert_finds(check_voice.check, path, "#pragma once\n" + text, f"{path}:{line}: 26 words, at most 25 to a sentence")
        self.assert_clean(check_voice.check, {
            "include/quire/a.h": f"#pragma once\n// {SHORT}.\n// {SHORT}:\n//   1. {SHORT}\n//   - {SHORT}\n// \n//   a   {LONG}\n//       {LONG}\n",
            "tests/engine/a_test.cc": f"// {LONG}\n", "bench/a.cc": f"// {LONG}\n"})

    def test_more_than_25_words_are_found_in_docstrings(self):
        for text, line in ((f'"""{LONG}."""\n', 1), (f'def f(a):\n    """Sums.\n\n    a: {LONG}\n    """\n', 4), (f"# {LONG}\n", 1),
                           (f'def f(a):\n    """Sums.\n\n    a: one\n    {LONG}\n    """\n', 5)):
            with self.subTest(text=text):
                errors = check_voice.check(self.tree({"bindings/python/quire/a.py": text}))
                self.assertEqual(len(errors), 1, errors)
                self.assertRegex(errors[0], rf"^bindings/python/quire/a.py:{line}: 2[67] words, at most 25 to a sentence")
        self.assert_clean(check_voice.check, {
            "bindings/python/quire/a.py": f'def f(a, b):\n    """{SHORT}.\n\n    a: {SHORT[2:]}\n    b: {SHORT[2:]}\n    {SHORT}\n    """\n',
            "tools/a.py": f'"""{LONG}"""\n'})

    def test_words_cannot_be_waived(self):
        for line in ("docs/a.md | 1\n", "docs/a.md | 1 long sentences\n"):
            errors = check_voice.check(self.tree({"docs/a.md": f"{LONG}.\n", "tools/voice_waivers.txt": line}))
            self.assertTrue(any(error.startswith("docs/a.md:1: 26 words") for error in errors), errors)

    def test_count_of_long_lines_may_fall_and_not_rise(self):
        page = {"README.md": "x" * 121 + "\n"}
        self.assert_clean(check_voice.check, {**page, "tools/voice_waivers.txt": "README.md | 1 long lines\n"})
        self.assert_finds(check_voice.check, "tools/voice_waivers.txt", "README.md | 1 long lines\n",
                          "tools/voice_waivers.txt: README.md long lines has 0, not 1; run")

    def test_a_count_may_fall_and_not_rise(self):
        page = {"docs/a.md": "What it is. Of it.\n"}
        self.assert_clean(check_voice.check, {**page, "tools/voice_waivers.txt": "docs/a.md | 2\n"})
        errors = check_voice.check(self.tree({**page, "tools/voice_waivers.txt": "docs/a.md | 1\n"}))
        self.assertEqual(len(errors), 2)
        self.assertIn("(2 begin so, 1 are waived)", errors[0])
        self.assert_finds(check_voice.check, "tools/voice_waivers.txt", "docs/a.md | 1\n", "tools/voice_waivers.txt: docs/a.md has 0, not 1; run")
        for bad in ("docs/a.md 1\n", "docs/a.md | 0\n", "docs/a.md | many\n"):
            self.assert_finds(check_voice.check, "tools/voice_waivers.txt", bad, "tools/voice_waivers.txt:1: write `path | count`")

    def test_lowering_writes_lower_counts_and_raises_none(self):
        tree = self.tree({"docs/a.md": "What it is.\n", "docs/b.md": "Of it. Of it.\n", "docs/c.md": "Blocks.\n",
                          "tools/voice_waivers.txt": "# why\ndocs/a.md | 3\ndocs/b.md | 1\ndocs/c.md | 1\n"})
        check_voice.lower(tree)
        self.assertEqual((tree / "tools/voice_waivers.txt").read_text(), "# why\ndocs/a.md | 1\ndocs/b.md | 1\n")


SAMPLE = r"""
#define MACRO(x) \
  do { x; } while (0)
namespace quire {
template <class T = int>
Result<T> Foo<T>::get(int a = 3, std::map<int, int> m = {}) const noexcept {
  if (a) {
    f(1, 2, 3, 4, 5, 6, 7, 8);
  }
}
Foo::Foo(int a) : a_{a}, b_(2) {
  g();
}
const int kTable[] = {1, 2};
auto kLambda = [](int a) { return a; };
bool operator()(int a, int b) const { return a < b; }
bool operator==(const A& a, const A& b) { return "}" == '}'; }
struct Foo : Bar {
  Foo& operator=(Foo&&) noexcept = default;
  virtual void pure(int a, int b) = 0;
  std::function<void(int, int, int, int, int, int, int)> f_;
  int x = f(1, 2, 3, 4, 5, 6, 7);
  auto trailing(int a) -> std::vector<int> {
    return {};
  }
};
enum class E { kA, kB };
extern "C" int entry(const std::uint8_t* data, std::size_t size) {
}
TEST(A, B) {
}
}
"""


class Functions(unittest.TestCase):
    def test_every_form_of_function_is_found(self):
        found = [(f.name, f.line, f.lines, f.parameters) for f in cpp_functions.functions(source_text.code_only(SAMPLE))]
        self.assertEqual(found, [
            ("get", 5, 4, 2), ("Foo", 11, 2, 1), ("operator()", 16, 0, 2), ("operator==", 17, 0, 2), ("operator=", 19, 0, 1),
            ("pure", 20, 0, 2), ("trailing", 23, 2, 1), ("entry", 28, 1, 2), ("TEST", 30, 1, 2)])

    def test_functions_of_a_class_behind_a_label_are_found(self):
        code = "class A {\n public:\n  class B {\n   public:\n    B(int a);\n\n   private:\n    int f();\n  };\n  int g();\n};\n"
        self.assertEqual([(f.name, f.line) for f in cpp_functions.functions(code)], [("B", 5), ("f", 8), ("g", 10)])

    def test_literals_and_comments_are_no_code(self):
        text = 'a = "{ \\" }"; // {\nb = \'{\'; /* {\n{ */ c = R"x({\n)" {)x"; d = 1\'000\'000;\n'
        self.assertEqual(source_text.code_only(text), 'a = ""; \nb = \'\'; \n c = ""\n; d = 1\'000\'000;\n')


if __name__ == "__main__":
    unittest.main()
