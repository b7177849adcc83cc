"""Exceptions of Quire. ValueError and OSError are Python's own; everything else is a QuireError."""

# Re-exported so that the extension module finds every class under one name.
ValueError = ValueError
OSError = OSError


class QuireError(Exception):
    """Base of Quire's own errors. A wrong argument is Python's ValueError or TypeError, and a refusal of the system is
    its OSError: a call raises (QuireError, TypeError, ValueError, OSError) alone. `chunk_id`, `needed_bytes` and
    `free_bytes` are set where they apply."""

    chunk_id: str | None = None
    needed_bytes: int = 0
    free_bytes: int = 0


class KindError(TypeError, ValueError):
    """An argument of another kind than the call takes. A TypeError; programs that catch ValueError alone see it, too."""


class ChunkNotFoundError(QuireError, LookupError):
    """No such chunk."""


class IncompatibleChunksError(QuireError):
    """Made for another model, format or mode."""


class InvalidCompositionError(QuireError):
    """Wrong kinds or number of chunks."""


class OutOfMemoryError(QuireError, MemoryError):
    """Does not fit now; `needed_bytes` and `free_bytes` say by how much."""


class KVOverflowError(QuireError):
    """Can never fit, whatever is freed."""


class QueueFullError(QuireError):
    """`max_waiting` allows no more requests to wait. `requests` were refused, whose KV would have needed
    `needed_bytes`."""

    requests: int = 0


class CancelledError(QuireError):
    """The request was aborted, or its deadline has passed."""


class ClosedError(QuireError):
    """The LLM was closed, or this is a forked child of the process that opened it or the store."""


class DeviceError(QuireError):
    """The accelerator is missing or failed."""


class UnsupportedError(QuireError, NotImplementedError):
    """Known, named, and not implemented."""
