"""The documentation site, without building it: its pages and links, the pages of the C++ reference, and the list of public names.

`make docs` builds the site and compares it with that list. Standard library only.
"""
import ast
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_site  # noqa: E402
import cpp_reference  # noqa: E402
import doxygen_filter  # noqa: E402
import doxygen_xml  # noqa: E402
import public_names  # noqa: E402
import site_pages  # noqa: E402

with mock.patch.dict(sys.modules, {"griffe": mock.Mock(Extension=object)}):
    import site_docstrings

HEADER = """\
// Things.
// More of them.
#pragma once

#define QUIRE_SIZE 3
#define QUIRE_TWICE(x) \\
  do {                 \\
    f(x), f(x);        \\
  } while (false)

namespace quire {

// On both functions.

// Makes one.
[[nodiscard]] QUIRE_API Result<std::pair<int, int>> make(const std::string& name = {}, int count = 1);
template <class T>
inline int make(T value) {
  return value.size() > 1 ? 2 : 1;
}

enum class Kind : std::uint8_t { kOne, kTwo = 2 };

// Holds.
class QUIRE_API Holder : public Base {
 public:
  using Base::Base;
  // Opens it.
  explicit Holder(int limit = limits::max()) : limit_(limit) {}
  Holder(const Holder&) = delete;
  ~Holder();
  struct Part {
    std::string first = {}, second = {};
    std::function<void(int share)> progress = {};
  };
  friend bool operator==(Holder, Holder) = default;

  // For the library itself.
  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  void hidden();
  int limit_;
};

template <class T>
inline constexpr int kCode = -1;
template <>
inline constexpr int kCode<float> = 1;
template <class T>
concept Element = kCode<T> >= 0;
using Name = std::map<int, std::vector<int>>;

}  // namespace quire
"""

XML = """<doxygen><compounddef kind="{kind}"><compoundname>{name}</compoundname>{inside}
<detaileddescription><para><verbatim>{text}</verbatim></para></detaileddescription>
<location file="quire/a.h" line="{line}"/></compounddef></doxygen>"""
FUNCTION = """<memberdef kind="function" prot="{prot}" static="yes"><type>Result&lt; int &gt;</type><name>{name}</name>
<argsstring>(const std::string &amp;a, T *b=nullptr) const</argsstring>
<detaileddescription><para><verbatim>{text}</verbatim></para></detaileddescription><location file="quire/a.h" line="{line}"/></memberdef>"""


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


class NamesTest(unittest.TestCase):
    def test_public_names_of_a_header_are_found_without_a_compiler(self):
        wanted = {"QUIRE_SIZE", "QUIRE_TWICE", "make", "Kind", "Kind::kOne", "Kind::kTwo", "Holder", "Holder::Holder", "Holder::Part",
                  "Holder::Part::first", "Holder::Part::second", "Holder::Part::progress", "kCode", "Element", "Name"}
        self.assertEqual(public_names.cpp_names(HEADER), wanted)

    def test_every_public_header_and_the_package_have_names(self):
        for header in (ROOT / "include/quire").glob("*.h"):
            with self.subTest(header=header.name):
                self.assertTrue(header.name == "quire.h" or public_names.cpp_names(header.read_text()))
        found = public_names.python_members(ROOT)
        self.assertLessEqual({"quire.LLM", "quire.LLM.generate", "quire.SamplingParams.top_p", "quire.Delta.text", "quire.inspect"}, found)

    def test_the_stub_describes_sampling_parameters_in_the_words_of_the_header(self):
        stub = ast.parse((ROOT / "bindings/python/quire/_quire.pyi").read_text())
        params = next(each for each in stub.body if isinstance(each, ast.ClassDef) and each.name == "SamplingParams")
        header = " ".join(re.sub(r"^ *// ?", "", (ROOT / "include/quire/sampling.h").read_text(), flags=re.M).split())
        fields = [each for each in params.body if isinstance(each, ast.FunctionDef)
                  and any(getattr(decorator, "id", "") == "property" for decorator in each.decorator_list)]
        self.assertGreaterEqual(len(fields), 14)
        for field in fields:
            with self.subTest(field=field.name):
                self.assertIn(" ".join(ast.get_docstring(field).split()), header)


class FilterTest(unittest.TestCase):
    def test_comments_become_verbatim_and_lines_keep_their_numbers(self):
        text = doxygen_filter.filtered(HEADER)
        self.assertIn("/// \\verbatim Things.\n/// More of them. \\endverbatim\n/// \\file\n", text)
        self.assertIn("/// \\verbatim On both functions.\n/// -----\n/// Makes one. \\endverbatim\n[[nodiscard]]", text)
        self.assertIn("private:\n  struct Impl;", text)
        for header in (ROOT / "include/quire").glob("*.h"):
            lines = header.read_text().splitlines()
            self.assertEqual(len(lines), len(doxygen_filter.filtered(header.read_text()).splitlines()), header.name)

    def test_a_comment_on_nothing_and_one_for_tools_say_nothing(self):
        self.assertEqual(doxygen_filter.filtered("#pragma once\n// A.\n\nint x;\n// NOLINTBEGIN(a)\nint y;\n"),
                         "#pragma once\n\n\nint x;\n// NOLINTBEGIN(a)\nint y;\n")


class ReferenceTest(Folder):
    def page(self):
        member = FUNCTION.format(name="open", prot="public", line=9,
                                 text="Opens a_b, [x], as Owner::open() does. See docs/memory.md.\n/// Errors:\n/// * `kOne`: one\n///   more. Python: XError.")
        shares = FUNCTION.format(name="shut", prot="public", line=10, text="")
        hidden = FUNCTION.format(name="hidden", prot="private", line=11, text="No.")
        self.write("a.xml", XML.format(kind="file", name="a.h", inside="", text="The file.", line=1))
        inside = member + shares + hidden
        self.write("b.xml", XML.format(kind="class", name="quire::Owner", inside=inside, text="Section.\n/// -----\n/// Owns.", line=8))
        return cpp_reference.Pages(*doxygen_xml.read(self.path)).page("a.h")

    def test_a_page_has_the_names_of_its_header_with_declaration_comment_and_anchor(self):
        page = self.page()
        self.assertTrue(page.startswith("# a.h\n\n\nThe file.\n"))
        self.assertIn("\nSection.\n", page)
        self.assertIn("## `Owner` { #Owner }\n\n```cpp\nclass Owner;\n```\n\nOwns.\n", page)
        self.assertNotIn("hidden", page)
        self.assertIn("static Result<int> open(const std::string& a, T* b = nullptr) const;\n", page)

    def test_a_name_without_a_comment_right_below_its_like_shares_heading_and_comment(self):
        self.assertIn('<a id="Owner::shut"></a>\n\n### `open, shut` { #Owner::open }\n', self.page())

    def test_comments_become_markdown_with_links_code_and_lists(self):
        prose = "Opens `a_b`, \\[x], as `Owner::open()` does. See [memory.md](../../docs/memory.md)."
        self.assertIn(f"{prose}\n\nErrors:\n\n* `kOne`: one\n  more. Python: [`XError`](../python/errors.md#quire.XError).", self.page())

    def test_long_declarations_have_one_parameter_a_line(self):
        found = doxygen_xml.wrapped("Status " + "f" * 80, "(std::map<int, int> a, int b = f(1, 2)) const")
        self.assertEqual(found.splitlines()[1:], ["    std::map<int, int> a,", "    int b = f(1, 2)) const"])


class DocstringTest(unittest.TestCase):
    def test_lines_and_sentences_on_parameters_become_a_list(self):
        text = "Does it. `a`: first\none; `b`:\nsecond. `x`: no parameter.\n\nc, d: both\n    of them\nThe end."
        self.assertEqual(site_docstrings.as_markdown(text, {"a", "b", "c", "d"}).splitlines(), [
            "Does it.", "", "* `a`: first", "    one;", "* `b`: ", "    second. `x`: no parameter.", "", "* `c`, `d`: both", "    of them", "",
            "The end."])

    def test_lines_behind_a_colon_become_a_list_and_prose_stays(self):
        self.assertEqual(site_docstrings.as_markdown("These keywords:\nmode: one\nof: two\n", set()),
                         "These keywords:\n\n* `mode`: one\n* `of`: two")
        self.assertEqual(site_docstrings.as_markdown("One\nthing: prose", set()), "One\nthing: prose")


class PagesTest(unittest.TestCase):
    def test_links_lead_to_the_pages_of_sources_folders_and_headers(self):
        for page, link, wanted in (
                ("docs/memory.md", "gpu.md#a", "gpu.md#a"), ("docs/memory.md", "https://a.b/c.h", "https://a.b/c.h"),
                ("docs/memory.md", "#a", "#a"), ("docs/memory.md", "../README.md#a", "../README.md#a"),
                ("docs/cpp.md", "../include/quire/llm.h", "../reference/cpp/llm.md"), ("docs/README.md", "adr", "adr/index.md"),
                ("docs/README.md", "../bindings/python/quire", "../reference/python/index.md"),
                ("docs/memory.md", "../src/quire/kv", "../src/quire/kv/README.md"), ("README.md", "tools/layers.toml", "tools/layers.toml.md")):
            self.assertEqual(site_pages.site_link(page, link), wanted)

    def test_all_that_pages_link_to_is_in_the_site(self):
        pages = site_pages.tree_pages()
        for place in ("README.md", "docs/architecture.svg", "docs/adr/index.md", "src/quire/kv/README.md", "tools/layers.toml.md"):
            self.assertIn(place, pages)

    def test_the_navigation_has_every_guide(self):
        listed = set(re.findall(r": (docs/[\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
        self.assertEqual(listed, {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")})

    def test_the_python_reference_has_a_place_for_every_name(self):
        text = "".join(site_pages.python_pages().values())
        for names in public_names.python_exports(ROOT).values():
            for name in names:
                self.assertIn(f"\n::: quire.{name}\n", text)


class CheckTest(Folder):
    def errors(self, **files):
        for name, text in files.items():
            self.write(name.replace("__", "/") + ".html", text)
        places = {str(path.relative_to(self.path)) for path in self.path.rglob("*.html")}
        return check_site.broken_links({place: check_site.Page((self.path / place).read_text()) for place in places}, places)

    def test_links_to_pages_and_headings_that_are_there_are_right(self):
        self.assertEqual(self.errors(a='<h1 id="x">A</h1><a href="b/c.html#y%3A">', b__c='<p id=y:><a class="k" href="../a.html#x">'), [])

    def test_a_lost_page_a_lost_heading_and_what_comes_from_elsewhere_are_found(self):
        self.assertEqual(self.errors(a='<a href="b.html"><a href="#x"><a href="https://a.b"><script src="https://a.b/c.js"></script>'), [
            "a.html: leads to no heading: #x", "a.html: leads to no file: b.html", "a.html: fetches https://a.b/c.js"])

    def test_a_name_that_the_reference_lacks_is_found(self):
        pages = {"reference/python/llm.html": check_site.Page('<h2 id="quire.LLM">')}
        errors = check_site.missing_names(pages, ROOT)
        self.assertNotIn("the Python reference has no quire.LLM", errors)
        self.assertIn("the Python reference has no quire.LLM.generate", errors)
        self.assertIn("reference/cpp/llm.html has no LLM::open", errors)


if __name__ == "__main__":
    unittest.main()
