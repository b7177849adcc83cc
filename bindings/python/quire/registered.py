"""Calls for the chunks that are registered: listed, changed, removed, counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _quire
from .composing import ChunkType, _id, _type
from .convert import _pass, to_flag
from .load_options import KVDType
from .outputs import Fields
from .registering import KEEP, chunk_fields, json_of, listed_chunk, update_of
from .session import to_salt


class Registered:
    """The part of a ChunkedLLM that looks after registered chunks."""

    _chunks: _quire.ChunkedLLM

    def list_chunks(
        self,
        chunk_type: ChunkType | str | None = None,
        metadata_filter: Mapping[str, Any] | None = None,
        *,
        salt: str | None = None,
    ) -> list[Fields]:
        """Lists chunks of a type whose metadata has all pairs of the filter, in the order of registration."""
        chunks = self._chunks.list_chunks(_type(chunk_type), json_of(metadata_filter, "metadata_filter"), to_salt(salt))
        return [listed_chunk(info) for info in chunks]

    def get_chunk(self, chunk_id: str, *, salt: str | None = None) -> Fields:
        """Returns all about one chunk, with its content and token ids. Does not count as a use."""
        return chunk_fields(self._chunks.get_chunk(_id(chunk_id), to_salt(salt)))

    def update_chunk(
        self,
        chunk_id: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        ttl_seconds: float | None | object = KEEP,
        pinned: bool | None = None,
        priority: int | None = None,
        kv_dtype: KVDType | None = None,
        salt: str | None = None,
    ) -> Fields:
        """Replaces the metadata's keys that are named, and what else is given; `ttl_seconds=None`: no end.

        `kv_dtype`: "int8" converts the KV of a chunk in a pool of floats, and returns it with a new `chunk_id`; the old
        id is gone. A wider one is a ValueError, since what was rounded is lost.
        """
        update = update_of(metadata, ttl_seconds, pinned, priority, kv_dtype)
        return chunk_fields(self._chunks.update_chunk(_id(chunk_id), update, to_salt(salt)))

    def delete_chunk(self, chunk_id: str, wipe: bool = False, *, salt: str | None = None) -> bool:
        """Forgets the chunk; its memory is free with its last user. False when it was not there.

        `wipe`: its bytes in the store become zeros first, and nothing of it is left in the folder; OSError where
        something is, since another process reads: call again.
        """
        return self._chunks.delete_chunk(_id(chunk_id), to_flag(wipe, "wipe"), to_salt(salt))

    def clear_chunks(self, chunk_type: ChunkType | str | None = None, *, salt: str | None = None) -> int:
        """Deletes all chunks (of a type) that nobody uses, also those only in the store; returns how many."""
        return self._chunks.clear_chunks(_type(chunk_type), to_salt(salt))

    def evict_unused_chunks(self, max_age_seconds: float = 3600, *, salt: str | None = None) -> int:
        """Deletes chunks without use for so long, but for pinned ones and those in use; returns how many."""
        whose = to_salt(salt)
        return _pass("max_age_seconds", max_age_seconds, lambda age: self._chunks.evict_unused_chunks(age, whose))

    def coalesce(self) -> int:
        """Lets the last tokens of chunks that no request uses share blocks; returns how many blocks became free. The
        engine does so itself where blocks are short. Nothing that is found or computed changes."""
        return self._chunks.coalesce()

    def flush_store(self) -> None:
        """Waits until all that was registered, or computed for a composition, is in the store. Raises the first failure
        to write behind a call's back since the last flush. Raises, too, if the store is read-only and something since
        was not saved. A chunk that could not be written is one of this process alone until it is registered again.
        Closing waits too, and raises nothing."""
        self._chunks.flush_store()

    def get_chunk_stats(self, *, salt: str | None = None) -> Fields:
        """Returns numbers of chunks, memory of their KV, and prefills avoided (`cache_hits`) and done (`cache_misses`)."""
        stats = self._chunks.chunk_stats(to_salt(salt))
        looked_up = stats["cache_hits"] + stats["cache_misses"]
        return Fields(
            stats,
            memory_used_mb=stats["memory_used_bytes"] / 2**20,
            memory_limit_mb=stats["memory_limit_bytes"] / 2**20,
            hit_rate=stats["cache_hits"] / looked_up if looked_up else 0.0,
        )
