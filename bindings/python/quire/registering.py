"""Checks what registering takes for a chunk, wraps its text, and reports on it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from . import _quire
from .composing import ChunkType, type_name
from .convert import _set, _set_flag, to_json
from .errors import ClosedError, KindError
from .outputs import Fields
from .prompts import Prompt, prompt_of
from .session import to_salt

PREVIEW_CHARACTERS = 60

KEEP = object()  # a field that an update leaves alone


class RegisteredChunk(NamedTuple):
    """Result of register_chunk: the chunk's id, whether it was new, and how many tokens were computed for it."""

    chunk_id: str
    created: bool  # neither registered nor in the store before
    tokens_computed: int


def json_of(fields: Mapping[str, Any] | None, what: str = "metadata") -> str:
    """Returns metadata as JSON; an error naming `what` where it is none."""
    if not isinstance(fields, (Mapping, type(None))):
        raise KindError(f"{what} must be a dict, not {reprlib.repr(fields)}")
    return to_json({} if fields is None else fields, what)


def affixes_of(chunk_format: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns prefix and suffix of a system chunk, a context and a query, in this order."""
    kinds = ("system", "context", "query")
    if not isinstance(chunk_format, Mapping):
        raise TypeError(f"chunk_format is a dict, not a {type(chunk_format).__name__}")
    unknown = [kind for kind in chunk_format if kind not in kinds]
    if unknown:
        raise ValueError(f"chunk_format has the keys 'system', 'context' and 'query', not {unknown[0]!r}")
    pairs = [chunk_format.get(kind, ("", "")) for kind in kinds]
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or [type(affix) for affix in pair] != [str, str]:
            raise ValueError(f"chunk_format wants (prefix, suffix) for each kind of chunk, not {pair!r}")
    return [affix for pair in pairs for affix in pair]


def _anchor_of(anchor: str | Sequence[str] | None) -> str | None:
    """Returns an anchor as the engine takes it: ids of several chunks become one text."""
    if not isinstance(anchor, (list, tuple)):
        return anchor
    for each in anchor:
        if not isinstance(each, str):
            raise KindError(f"anchor must be the id of a chunk or a list of ids, not of {type(each).__name__}")
    return "+".join(anchor)


def content_of(
    content: Prompt,
    chunk_type: ChunkType | str,
    metadata: Mapping[str, Any] | None = None,
    *,
    ttl_seconds: float | None = None,
    pinned: bool = False,
    priority: int = 0,
    anchor: str | Sequence[str] | None = None,
    salt: str | None = None,
    kv_dtype: str | None = None,
    keep_hidden: int | None = None,
    **unknown: Any,
) -> _quire.ChunkContent:
    """Returns one chunk as the engine takes it; the arguments are those of register_chunk."""
    if unknown:
        raise TypeError(f"{next(iter(unknown))!r} is no argument of register_chunk; help(quire.ChunkedLLM) lists them")
    options = _quire.ChunkOptions()
    options.metadata = json_of(metadata)
    _set(options, "ttl_seconds", ttl_seconds)
    _set_flag(options, "pinned", pinned)
    _set(options, "priority", priority)
    _set(options, "anchor", _anchor_of(anchor))
    options.salt = to_salt(salt)
    if isinstance(kv_dtype, str) and not kv_dtype:
        raise ValueError('kv_dtype "" names no format; None stands for that of the pool')
    if kv_dtype is not None:
        _set(options, "kv_dtype", kv_dtype)
    if keep_hidden is not None:
        _set(options, "keep_hidden", keep_hidden)
    return _quire.ChunkContent(prompt_of(content, "content"), type_name(chunk_type), options)


def listed_content(chunk: Mapping[str, Any] | Sequence[Any], salt: str | None) -> _quire.ChunkContent:
    """Returns one chunk of register_chunks; `salt` is its tenant unless it names one."""
    if isinstance(chunk, (tuple, list)) and 2 <= len(chunk) <= 3:
        return content_of(*chunk, salt=salt)
    if not isinstance(chunk, Mapping):
        wanted = "a dict of register_chunk's arguments, or a tuple (content, chunk_type, metadata)"
        raise TypeError(f"a chunk is {wanted}, not {reprlib.repr(chunk)}")
    for name in ("content", "chunk_type"):
        if name not in chunk:
            raise TypeError(f"a chunk has content and chunk_type; {name} is missing in {reprlib.repr(dict(chunk))}")
    return content_of(**{"salt": salt, **chunk})


def update_of(
    metadata: Mapping[str, Any] | None,
    ttl_seconds: float | None | object,
    pinned: bool | None,
    priority: int | None,
    kv_dtype: str | None,
) -> _quire.ChunkUpdate:
    """Returns what update_chunk changes."""
    update = _quire.ChunkUpdate()
    if metadata is not None:
        update.metadata = json_of(metadata)
    if ttl_seconds is not KEEP:
        _set(update, "ttl_seconds", ttl_seconds)
    if pinned is not None:
        _set_flag(update, "pinned", pinned)
    if priority is not None:
        _set(update, "priority", priority)
    if kv_dtype is not None:
        _set(update, "kv_dtype", kv_dtype)
    return update


def chunk_fields(info: dict[str, Any]) -> Fields:
    """Returns a chunk that the library describes, with its metadata read."""
    return Fields(info, metadata=json.loads(info["metadata"]))


def listed_chunk(info: dict[str, Any]) -> Fields:
    """Returns the description of a chunk in a list: a beginning of its content, and no ids."""
    chunk = chunk_fields(info)
    del chunk["token_ids"]
    content = chunk.pop("content")
    preview = content if len(content) <= PREVIEW_CHARACTERS else content[:PREVIEW_CHARACTERS] + "..."
    return Fields(chunk, content_preview=preview)


class ClosedRegistry:
    """In place of a registry that was closed over an LLM that stays open."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ClosedError("the registry is closed; the LLM that it was made over is not")
