"""Quire: an LLM inference engine whose KV cache belongs to the user."""

from typing import NoReturn as _NoReturn

from . import habits as _habits
from ._quire import Mark, SamplingParams, __version__
from .async_stream import AsyncStream
from .checkpoints import Checkpoint, CheckpointManager
from .chunked import ChunkedLLM, RegisteredChunk
from .composing import ChunkType, Composition
from .context import ContextItem, ContextManager
from .errors import (
    CancelledError,
    ChunkNotFoundError,
    ClosedError,
    DeviceError,
    IncompatibleChunksError,
    InvalidCompositionError,
    KVOverflowError,
    OutOfMemoryError,
    QueueFullError,
    QuireError,
    UnsupportedError,
)
from .linking import get_include, get_library_dir
from .llm import LLM
from .machine import doctor, inspect
from .outputs import Delta, ForwardOutput, GenerationOutput
from .sequence import Blocks, Sequence, SequenceDiff, VirtualSequence
from .store import Store, StoreEntry, StoreObject, StoreWeights
from .stream import Stream
from .tokenizer import Tokenizer

__all__ = [
    "LLM",
    "AsyncStream",
    "Blocks",
    "CancelledError",
    "Checkpoint",
    "CheckpointManager",
    "ChunkNotFoundError",
    "ChunkType",
    "ChunkedLLM",
    "ClosedError",
    "Composition",
    "ContextItem",
    "ContextManager",
    "Delta",
    "DeviceError",
    "ForwardOutput",
    "GenerationOutput",
    "IncompatibleChunksError",
    "InvalidCompositionError",
    "KVOverflowError",
    "Mark",
    "OutOfMemoryError",
    "QueueFullError",
    "QuireError",
    "RegisteredChunk",
    "SamplingParams",
    "Sequence",
    "SequenceDiff",
    "Store",
    "StoreEntry",
    "StoreObject",
    "StoreWeights",
    "Stream",
    "Tokenizer",
    "UnsupportedError",
    "VirtualSequence",
    "__version__",
    "doctor",
    "get_include",
    "get_library_dir",
    "inspect",
]


def __getattr__(name: str) -> _NoReturn:
    """Raises the AttributeError with the nearest right name, also for one of another engine."""
    raise AttributeError(f"quire has no {name!r}{_habits.hint(name, __all__, _habits.PACKAGE)}", name=name)


def __dir__() -> list[str]:
    """Lists the names of the package, without those of its files."""
    return sorted([*__all__, "__all__", "__doc__", "__name__", "__path__"])
