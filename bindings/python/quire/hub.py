"""Names of Hugging Face models, found in the local cache. Nothing is downloaded."""

from __future__ import annotations

import errno
import os
import pathlib
import re

_FILES = (".gguf", ".safetensors")  # no name of a model ends so
_NAME = re.compile(r"(?![.-])(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(@(?P<revision>[\w./-]+))?")


def cache_folder() -> pathlib.Path:
    """Returns the folder in which huggingface_hub keeps its downloads."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return pathlib.Path(os.environ[variable]).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    return pathlib.Path(home).expanduser() / "hub"


def _snapshot(repository: pathlib.Path, revision: str) -> pathlib.Path | None:
    """Returns the folder of a revision: a branch, a tag or a commit."""
    reference = repository / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    folder = repository / "snapshots" / commit
    return folder if folder.is_dir() else None


def find_model(model: str) -> str:
    """Returns `model` itself where it is a path or a preset; else the folder of "owner/name" or "owner/name@revision" in
    the cache.

    FileNotFoundError for a name that is neither. A path that leads nowhere is the library's to refuse, in the same way.
    """
    named = _NAME.fullmatch(model)
    if named is None or os.path.exists(model) or model.lower().endswith(_FILES):
        return model
    cache = cache_folder()
    repository = cache / f"models--{named['owner']}--{named['name']}"
    found = _snapshot(repository, named["revision"] or "main")
    if found is not None:
        return str(found)
    what = f"revision {named['revision'] or 'main'!r} of it" if repository.is_dir() else "model of that name"
    fetch = f"hf download {named['owner']}/{named['name']}"
    error = FileNotFoundError(f'no model at "{model}": no such path, and no {what} in {cache}; "{fetch}" fetches it')
    error.errno = errno.ENOENT
    raise error
