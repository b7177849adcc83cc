"""Quire: an LLM inference engine whose KV cache belongs to the user."""

from ._quire import SamplingParams, __version__
from .chunked import ChunkedLLM, ChunkType, Composition
from .errors import (
    CancelledError,
    ChunkNotFoundError,
    ClosedError,
    DeviceError,
    IncompatibleChunksError,
    InvalidCompositionError,
    KVOverflowError,
    OutOfMemoryError,
    QuireError,
    UnsupportedError,
)
from .llm import LLM, Stream, doctor, inspect
from .outputs import Delta, ForwardOutput, GenerationOutput
from .tokenizer import Tokenizer

__all__ = [
    "LLM",
    "CancelledError",
    "ChunkNotFoundError",
    "ChunkType",
    "ChunkedLLM",
    "ClosedError",
    "Composition",
    "Delta",
    "DeviceError",
    "ForwardOutput",
    "GenerationOutput",
    "IncompatibleChunksError",
    "InvalidCompositionError",
    "KVOverflowError",
    "OutOfMemoryError",
    "QuireError",
    "SamplingParams",
    "Stream",
    "Tokenizer",
    "UnsupportedError",
    "__version__",
    "doctor",
    "inspect",
]
