"""Prompts as callers give them: a text, ids, or a list of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .convert import to_ids, to_text
from .errors import KindError

Prompt = str | Sequence[int]


def prompt_of(prompt: Prompt, what: str = "prompt") -> str | list[int]:
    """Returns one prompt as the library takes it: a text or ids."""
    if type(prompt) is dict and len(prompt) == 1:  # as vLLM writes texts and ids
        prompt = prompt.get("prompt_token_ids", prompt.get("prompt", prompt))
    if type(prompt) is dict and "role" in prompt:
        raise ValueError(f"{what} is a message; messages are for llm.chat(messages)")
    if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], str):
        raise KindError(f"{what} must be one text, or a list of token ids; generate takes a list of prompts")
    return to_text(prompt) if isinstance(prompt, str) else to_ids(prompt, what, "token ids, or a text")


def is_batch(prompts: Any) -> bool:
    """Tells a list of texts or of id lists from one text or one list of ids."""
    if isinstance(prompts, (str, bytes)) or not (isinstance(prompts, Sequence) or hasattr(prompts, "tolist")):
        return False
    if len(prompts) == 0:
        return isinstance(prompts, (list, tuple))
    first = prompts[0]  # of an array of ids: a number, though one of no dimensions may claim a length
    return isinstance(first, (str, dict)) or (hasattr(first, "__len__") and getattr(first, "ndim", 1) > 0)
