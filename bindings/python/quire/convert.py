"""Arguments as callers give them, and as the library takes them; errors name the argument."""

from __future__ import annotations

import array
import json
import os
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from . import _quire
from .errors import KindError
from .hub import find_model

_LARGE = 2**31  # from here on a number may be too large for what takes it


def to_ids(ids: Any, what: str, kind: str = "token ids") -> list[int]:
    """Returns ids as a list of ints, from any sequence or array of them. KindError naming `what`, ValueError for one out of
    range."""
    if isinstance(ids, (str, bytes, bytearray, Mapping, set)):  # some iterate over integers, but mean no ids
        raise KindError(f"{what} must be a list of {kind}, not {type(ids).__name__}")
    try:
        listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        taken = array.array("i", listed).tolist()
    except TypeError as error:
        raise KindError(f"{what} must be a list of {kind}: {error}") from None
    except OverflowError as error:
        raise ValueError(f"{what} must be a list of {kind}: {error}") from None
    if bool in set(map(type, listed)):
        raise KindError(f"{what} must be a list of {kind}, not of bools")
    return taken


def to_list(given: Any, what: str, kind: str) -> list[Any]:
    """Returns a list of any things but a text or a dict; TypeError naming `what`."""
    if isinstance(given, (str, bytes, bytearray, Mapping)) or not isinstance(given, Iterable):
        raise TypeError(f"{what} must be a list of {kind}, not {reprlib.repr(given)}")
    return list(given)


def to_flag(value: Any, what: str) -> bool:
    """Returns True or False, from a bool, 0 or 1. TypeError naming `what` for all else, which Python would call true or
    false."""
    if isinstance(value, (bool, np.bool_)) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{what} must be True or False, not {reprlib.repr(value)}")


def to_text(text: str, what: str = "text") -> str:
    """Returns `text` with lone surrogates, which UTF-8 cannot hold, replaced; TypeError naming `what`."""
    if not isinstance(text, str):
        raise TypeError(f"{what} must be a str, not {type(text).__name__}")
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _refuse_keys(value: Any) -> None:
    """Raises the TypeError for a key that JSON would make a text of."""
    if isinstance(value, Mapping):
        for key, held in value.items():
            if not isinstance(key, str):
                raise TypeError(f"keys are str, not {reprlib.repr(key)}")
            _refuse_keys(held)
    elif isinstance(value, (list, tuple)):
        for held in value:
            _refuse_keys(held)


def to_json(value: Any, what: str) -> str:
    """Writes `value` as JSON; its texts as by to_text. TypeError or ValueError naming `what`."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)  # this refuses what holds itself
        _refuse_keys(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from None
    return to_text(text)


def to_choice(value: Any, what: str, choices: Collection[str]) -> str:
    """Returns `value`, one of some words. ValueError naming `what` and the words, KindError for no text."""
    if isinstance(value, str) and value in choices:
        return value
    error = ValueError if isinstance(value, str) else KindError
    raise error(f"{what} must be one of {', '.join(map(repr, choices))}, not {reprlib.repr(value)}")


def to_compression(value: bool | str, what: str) -> str:
    """Returns "", "zstd" or "lz4". True is zstd."""
    if isinstance(value, str):
        return to_choice(value, what, ("zstd", "lz4"))
    return "zstd" if to_flag(value, what) else ""


def to_bytes(size: int | str | None, what: str) -> int:
    """Returns bytes as a number, from a number or a text as "10GiB"; None: 0, no limit. ValueError naming `what`."""
    if not isinstance(size, str):
        _refuse_bool(what, size)
        return 0 if size is None else size
    try:
        return _quire.parse_bytes(to_text(size))
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def to_path(path: str | os.PathLike[str], what: str = "path") -> bytes:
    """Returns `path` as the system takes it; TypeError naming `what`."""
    try:
        encoded = os.fsencode(path)
    except TypeError:
        raise TypeError(f"{what} must be a str or an os.PathLike, not {type(path).__name__}") from None
    if not encoded:
        raise ValueError("an empty path names no file or folder")
    if b"\0" in encoded:
        raise ValueError(f"a path holds no null characters, unlike {path!r}")
    return encoded


def to_model(model: str | os.PathLike[str]) -> bytes:
    """Returns the path or preset of a model. Looks "owner/name" up in the local Hugging Face cache."""
    named = isinstance(model, (str, os.PathLike)) and isinstance(os.fspath(model), str)
    return to_path(find_model(os.fspath(model)) if named else model, "model")


def _refuse_bool(name: str, value: Any) -> None:
    """Raises the TypeError for a bool in place of a number or a text. To Python it is an integer, to a caller it is none."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} cannot be {bool(value)}")


def _pass(name: str, value: Any, take: Callable[[Any], Any]) -> Any:
    """Returns the argument as the library takes it; ValueError for a number that does not fit, KindError for another
    kind of thing."""
    _refuse_bool(name, value)
    try:
        return take(value)
    except TypeError:
        is_out_of_range = isinstance(value, int) and not 0 <= value < _LARGE
        kind = ValueError if is_out_of_range else KindError
        raise kind(f"{name} cannot be {value!r}") from None


def _set(options: Any, name: str, value: Any, field: str | None = None) -> None:
    """Sets an option that is no flag, with the errors of _pass."""
    _pass(name, value, lambda value: setattr(options, field or name, value))


def _set_flag(options: Any, name: str, value: Any) -> None:
    """Sets an option that is a flag, with the errors of to_flag."""
    setattr(options, name, to_flag(value, name))


def _callback(function: Any, what: str) -> Any:
    """Returns a function or None; TypeError naming `what` for anything else."""
    if function is not None and not callable(function):
        raise TypeError(f"{what} must be a function, not {function!r}")
    return function
