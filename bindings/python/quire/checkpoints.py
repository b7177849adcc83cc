"""CheckpointManager: the sequences of a program, all or some, in a store that outlives it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from . import _quire
from .llm import LLM
from .outputs import Record
from .sequence import Sequence
from .convert import _pass, _set, _set_flag, to_bytes, to_compression, to_flag, to_list, to_path, to_text


class Checkpoint(Record):
    """State that was saved together."""

    name: str
    number: int  # grows within a series
    created_at: str  # UTC, ISO 8601
    pinned: bool  # see Store.pin
    sequences: dict[str, int]  # tokens with KV, by name
    bytes: int  # of its KV in the store; checkpoints share what they have in common
    written_bytes: int  # by the call that gave it
    written_objects: int


def _names(only: Iterable[str] | None) -> list[str] | None:
    if only is None:
        return None
    names = [to_text(name, "a name in only") for name in to_list(only, "only", "names")]
    if not names:
        raise ValueError("only names no sequence; leave it out for all of them")
    return names


class CheckpointManager:
    """Saves sequences and brings them back, in this process or another one, where they go on bit for bit.

    Each checkpoint is complete by itself, yet saving one writes only the blocks that no earlier one has. A process that
    dies at any point loses none that was there. Calls may come from any thread and wait for each other.

    folder: a store's directory, made where there is none; None: the one given to the LLM
    keep: newest checkpoints that stay, pinned ones beside; 0: all
    every: maybe_save saves once so many tokens are new; 0: never by tokens
    every_seconds: ... or when some are new and so much time went by; 0: never by time
    max_bytes: of what the tenant has in the store, bytes or "10GiB": saving evicts what it used least recently; None: no
        limit. Entries of other tenants neither count nor go; Store(folder, max_bytes=).gc() bounds all of them
    compress: what is saved; smaller, slower. True or "zstd", or "lz4", which is faster and less small
    series, tenant: checkpoints of different ones know nothing of each other; different tenants share no KV either
    """

    def __init__(
        self,
        llm: LLM,
        folder: str | os.PathLike[str] | None = None,
        *,
        keep: int = 3,
        every: int = 0,
        every_seconds: float = 0,
        max_bytes: int | str | None = None,
        series: str = "default",
        tenant: str = "",
        compress: bool | Literal["zstd", "lz4"] = False,
    ) -> None:
        if not isinstance(llm, LLM):
            raise TypeError(f"checkpoints belong to an LLM, not to a {type(llm).__name__}")
        self.llm = llm
        self.folder = llm.store if folder is None else folder
        if self.folder is None:
            raise ValueError("checkpoints need a directory: folder=, or store= of the LLM")
        options = _quire.CheckpointOptions()
        _set(options, "series", to_text(series, "series"))
        _set(options, "tenant", to_text(tenant, "tenant"))
        _set(options, "keep", keep)
        _set(options, "every", every)
        _set(options, "every_seconds", every_seconds)
        _set(options, "max_bytes", to_bytes(max_bytes, "max_bytes"))
        _set(options, "compress", to_compression(compress, "compress"))
        self._handle = _quire.CheckpointManager.open(llm._handle, to_path(self.folder, "folder"), options)

    def save(
        self, sequences: Mapping[str, Sequence], only: Iterable[str] | None = None, name: str | None = None
    ) -> Checkpoint:
        """Saves `sequences` by name, all or those named in `only`. Then forgets what `keep` does not cover.

        Without a name it is called "checkpoint-<number>"; one of the same name is replaced.
        """
        names, handles = _given(sequences, only)
        return Checkpoint(self._handle.save(names, handles, "" if name is None else _name(name)))

    def maybe_save(self, sequences: Mapping[str, Sequence], only: Iterable[str] | None = None) -> Checkpoint | None:
        """Saves when `every` or `every_seconds` says so.

        Nothing is ever saved behind the program's back: it calls this where its sequences are as they shall be found
        again, after each turn, say.
        """
        saved = self._handle.maybe_save(*_given(sequences, only))
        return None if saved is None else Checkpoint(saved)

    def list(self) -> list[Checkpoint]:
        """Lists the checkpoints, newest first."""
        return [Checkpoint(info) for info in self._handle.list()]

    def latest(self) -> Checkpoint:
        """Returns the newest checkpoint that is whole, after it has read all of it. ChunkNotFoundError when there is
        none."""
        return Checkpoint(self._handle.latest())

    def load(
        self, name: str | None = None, only: Iterable[str] | None = None, *, wait: bool = True
    ) -> dict[str, Sequence]:
        """Loads all sequences of a checkpoint, or those named in `only`; without a name, of the newest that can be
        loaded.

        `wait=False` returns at once and reads the KV in the background, as LLM.load_sequence does.
        """
        loaded = self._handle.load("" if name is None else _name(name), _names(only) or [], to_flag(wait, "wait"))
        return {key: Sequence(handle) for key, handle in loaded.items()}

    def remove(self, name: str) -> bool:
        """Removes a checkpoint. Returns False when there was none of this name."""
        return self._handle.remove(_name(name))

    def cleanup(self, keep: int) -> int:
        """Forgets all but the newest `keep` and the pinned ones; how many."""
        return _pass("keep", keep, self._handle.cleanup)

    def compact(self, name: str) -> Checkpoint:
        """Writes what many small saves have scattered into few files; the checkpoint stays what it is."""
        return Checkpoint(self._handle.compact(_name(name)))

    def __repr__(self) -> str:
        return f"CheckpointManager({os.fspath(self.folder)!r})"


def _name(name: Any) -> str:
    text = to_text(name, "name")
    if not text:
        raise ValueError("a checkpoint's name is not empty; leave it out for one that is made up")
    return text


def _given(sequences: Any, only: Iterable[str] | None) -> tuple[list[str], list[_quire.Sequence]]:
    """Returns the names and handles of the sequences that are to be saved."""
    if not isinstance(sequences, Mapping):
        raise TypeError("sequences are given by name: {name: sequence}")
    for name, sequence in sequences.items():
        if not isinstance(sequence, Sequence):
            raise TypeError(f"{name!r} is a {type(sequence).__name__}, not a Sequence")
    wanted = _names(only)
    for name in wanted or []:
        if name not in sequences:
            raise ValueError(f"only names {name!r}; there are {', '.join(map(repr, sequences))}")
    chosen = sequences if wanted is None else {name: sequences[name] for name in wanted}
    return [to_text(name) for name in chosen], [sequence._handle for sequence in chosen.values()]
