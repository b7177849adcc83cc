"""Hook of MkDocs (mkdocs.yml): brings in the pages of the site, which site_pages.py names, and keeps their links right.

docs, README.md and what Markdown links to keep their paths in the site. A source that a page links to becomes a page with its
text, a folder one with its names, a public header its page of the reference, which tools/build_site.py has made.
"""

import pathlib
import sys

from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import markdown_links  # noqa: E402
import site_pages  # noqa: E402

# Material's script would fetch two scripts: for browsers before 2020, and for diagrams, which no page has.
ELSEWHERE = "https://unpkg.com/"
HERE = "assets/javascripts/"
STYLE = "assets/site.css"


class Links(Treeprocessor):
    """Turns links to files of the tree into links to their pages, before MkDocs looks at the links."""

    page = ""  # Whose Markdown is converted now

    def run(self, root):
        for element in root.iter():
            for attribute in ("href", "src"):
                if element.get(attribute):
                    element.set(attribute, site_pages.site_link(self.page, element.get(attribute)))


class LinksExtension(Extension):
    def extendMarkdown(self, md):
        md.treeprocessors.register(Links(md), "tree_links", 5)


def made_pages():
    """Returns {place in the site: Markdown} of the reference."""
    cpp = sorted((ROOT / "build/docs/cpp").glob("*.md"), key=lambda page: (page.stem != "quire", page.stem))
    return {**site_pages.python_pages(), **{f"{site_pages.CPP}/{page.name}": page.read_text() for page in cpp}}


def expanded(nav, pages):
    """Returns the navigation with the pages below a folder in place of the folder."""
    if isinstance(nav, list):
        return [expanded(each, pages) for each in nav]
    if isinstance(nav, dict):
        return {title: expanded(each, pages) for title, each in nav.items()}
    below = sorted((page for page in pages if page.startswith(nav)), key=lambda page: not page.endswith("/index.md"))
    return [{"All": page} if page.endswith("/index.md") else page for page in below] if nav.endswith("/") else nav


def on_config(config):
    config.markdown_extensions.append(LinksExtension())
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda text, separator: markdown_links.anchor(text)
    config.nav = expanded(config.nav, [*made_pages(), *sorted(site_pages.tree_pages())])
    return config


def on_files(files, config):
    pages = Files([File.generated(config, STYLE, abs_src_path=str(ROOT / "tools/site.css"))])
    for place, path in site_pages.tree_pages().items():
        if pathlib.Path(path).suffix in site_pages.AS_THEY_ARE:
            pages.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
        else:
            pages.append(File.generated(config, place, content=site_pages.text_of(path)))
    for place, text in made_pages().items():
        pages.append(File.generated(config, place, content=text))
    for file in files:
        if not file.abs_src_path or not pathlib.Path(file.abs_src_path).is_relative_to(ROOT / "docs"):
            pages.append(file)  # of the theme
    return pages


def on_page_markdown(markdown, page, config, files):
    Links.page = page.file.src_uri
    return markdown


def on_post_build(config):
    for script in (pathlib.Path(config.site_dir) / HERE).glob("*.js"):
        script.write_text(script.read_text().replace(ELSEWHERE, HERE))
