"""Store: a directory of KV that outlives the process and that several processes may share."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

from . import _quire
from .outputs import Record
from .convert import _pass, to_bytes, to_choice, to_flag, to_path, to_text


KINDS = ("chunk", "sequence", "context", "checkpoint")  # of entries


class StoreEntry(Record):
    """An entry of a store: something that somebody has saved."""

    key: str  # 64 hexadecimal digits
    kind: str  # one of KINDS
    name: str  # for people; may be empty
    tenant: str  # who may read it; usually empty
    metadata: dict[str, Any]
    tokens: int
    bytes: int  # of the objects that it names
    ratio: float | None  # bytes of its KV in them to those in memory: 1.0 uncompressed; None: no KV, or not readable
    created_at: str  # UTC, ISO 8601
    accessed_at: str
    expires_at: str | None
    pinned: bool  # never evicted, never expires

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__({**fields, "metadata": json.loads(fields["metadata"])})


class StoreObject(Record):
    """A file of the store, or a damaged row of its index."""

    hash: str  # of such a row the key of its entry
    state: str  # "ok", "damaged", "missing"
    bytes: int
    entries: int  # that name it
    message: str  # what is wrong


class StoreWeights(Record):
    """The packed weights of a model (LLM(..., cache_weights=True))."""

    key: str  # 64 hexadecimal digits: what was packed, and how
    model: str  # its path; "" when the file cannot be read
    state: str  # "ok"; "stale": no start will use it, the model is gone or has changed; "damaged"
    written_at: str  # UTC, ISO 8601
    bytes: int
    message: str  # why it is not "ok"


class StoreCleaning(Record):
    """Counts of what gc has removed and left."""

    expired_entries: int
    evicted_entries: int  # least recently used, to get below max_bytes
    removed_objects: int
    removed_bytes: int
    removed_temporaries: int  # of writers that were killed
    removed_weights: int  # files that no start would use
    removed_weight_bytes: int
    objects: int  # left; of a tenant's store, those that its entries name
    bytes: int
    kept_objects: int  # named by no entry, but perhaps by a damaged index
    message: str  # why they were kept, and how to end that; ""


class Store:
    """Looking at a store, keeping it small, moving entries. Calls may come from any thread and wait for each other.

    Entries are named by key, the beginning of one (at least 4 digits, unambiguous), or name; an unknown one is a
    ChunkNotFoundError.

    create: makes a store where there is no directory, or an empty one
    max_bytes: what gc leaves, bytes or "10GiB"; None: no limit. With a tenant: of its own entries. Without: of all; the
        tenant that holds most gives way, and nobody for others who holds no more than an equal share
    tenant: only its entries are seen, and touched; None: those of all
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        create: bool = True,
        max_bytes: int | str | None = None,
        tenant: str | None = None,
    ) -> None:
        limit = to_bytes(max_bytes, "max_bytes")
        owner = None if tenant is None else to_text(tenant, "tenant")
        self.path = path
        self._lock = threading.Lock()
        self._process = os.getpid()
        folder, given = to_path(path), (to_flag(read_only, "read_only"), to_flag(create, "create"))
        self._handle = _pass("max_bytes", limit, lambda most: _quire.Store.open(folder, *given, most, owner))

    def _call(self, name: str, *arguments: Any) -> Any:
        call = getattr(self._handle, name)
        if os.getpid() != self._process:  # a forked child: who holds the lock may not be here
            return call(*arguments)  # a ClosedError
        with self._lock:
            return call(*arguments)

    def ls(self, kind: str | None = None) -> list[StoreEntry]:
        """Lists the entries, the least recently used first; of one `kind` alone if that is given, see StoreEntry."""
        wanted = KINDS if kind is None else (to_choice(kind, "kind", KINDS),)
        entries = [StoreEntry(entry) for entry in self._call("list")]
        return [entry for entry in entries if entry.kind in wanted]

    def show(self, entry: str) -> StoreEntry:
        """Returns all about one entry. Does not count as a use."""
        return StoreEntry(self._call("find", to_text(entry, "entry")))

    def pin(self, entry: str, pinned: bool = True) -> None:
        """Keeps the entry from eviction and expiry; `pinned=False` lets it go again."""
        self._call("pin", to_text(entry, "entry"), to_flag(pinned, "pinned"))

    def set_ttl(self, entry: str, seconds: float | None) -> None:
        """Sets how long an entry is kept after its last use, which this is; None: forever."""
        name = to_text(entry, "entry")
        _pass("seconds", seconds, lambda ttl: self._call("set_ttl", name, ttl))

    def rm(self, entry: str, wipe: bool = False) -> None:
        """Removes an entry with everything that only it held.

        `wipe`: its bytes become zeros, and nothing of it is left in the folder. OSError where something is, since the
        disk refuses or another process reads. It goes with the next wipe, which may be this one again (of what is not
        there by then).
        """
        self._call("remove", to_text(entry, "entry"), to_flag(wipe, "wipe"))

    def gc(self) -> StoreCleaning:
        """Removes what has expired, what nobody names, and packed weights that no start would use. Removes the least
        recently used entries above max_bytes, which does not count weights. Objects that a damaged index may name
        stay."""
        return StoreCleaning(self._call("gc"))

    def verify(self) -> list[StoreObject]:
        """Reads every object and compares its checksums; lists damaged rows of the index too."""
        return [StoreObject(item) for item in self._call("verify")]

    def weights(self, verify: bool = False) -> list[StoreWeights]:
        """Lists packed weights, by key. `verify`: reads all of them and compares their checksums."""
        return [StoreWeights(item) for item in self._call("weights", to_flag(verify, "verify"))]

    def export(self, entry: str, path: str | os.PathLike[str]) -> None:
        """Writes an entry to one self-contained file. Replaces an existing file."""
        self._call("export_entry", to_text(entry, "entry"), to_path(path))

    def import_(self, path: str | os.PathLike[str]) -> StoreEntry:
        """Imports the entry of such a file and returns it. It is verified, but its maker is trusted for what its KV
        says."""
        return StoreEntry(self._call("import_entry", to_path(path)))

    @staticmethod
    def repair(path: str | os.PathLike[str], force: bool = False) -> int:
        """Makes a damaged index anew of what can be read, with the store closed everywhere. Returns the number of
        entries.

        OSError, and the old index stays, where that would be none though something was there. `force`: an empty index.
        """
        return _quire.Store.repair(to_path(path), to_flag(force, "force"))

    def __iter__(self) -> Iterator[StoreEntry]:
        return iter(self.ls())

    def __len__(self) -> int:
        return len(self._call("list"))

    def __repr__(self) -> str:
        return f"Store({os.fspath(self.path)!r})"
