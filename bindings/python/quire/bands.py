"""Finds the layers of a model that have to see the context as a whole, for `recompute_layers`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from .composing import _spec
from .convert import to_list
from .machine import inspect
from .prompts import Prompt, prompt_of

if TYPE_CHECKING:
    from .chunked import ChunkedLLM

_SHARE_OF_BEST = 0.5  # neighbours of the best layer that gain so much of what it gains belong to the band


class Band(TypedDict):
    """Result of find_band."""

    layers: list[float]  # error with the KV of one layer alone exact, by layer
    base: float  # error with that of none
    band: tuple[int, int]  # for recompute_layers


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _divergence(exact: np.ndarray, other: np.ndarray) -> float:
    """Returns the KL divergence of the first token of the answer, in nats: that of the last row of the logits."""
    wanted, got = _log_probabilities(exact[-1]), _log_probabilities(other[-1])
    return float((np.exp(wanted) * (wanted - got)).sum())


def band_of(errors: list[float], base: float) -> tuple[int, int]:
    """Returns the layers to run: those below the best layer and its neighbours that gain at least half as much."""
    gains = [base - error for error in errors]
    best = max(range(len(gains)), key=lambda layer: (gains[layer], -layer))
    wanted = _SHARE_OF_BEST * gains[best]
    first = last = best
    while first > 0 and gains[first - 1] >= wanted > 0:
        first -= 1
    while last + 1 < len(gains) and gains[last + 1] >= wanted > 0:
        last += 1
    return max(first - 1, 0), max(last, 1)


def find_band(
    llm: ChunkedLLM,
    contexts: Iterable[Prompt] | Iterable[Iterable[Prompt]],
    queries: Iterable[Prompt] | Iterable[Iterable[Prompt]],
    system_prompt: Prompt | None,
    salt: str | None,
) -> Band:
    """Does the work of ChunkedLLM.find_band, see there."""
    given, asked = to_list(contexts, "contexts", "texts"), to_list(queries, "queries", "texts")
    nested = bool(given) and all(_is_set(each) for each in given)
    sets = list(zip(given, asked, strict=False)) if nested else [(given, asked)]
    if nested and len(given) != len(asked):
        raise ValueError(f"find_band has {len(given)} sets of contexts and {len(asked)} of queries; give one for each")
    errors = [error for texts, own in sets for error in _errors_of_set(llm, list(texts), list(own), system_prompt, salt)]
    base, *layers = np.mean(errors, axis=0).tolist()
    return {"layers": layers, "base": base, "band": band_of(layers, base)}


def _is_set(given: object) -> bool:
    """Returns whether it is a list of prompts, and not a prompt as ids."""
    return isinstance(given, (list, tuple)) and any(isinstance(each, (str, list, tuple)) for each in given)


def _errors_of_set(
    llm: ChunkedLLM, texts: list[Prompt], queries: list[Prompt], system_prompt: Prompt | None, salt: str | None
) -> list[list[float]]:
    """Returns for each query the errors of _errors."""
    if len(texts) < 2 or not queries:
        raise ValueError("find_band wants two contexts or more, which see nothing of each other, and a query")
    texts, queries = [prompt_of(text, "contexts") for text in texts], [prompt_of(text, "queries") for text in queries]
    system = None if system_prompt is None else prompt_of(system_prompt, "system_prompt")
    chunks = [] if system is None else [{"content": system, "chunk_type": "system_prompt"}]
    registered = llm.register_chunks(chunks, salt=salt, details=True)
    anchor = registered[0].chunk_id if registered else ""
    try:
        kept = llm.register_chunks(
            [{"content": text, "chunk_type": "context", "anchor": anchor} for text in texts]
            + [{"content": text, "chunk_type": "query"} for text in queries],
            salt=salt,
            details=True,
        )
        registered = registered + kept
        ids = [chunk.chunk_id for chunk in kept]
        return [_errors(llm, anchor, ids[: len(texts)], query, salt) for query in ids[len(texts) :]]
    finally:
        for chunk in registered:
            if chunk.created:
                llm.delete_chunk(chunk.chunk_id, salt=salt)


def _errors(llm: ChunkedLLM, system: str, contexts: list[str], query: str, salt: str | None) -> list[float]:
    """Returns the error of the stored KV, then those with one layer of it exact."""

    def logits(layers: tuple[int, int] | None, only: int | None) -> np.ndarray:
        computes = layers is not None or only is not None
        how = {"mode": "blend" if computes else "anchored", **({"recompute_layers": layers} if layers else {})}
        spec = _spec(system or None, contexts, query, salt=salt, without_system=not system, **how)
        if only is not None:
            blend = spec.blend
            blend.set_only_layer(only)
            spec.blend = blend
        return llm._chunks.logits_from_chunks(spec)["logits"]

    count = inspect(llm.model)["shape"]["layers"]  # of every kind; groups leave out those that hold nothing
    exact = logits((0, count), None)
    return [_divergence(exact, logits(None, only)) for only in (None, *range(count))]
