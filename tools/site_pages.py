"""Which files of the tree are pages of the documentation site, and where. Standard library only."""

import pathlib
import posixpath
import re
from urllib.parse import unquote, urlsplit

import markdown_links
import public_names

ROOT = pathlib.Path(__file__).resolve().parents[1]
FIRST_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
AS_THEY_ARE = {".md", ".svg", ".png"}
LANGUAGES = {".h": "cpp", ".cc": "cpp", ".cu": "cuda", ".py": "python", ".toml": "toml", ".sh": "bash", ".yml": "yaml"}
CPP, PYTHON = "reference/cpp", "reference/python"


def page_of(path):
    """Returns the place in the site of a file or folder of the tree: its path, which is a page's."""
    if path == "include/quire" or path.startswith("include/quire/"):
        return f"{CPP}/{pathlib.Path(path).stem}.md"
    if path == "bindings/python/quire":
        return f"{PYTHON}/index.md"
    if (ROOT / path).is_dir():
        return posixpath.join(path, "README.md" if (ROOT / path / "README.md").exists() else "index.md")
    return path if pathlib.Path(path).suffix in AS_THEY_ARE else path + ".md"


def target(page, link):
    """Returns the path in the tree to which a relative link of a page leads, or None for other links."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))


def site_link(page, link):
    """Returns a link of a page as it must be in the site."""
    path = target(page, link)
    if path is None or page_of(path) == path:
        return link
    fragment = urlsplit(link).fragment
    return posixpath.relpath(page_of(path), posixpath.dirname(page) or ".") + (f"#{fragment}" if fragment else "")


def title_of(path):
    """Returns the heading of a page of the tree, or the name of another file."""
    heading = re.match(r"# (.*)", path.read_text()) if path.suffix == ".md" else None
    return heading[1] if heading else path.name


def text_of(path):
    """Returns the Markdown of the page that stands for a file or folder of the tree."""
    full = ROOT / path
    if full.is_dir():
        files = sorted(each for each in full.iterdir() if each.is_file() and not each.name.startswith("."))
        return f"# {path}\n\n" + "".join(f"* [{title_of(each)}]({each.name})\n" for each in files)
    if full.suffix == ".md":
        return full.read_text()
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n``````{LANGUAGES.get(full.suffix, 'text')}\n{full.read_text()}\n``````\n"


def tree_pages():
    """Returns {place in the site: path in the tree} of all that is reached by links from FIRST_PAGES and docs."""
    found, waiting = {}, [*FIRST_PAGES, *(str(each.relative_to(ROOT)) for each in sorted((ROOT / "docs").rglob("*.md")))]
    while waiting:
        path = waiting.pop()
        place = page_of(path)
        if place in found or place.startswith((CPP, PYTHON)) or not (ROOT / path).exists():
            continue
        found[place] = path
        if (ROOT / path).is_dir() or path.endswith(".md"):
            waiting += filter(None, (target(place, link) for link in markdown_links.relative_links(text_of(path))))
    return found


def python_pages():
    """Returns {place in the site: Markdown} of the Python reference: a page for each file that the package exports from."""
    pages, index = {}, ["# Python reference", "", "Every public name of the package `quire`, by the file that has it.", ""]
    for module, names in public_names.python_exports(ROOT).items():
        stem = module.strip("_")
        title = ", ".join(f"`{name}`" for name in names) if len(names) < 4 else stem.capitalize()
        also = [f"{module}.{name}" for name in public_names.ALSO.get(module, ())]
        pages[f"{PYTHON}/{stem}.md"] = "\n\n".join([f"# {title}", *(f"::: quire.{name}" for name in [*names, *also])]) + "\n"
        index.append(f"* [{stem}]({stem}.md): {', '.join(f'`{name}`' for name in names)}")
    return {f"{PYTHON}/index.md": "\n".join(index) + "\n", **pages}
