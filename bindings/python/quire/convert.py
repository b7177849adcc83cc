"""Arguments as callers give them, and as the library takes them; errors name the argument."""

from __future__ import annotations

import array
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from . import _quire
from .hub import find_model


def to_ids(ids: Any, what: str, kind: str = "token ids") -> list[int]:
    """Ids as a list of ints, from any sequence or array of them; ValueError naming `what`."""
    if isinstance(ids, (str, bytes, bytearray, Mapping, set)):  # some iterate over integers, but mean no ids
        raise ValueError(f"{what} must be a list of {kind}, not {type(ids).__name__}")
    try:
        return array.array("i", ids.tolist() if hasattr(ids, "tolist") else ids).tolist()
    except (TypeError, OverflowError) as error:
        raise ValueError(f"{what} must be a list of {kind}: {error}") from None


def to_text(text: str, what: str = "text") -> str:
    """`text` with lone surrogates, which UTF-8 cannot hold, replaced; TypeError naming `what`."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def to_json(value: Any, **options: Any) -> str:
    """`value` as JSON; its texts as by to_text."""
    return to_text(json.dumps(value, ensure_ascii=False, **options))


def to_bytes(size: int | str | None, what: str) -> int:
    """Bytes as a number, from a number or a text as "10GiB"; None: 0, no limit. ValueError naming `what`."""
    if not isinstance(size, str):
        return 0 if size is None else size
    try:
        return _quire.parse_bytes(to_text(size))
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def to_path(path: str | os.PathLike[str]) -> bytes:
    """`path` as the system takes it."""
    encoded = os.fsencode(path)
    if not encoded:
        raise ValueError("an empty path names no file or folder")
    if b"\0" in encoded:
        raise ValueError(f"a path holds no null characters, unlike {path!r}")
    return encoded


def to_model(model: str | os.PathLike[str]) -> bytes:
    """The path or preset of a model; "owner/name" is looked up in the local Hugging Face cache."""
    return to_path(find_model(os.fspath(model)) if isinstance(os.fspath(model), str) else model)


def _pass(name: str, value: Any, take: Callable[[Any], Any]) -> Any:
    """What the library makes of an argument; ValueError for a number that does not fit, TypeError for another kind of
    thing."""
    try:
        return take(value)
    except TypeError:
        kind = ValueError if isinstance(value, (int, float)) else TypeError
        raise kind(f"{name} cannot be {value!r}") from None


def _set(options: Any, name: str, value: Any, field: str | None = None) -> None:
    """Sets an option, with the errors of _pass."""
    _pass(name, value, lambda value: setattr(options, field or name, value))


def _callback(function: Any, what: str) -> Any:
    """A function or None; TypeError naming `what` for anything else."""
    if function is not None and not callable(function):
        raise TypeError(f"{what} must be a function, not {function!r}")
    return function
