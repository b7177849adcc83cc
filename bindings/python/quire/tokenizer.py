"""The model's tokenizer and chat template."""

from __future__ import annotations

import array
import json
import numbers
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal, overload

from . import _quire
from .outputs import Record


def to_ids(ids: Any, what: str, kind: str = "token ids") -> list[int]:
    """Ids as a list of ints, from any sequence or array of them; ValueError naming `what`."""
    if isinstance(ids, (str, bytes, bytearray, dict, set, Record)):  # some iterate over integers, but mean no ids
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


class Tokenizer:
    """Immutable; any number of threads may call it. It outlives the LLM that it came from."""

    def __init__(self, handle: _quire.Tokenizer) -> None:
        self._handle = handle

    @classmethod
    def open(cls, model: str | os.PathLike[str]) -> Tokenizer:
        """The tokenizer of a model folder or GGUF file, without its weights."""
        return cls(_quire.Tokenizer.open(to_path(model)))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of the text, with the special tokens that the model puts around it (`add_special_tokens=False`: without)."""
        return self._handle.encode(to_text(text), bool(add_special_tokens))

    def decode(self, ids: Iterable[int] | int, skip_special_tokens: bool = True) -> str:
        """Text of the ids, or of one; bytes that are no whole character become U+FFFD."""
        several = [ids] if isinstance(ids, numbers.Integral) else ids
        return self._handle.decode(to_ids(several, "ids"), bool(skip_special_tokens))

    @overload
    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        tokenize: Literal[True] = True,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self, messages: list[dict[str, Any]], tokenize: Literal[False], add_generation_prompt: bool = True, **variables: Any
    ) -> str: ...

    def apply_chat_template(
        self, messages: list[dict[str, Any]], tokenize: bool = True, add_generation_prompt: bool = True, **variables: Any
    ) -> list[int] | str:
        """Ids, or the prompt's text with `tokenize=False`. Text of messages never becomes a special token."""
        call = self._handle.apply_chat_template if tokenize else self._handle.render_chat_template
        return call(to_json(messages), bool(add_generation_prompt), to_json(variables))

    def id_to_token(self, token_id: int) -> str:
        """The token as the vocabulary writes it; ValueError for an id that it does not have."""
        return _pass("token_id", token_id, self._handle.id_to_token)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary writes it; None where there is none."""
        return self._handle.token_to_id(to_text(token, "token"))

    @property
    def has_chat_template(self) -> bool:
        """Whether the model brings one; without it apply_chat_template fails."""
        return self._handle.has_chat_template()

    @property
    def vocab_size(self) -> int:
        """Highest id + 1."""
        return self._handle.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text; None where the model has none."""
        return self._handle.bos_token_id

    @property
    def leading_bos_token_id(self) -> int | None:
        """The same if prompts begin with it: as the chat template writes them, without one as encode()."""
        return self._handle.leading_bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends an answer; None where the model has none."""
        return self._handle.eos_token_id

    @property
    def pad_token_id(self) -> int | None:
        """The token that fills up batches elsewhere; None where the model has none."""
        return self._handle.pad_token_id

    @property
    def unk_token_id(self) -> int | None:
        """The token for what the vocabulary cannot write; None where the model has none."""
        return self._handle.unk_token_id
