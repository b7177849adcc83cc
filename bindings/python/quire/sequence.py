"""Sequences as state, handles on cached tokens, and what direct inference runs."""

from __future__ import annotations

import collections.abc
import dataclasses
import operator
import os
from collections.abc import Iterable, Mapping, Set
from typing import Any, Unpack

import numpy as np

from . import _quire
from ._quire import Mark
from .errors import ClosedError
from .outputs import GenerationOutput, Record
from .sampling import Params, Request, check_params, sampling
from .session import to_salt, whose
from .stream import Stream
from .convert import to_choice, to_ids, to_path

MODES = ("exact", "approximate")  # of edits


def token_ids_of(ids: Any, what: str) -> list[int]:
    """Returns token ids as a list. Refuses text, since only its author knows whether special tokens count in it."""
    if isinstance(ids, str):
        raise TypeError(f"{what} must be token ids, not text; tokenize it first: llm.tokenizer.encode(text)")
    return to_ids(ids, what)


class Blocks(collections.abc.Sequence):
    """Ordered blocks of KV, as a sequence of their ids, and how many tokens of them count.

    A handle: it names the blocks and holds none. Using it after they changed or went is an InvalidCompositionError.
    """

    __slots__ = ("_handle", "_ids")

    def __init__(self, handle: _quire.Blocks | None = None) -> None:
        self._handle = _quire.Blocks() if handle is None else handle
        self._ids: list[int] = self._handle.block_ids

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the blocks that count."""
        return self._handle.num_tokens

    def first(self, num_tokens: int) -> Blocks:
        """Returns a handle on the first `num_tokens` tokens."""
        return Blocks(self._handle.first(_count(num_tokens)))

    def __add__(self, other: Blocks) -> Blocks:
        """Returns a handle on these blocks and the other ones behind them."""
        return _joined([self, other]) if isinstance(other, Blocks) else NotImplemented

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._ids[index]

    def __repr__(self) -> str:
        return f"Blocks({self._ids}, num_tokens={self.num_tokens})"


def _joined(parts: Iterable[Blocks]) -> Blocks:
    return Blocks(_quire.Blocks.join([part._handle for part in parts]))


def _count(num_tokens: Any) -> int:
    try:
        count = operator.index(None if isinstance(num_tokens, (bool, np.bool_)) else num_tokens)
    except TypeError:
        raise TypeError(f"a number of tokens is an int, not {num_tokens!r}") from None
    if abs(count) >= 2**62:
        raise ValueError(f"no sequence has {count} tokens")
    return count


def _part(part: Any) -> Blocks:
    """Returns one element of `existing_blocks`: all of a handle, or (handle, used tokens)."""
    if isinstance(part, Blocks):
        return part
    if isinstance(part, (tuple, list)) and len(part) == 2 and isinstance(part[0], Blocks):
        return part[0].first(part[1])
    raise TypeError(
        "existing_blocks is a Blocks, a list of Blocks or of (Blocks, used tokens), or a list of block ids, "
        f"not a list with {part!r} in it"
    )


def existing(blocks: Any, num_tokens: int | None) -> tuple[Blocks | list[int], int]:
    """Reads `existing_blocks` and `existing_token_count`: returns a handle (or plain block ids) and the tokens that
    count."""
    ordered = isinstance(blocks, Iterable) and not isinstance(blocks, (str, bytes, bytearray, Set, Mapping))
    if blocks is not None and not ordered:
        raise TypeError(f"existing_blocks must be a Blocks or a list, not {blocks!r}")
    count = None if num_tokens is None else _count(num_tokens)
    if not isinstance(blocks, Blocks):
        parts = blocks.tolist() if hasattr(blocks, "tolist") else list(() if blocks is None else blocks)
        if parts and all(hasattr(part, "__index__") for part in parts):
            if count is None:
                raise ValueError("plain block ids do not say how many tokens count; give existing_token_count")
            if count < 0:
                raise ValueError(f"existing_token_count is {count}, of {len(parts)} blocks; give 0 or more")
            return to_ids(parts, "existing_blocks", "block ids"), count
        blocks = _joined(_part(part) for part in parts)
    return (blocks, blocks.num_tokens) if count is None else (blocks.first(count), count)


def handle_of(llm: _quire.LLM, blocks: Blocks | list[int], num_tokens: int, salt: str | None = None) -> _quire.Blocks:
    """Returns the library's handle on what `existing` gave. A handle may be used as it is; block ids are looked up for
    `salt`."""
    return blocks._handle if isinstance(blocks, Blocks) else llm.find_blocks(blocks, num_tokens, to_salt(salt))


@dataclasses.dataclass(frozen=True, eq=False)
class VirtualSequence:
    """Input of direct inference: new tokens behind existing blocks; takes the arguments of LLM.infer_from_blocks.

    A plain value: it computes and holds nothing, and may be run any number of times.
    """

    token_ids: list[int] = ()  # the new ones
    sampling_params: Params = None
    existing_blocks: Blocks | list[int] = ()  # a handle cut to existing_token_count, or plain block ids
    existing_token_count: int | None = None  # given or not, a number afterwards

    def __post_init__(self) -> None:
        check_params(self.sampling_params)
        blocks, count = existing(self.existing_blocks, self.existing_token_count)
        object.__setattr__(self, "token_ids", [] if self.token_ids is None else token_ids_of(self.token_ids, "token_ids"))
        object.__setattr__(self, "existing_blocks", blocks)
        object.__setattr__(self, "existing_token_count", count)

    @property
    def num_new_tokens(self) -> int:
        """Number of tokens behind the existing blocks."""
        return len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Number of existing and new tokens together."""
        return self.existing_token_count + self.num_new_tokens


class SequenceDiff(Record):
    """How many tokens two sequences begin with alike, what follows in each, and the blocks of KV that both hold."""

    common_tokens: int
    left: list[int]
    right: list[int]
    shared_blocks: int


class Sequence:
    """Tokens with their KV as a value of the program's: it grows, forks, rolls back and is edited.

    A call that fails leaves it as it was. Going on equals never having stopped, bit for bit. One call at a time may
    change it; different sequences may be used from different threads. fork(), checkpoint() and rollback(mark) take the
    same time whatever the length. Dropping it closes it.
    """

    def __init__(self, handle: _quire.Sequence) -> None:
        self._open_handle: _quire.Sequence | None = handle

    @property
    def _handle(self) -> _quire.Sequence:
        if self._open_handle is None:
            raise ClosedError("the sequence is closed")
        self._open_handle.check_open()
        return self._open_handle

    @property
    def tokens(self) -> list[int]:
        """All tokens of the sequence, generated ones too."""
        return self._handle.tokens

    def __len__(self) -> int:
        return self._handle.num_tokens

    @property
    def owed_tokens(self) -> int:
        """Tokens before the last one whose KV or state is computed by the next call that needs it; 0 where nothing is
        owed. A rollback computes nothing: it owes what lies behind the restore point that it goes back to."""
        return self._handle.owed_tokens

    @property
    def grade(self) -> str:
        """ "exact" while it equals a plain prompt; "approximate" behind chunks that have not seen each other."""
        return self._handle.grade

    def append(self, ids: Any, *, session: str | None = None) -> None:
        """Appends tokens. `session` here and below: whose request it is (see LLM.pause_session)."""
        self._handle.append(token_ids_of(ids, "ids"), whose(session))

    def generate(
        self, sampling_params: Params = None, *, session: str | None = None, **keywords: Unpack[Request]
    ) -> GenerationOutput:
        """Goes on from here; the sequence grows by what comes."""
        options = whose(session, keywords=keywords)
        params = sampling("generate", sampling_params, keywords)
        return GenerationOutput(self._handle.generate(params, options))

    def stream(
        self, sampling_params: Params = None, *, session: str | None = None, **keywords: Unpack[Request]
    ) -> Stream:
        """Streams the answer that generate would return. The sequence has grown with the last delta; a stream closed
        before leaves it."""
        options = whose(session, keywords=keywords)
        return Stream(self._handle.stream(sampling("stream", sampling_params, keywords), options))

    def logits(self) -> np.ndarray:
        """Returns the logits of the next token, float32 [vocab_size]."""
        return self._handle.logits()

    def fork(self) -> Sequence:
        """Returns another sequence that shares all KV, and knows the same marks."""
        return Sequence(self._handle.fork())

    def __copy__(self) -> Sequence:
        return self.fork()

    def __deepcopy__(self, _: dict[int, Any]) -> Sequence:
        return self.fork()

    def checkpoint(self) -> Mark:
        """Returns a mark for rollback and commit."""
        return self._handle.checkpoint()

    def rollback(self, mark: Mark | None = None, *, to_length: int | None = None, drop: int | None = None) -> None:
        """Rolls back to a mark (the sampler's state included; later marks are forgotten), to a length, or by `drop`
        tokens."""
        if sum(given is not None for given in (mark, to_length, drop)) != 1:
            raise TypeError("rollback takes a mark, to_length= or drop=, exactly one of them")
        if mark is not None:
            self._handle.rollback(_mark(mark))
        elif to_length is not None:
            self._handle.rollback_to(_count(to_length))
        else:
            self._handle.rollback_to(len(self) - _count(drop))

    def commit(self, mark: Mark | None = None) -> None:
        """Keeps what happened: forgets the mark and those after it (none given: all), and the KV that only they held."""
        if mark is None:
            self._handle.commit()
        else:
            self._handle.commit(_mark(mark))

    def replace(self, start: int, stop: int, ids: Any, mode: str = "exact", *, session: str | None = None) -> None:
        """Replaces tokens [start, stop) by `ids`. Computes tokens behind them again, tokens before them not.

        mode="approximate" keeps the KV of what stands behind, at its new place; `grade` says so from then on.
        """
        exact = to_choice(mode, "mode", MODES) == "exact"
        changed = (_count(start), _count(stop), token_ids_of(ids, "ids"))
        self._handle.replace(*changed, exact, whose(session))

    def insert(self, at: int, ids: Any, mode: str = "exact", *, session: str | None = None) -> None:
        """Inserts `ids` before token `at`; otherwise as replace."""
        self.replace(at, at, ids, mode, session=session)

    def delete(self, start: int, stop: int, mode: str = "exact", *, session: str | None = None) -> None:
        """Deletes tokens [start, stop); otherwise as replace."""
        self.replace(start, stop, (), mode, session=session)

    def diff(self, other: Sequence) -> SequenceDiff:
        """Tells which tokens both begin with, and which follow in each."""
        if not isinstance(other, Sequence):
            raise TypeError(f"diff takes another Sequence, not a {type(other).__name__}")
        return SequenceDiff(self._handle.diff(other._handle))

    def blocks(self) -> tuple[Blocks, int]:
        """Returns a handle on all its tokens, and their number. It is stale once the sequence changes, unless a fork
        stays there."""
        blocks = Blocks(self._handle.blocks())
        return blocks, blocks.num_tokens

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves one file, there whole or not at all: tokens, KV and the sampler's state. LLM.load_sequence reads it."""
        self._handle.save(to_path(path))

    def close(self) -> None:
        """Frees what no fork holds. Later calls raise ClosedError."""
        handle, self._open_handle = self._open_handle, None
        if handle is not None:
            handle.close()

    def __enter__(self) -> Sequence:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            return f"Sequence({len(self)} tokens, {self.grade})"
        except ClosedError:
            return "Sequence(closed)"


def _mark(mark: Any) -> Mark:
    if not isinstance(mark, Mark):
        raise TypeError(f"a mark comes from checkpoint(); {mark!r} is none. For a length: rollback(to_length=...)")
    return mark
