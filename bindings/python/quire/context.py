"""ContextManager: what a conversation stands on, item by item."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Unpack

from . import _quire
from .convert import _callback, _set, _set_flag, to_bytes, to_compression, to_flag, to_list, to_path, to_text
from .errors import ChunkNotFoundError, ClosedError
from .llm import LLM
from .outputs import Fields, GenerationOutput, Record
from .prompts import Prompt, prompt_of
from .sampling import Params, Request, sampling
from .sequence import Blocks
from .session import whose


class ContextItem(Record):
    """One item of a context, as it was when somebody asked for it."""

    id: str  # 64 hexadecimal digits
    name: str | None  # another handle
    kind: str  # "system", "context", "user", "output"
    tags: list[str]
    text: str  # as added; of ids and outputs the decoded text
    token_ids: list[int]
    num_tokens: int
    active: bool
    status: str  # "active", "inactive"
    tier: str  # where its KV is: "device", "host", "disk", "none" (it is computed when it is used)
    saved: bool  # in the store, whatever the tier
    parents: list[str]  # items that its KV has seen, in order
    sampling: dict[str, Any] | None  # of an output: all that it was sampled with, and the seed
    memory_bytes: int  # of its KV on the device or in host memory
    pinned: bool  # what goes first when memory is short: see set_retention
    priority: int
    ttl_seconds: float | None

    def __init__(self, fields: dict[str, Any]) -> None:
        sampling = fields["sampling"]
        super().__init__({**fields, "sampling": None if sampling is None else json.loads(sampling)})


def _item(item: Any) -> str:
    """Returns what names an item: its id, the beginning of it, or its name. These are strings; anything else names none."""
    if isinstance(item, str):
        return to_text(item)
    what = f"no item {reprlib.repr(item)} in the context"
    error = ChunkNotFoundError(f"{what}: an item is named by its id or its name, a string")
    error.chunk_id = repr(item)
    raise error


def _retention(pinned: bool | None, priority: int | None, ttl_seconds: float | None) -> _quire.ItemRetention:
    """Returns what is said of a retention. None stays unsaid."""
    retention = _quire.ItemRetention()
    if pinned is not None:
        _set_flag(retention, "pinned", pinned)
    _set(retention, "priority", priority)
    _set(retention, "ttl_seconds", ttl_seconds)
    return retention


def _tags(tags: Iterable[str]) -> list[str]:
    words = [to_text(tag, "a tag") for tag in to_list(tags, "tags", "strings")]
    if not all(words):
        raise ValueError("a tag is a word, not an empty string")
    return words


class ContextManager:
    """Texts, turns and answers that are switched on and off, moved between tiers, saved.

    Items are named by id, by the beginning of an id (at least 4 digits, unambiguous), or by name; an unknown one is a
    ChunkNotFoundError. Calls may come from any thread and wait for each other, without the GIL.

    mode: "anchored": an item's KV is computed once, behind the system item, and switching items computes nothing. Turns
        keep the KV with which they were generated. "exact": every answer equals that of a plain prompt of the active
        items. KV behind a switched item is computed again
    store: a directory; None: the one given to the LLM
    salt: tenant; contexts of two salts share no item, in the store neither
    max_host_bytes: of KV in host memory, a number or "10GiB", 0 or None: no limit. KV beyond it goes on to the store, or
        without one nowhere
    max_store_bytes: of the store, likewise; saving evicts what was used least recently
    compress: what goes into the store; smaller, slower: True or "zstd", or "lz4", which is faster and less small
    write_through: whatever is computed is saved at once (mode "anchored"); else when asked, or to make room
    """

    def __init__(
        self,
        llm: LLM,
        mode: str = "anchored",
        store: str | os.PathLike[str] | None = None,
        *,
        salt: str = "",
        max_host_bytes: int | str | None = 0,
        max_store_bytes: int | str | None = 0,
        compress: bool | Literal["zstd", "lz4"] = False,
        write_through: bool = False,
    ) -> None:
        if not isinstance(llm, LLM):
            raise TypeError(f"a context belongs to an LLM, not to a {type(llm).__name__}")
        self.llm = llm
        self.mode = mode
        self.store = llm.store if store is None else store
        path = b"" if self.store is None else to_path(self.store, "store")
        options = _quire.ContextOptions()
        _set(options, "salt", to_text(salt, "salt"))
        _set(options, "max_host_bytes", to_bytes(max_host_bytes, "max_host_bytes"))
        _set(options, "max_store_bytes", to_bytes(max_store_bytes, "max_store_bytes"))
        _set(options, "compress", to_compression(compress, "compress"))
        _set_flag(options, "write_through", write_through)
        self._open_handle = _quire.ContextManager.open(llm._handle, to_text(mode, "mode"), path, options)

    @property
    def _handle(self) -> _quire.ContextManager:
        self._open_handle.check_open()
        return self._open_handle

    def add(
        self,
        content: Prompt,
        name: str | None = None,
        tags: Iterable[str] = (),
        active: bool = True,
        kind: str = "context",
        *,
        pinned: bool | None = None,
        priority: int | None = None,
        ttl_seconds: float | None = None,
    ) -> str:
        """Adds an item of kind "context" or "system" and returns its id. Computes its KV when it is active (mode
        "anchored").

        Text goes through the model's chunk format, token ids are taken as they are. An item that is there already is
        switched on, gets the new tags, and keeps its place. `pinned`, `priority`, `ttl_seconds`: see set_retention; of an
        item that is there already those change that are given.
        """
        labels = ("" if name is None else to_text(name, "name"), _tags(tags))
        retention = _retention(pinned, priority, ttl_seconds)
        text = prompt_of(content, "content")
        return self._handle.add(text, labels, to_text(kind, "kind"), to_flag(active, "active"), retention)

    def set_retention(
        self, item: str, *, pinned: bool = False, priority: int = 0, ttl_seconds: float | None = None
    ) -> None:
        """Sets how early the item's KV is evicted. Inactive items whose time is over go first, then the lowest
        priority, then the least recently used. A pinned one never goes, from the store neither.

        ttl_seconds: since its last use; then an inactive item gives up its KV in memory, and the store may forget it.
        """
        if priority is None:
            raise TypeError("priority cannot be None")
        self._handle.set_retention(_item(item), _retention(to_flag(pinned, "pinned"), priority, ttl_seconds))

    def activate(self, item: str) -> None:
        """Computes and copies nothing in mode "anchored"."""
        self._handle.activate(_item(item))

    def deactivate(self, item: str) -> None:
        """Takes from the item its influence on later questions. Computes and copies nothing in mode "anchored"."""
        self._handle.deactivate(_item(item))

    def tag(self, item: str, *tags: str) -> None:
        """Adds tags to those that the item has."""
        tagged = _item(item)
        if not tags:
            raise ValueError("a tag is a word; give at least one")
        for tag in _tags(tags):
            self._handle.tag(tagged, tag)

    def show(self, item: str) -> ContextItem:
        """Returns all about one item, as it is now."""
        return ContextItem(self._handle.show(_item(item)))

    def items(self) -> list[ContextItem]:
        """Lists the items in the order in which they were added."""
        return [ContextItem(item) for item in self._handle.items()]

    def explain(self) -> list[Fields]:
        """Says of each active item whether asking now would use its KV as it is (`hit`, from wherever it is), and why
        not (`reason`). Reasons are that it is not computed yet, or on disk where computing is faster, with both
        figures. Changes nothing."""
        return [Fields(part) for part in self._handle.explain()]

    def __len__(self) -> int:
        return self._handle.stats()["items"]

    def __iter__(self) -> Iterator[ContextItem]:
        return iter(self.items())

    def __contains__(self, item: object) -> bool:
        try:
            self.show(item)
        except ChunkNotFoundError:
            return False
        return True

    def get_conversation_blocks(self) -> tuple[Blocks, int]:
        """Returns a handle on the active turns and answers, and the number of their tokens. It is stale with the next
        change."""
        blocks = Blocks(self._handle.conversation_blocks())
        return blocks, blocks.num_tokens

    def get_all_active_blocks(self) -> tuple[Blocks, int]:
        """Returns the blocks and tokens of all active items, in the order in which they were added."""
        blocks = Blocks(self._handle.active_blocks())
        return blocks, blocks.num_tokens

    def infer(
        self,
        text: str | None = None,
        sampling_params: Params = None,
        *,
        on_text: Callable[[str], bool | None] | None = None,
        session: str | None = None,
        **keywords: Unpack[Request],
    ) -> GenerationOutput:
        """Answers behind all active items: `text` is a user turn of the model's chat template; without one it just goes on.

        Turn and answer become active items: `user_id` (None without text) and `output_id` of the output. `on_text` gets
        each piece of text as it comes and must not call the context. When it returns True the answer ends there and is
        kept as far as it is. When it raises, nothing has changed. `session`: whose request it is (see
        LLM.pause_session); items themselves go by their own retention.
        """
        question = None if text is None else to_text(text)
        listener = _callback(on_text, "on_text")
        options = whose(session, keywords=keywords)
        params = sampling("infer", sampling_params, keywords)
        return GenerationOutput(self._handle.infer(question, params, listener, options))

    def compose(self, ids: Iterable[str], name: str | None = None) -> str:
        """Makes a new item of the texts of several, which have then seen each other, and returns its id. Those are switched
        off."""
        wanted = [_item(item) for item in to_list(ids, "ids", "ids")]
        return self._handle.compose(wanted, "" if name is None else to_text(name, "name"))

    def populate(self) -> int:
        """Computes or fetches the KV of all active items; the number of tokens computed."""
        return self._handle.populate()

    def save(self, item: str | None = None) -> None:
        """Saves an item to the store, whatever its tier; None: all items. They stay where they are."""
        if not self.store:
            raise ValueError("the context has no store; give ContextManager or LLM a directory: store=")
        for wanted in [known.id for known in self.items()] if item is None else [_item(item)]:
            self._handle.save(wanted)

    def restore(self, item: str) -> None:
        """Brings an item back to the device with the bits that it had: from host memory, or the store (of earlier processes
        too).

        Damaged or foreign KV is never used: the item is computed again instead.
        """
        self._handle.restore(_item(item))

    def unload(self, item: str, drop: bool = False) -> None:
        """Moves an item to host memory, with `drop` nowhere; its blocks are free. It comes back when it is used, or by
        restore."""
        self._handle.unload(_item(item), to_flag(drop, "drop"))

    def erase(self, item: str, wipe: bool = False) -> None:
        """Forgets the item everywhere, in the store too.

        `wipe`: its bytes there become zeros first, and nothing of it is left in the folder; OSError where something is,
        since another process reads: call again.
        """
        self._handle.erase(_item(item), to_flag(wipe, "wipe"))

    def clear(self) -> int:
        """Forgets all items; what was saved stays saved. How many they were."""
        return self._handle.clear()

    def stats(self) -> dict[str, int]:
        """Counts items, tokens and bytes by state and tier, and tokens that this context has computed and reused."""
        return self._handle.stats()

    def __repr__(self) -> str:
        try:
            stats = self.stats()
        except ClosedError:
            return "ContextManager(closed)"
        return f"ContextManager({stats['items']} items, {stats['active_items']} active, mode={self.mode!r})"
