"""Types of the keywords of LLM, and those that are not fields of the library's options as they are given."""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable
from typing import Any, Literal

from . import _quire, habits
from .convert import to_bytes, to_path, to_text

Model = str | os.PathLike[str]
DType = Literal["auto", "float32", "bfloat16", "float16"]
KVDType = Literal["auto", "float32", "bfloat16", "float16", "int8", "fp8", "int4"]
Quantize = Literal["auto", "q8g32", "q4g32", "fp8"]
Scheduler = Literal["fcfs", "priority", "shortest", "fair", "adaptive"]
PreemptionMode = Literal["auto", "recompute", "swap"]
Speculate = Literal["ngram", "suffix"] | dict[str, Any] | None
_METHODS = ("ngram", "suffix", "draft", "custom")
Device = Literal["cpu", "cuda"] | str  # "cuda:1" too


def model_of(model: Any, model_path: Any) -> Any:
    """Returns the first argument, by whichever of its two names."""
    if (model is None) == (model_path is None):
        how = "one model, not model and model_path" if model is not None else "a model: a folder, a .gguf file or a preset"
        raise TypeError(f"give {how}")
    return model if model_path is None else model_path


def _kv_budget(size: str | int) -> int:
    return _quire.AUTO_BUDGET if isinstance(size, str) and size == "auto" else to_bytes(size, "kv_budget")


def _quantize(name: str | None) -> str | None:
    if isinstance(name, str) and not name:
        raise ValueError("quantize cannot be ''; None leaves weights as they are")
    return "" if name is None else name


def _template(template: str | os.PathLike[str] | None) -> str:
    if template is None:
        return ""
    if not isinstance(template, (str, os.PathLike)) or not os.fspath(template):
        raise TypeError(f"chat_template must be the text or the path of a template, not {template!r}")
    return to_text(os.fsdecode(template), "chat_template")


def _max_waiting(count: int | None) -> int:
    if isinstance(count, int) and count < 0:
        raise ValueError(f"max_waiting must be 0 or more, or None for any number, not {count}")
    return -1 if count is None else count


def _gap(milliseconds: float | None) -> float:
    if isinstance(milliseconds, (int, float)) and not isinstance(milliseconds, bool) and milliseconds <= 0:
        raise ValueError(f"max_decode_gap_ms must be above 0, or None for no bound, not {milliseconds}")
    return 0.0 if milliseconds is None else milliseconds


def _speculate(wanted: str | dict[str, Any] | None) -> str:
    """Returns the options as the library reads them; a function of "custom" goes there apart (drafter_of)."""
    if wanted is None:
        return ""
    if isinstance(wanted, str):
        if not wanted:
            raise ValueError("speculate cannot be ''; None guesses nothing")
        return to_text(wanted, "speculate")
    if not isinstance(wanted, dict):
        raise TypeError(f"speculate must be None, the name of a method, or a dict, not a {type(wanted).__name__}")
    method = wanted.get("method")
    if isinstance(method, str) and method not in _METHODS:
        known = ", ".join(f'"{name}"' for name in _METHODS)
        raise ValueError(f'speculate: "method" must be one of {known}, not {method!r}{habits.hint(method, _METHODS)}')
    text = {}
    for name, value in wanted.items():
        if name == "propose" and method == "custom":
            continue
        text[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
        try:
            json.dumps({name: text[name]})
        except (TypeError, ValueError):
            raise ValueError(f"speculate: the key {name!r} cannot be {reprlib.repr(value)}") from None
    return json.dumps(text)


def drafter_of(wanted: Any) -> Callable[..., Any] | None:
    """Returns the function of speculate={"method": "custom", "propose": function}."""
    if not isinstance(wanted, dict) or wanted.get("method") != "custom":
        return None
    propose = wanted.get("propose")
    if not callable(propose):
        raise TypeError('speculate with the method "custom" needs "propose": a function of (token_ids, max_tokens)')
    return propose


# How a keyword becomes a field of the library's options, where it is not as it is given.
TAKEN: dict[str, Callable[[Any], Any]] = {
    "quantize": _quantize,
    "kv_budget": _kv_budget,
    "host_kv_budget": lambda size: to_bytes(size, "host_kv_budget"),
    "threads": lambda count: 0 if count is None else count,
    "store": lambda path: b"" if path is None else to_path(path, "store"),
    "chat_template": _template,
    "max_waiting": _max_waiting,
    "max_decode_gap_ms": _gap,
    "speculate": _speculate,
}
