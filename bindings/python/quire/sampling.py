"""Sampling parameters as callers give them: one value, one for each prompt, and keywords that go over both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from . import habits
from ._quire import SamplingParams

Params = SamplingParams | dict[str, Any] | None


class Sampling(TypedDict, total=False):
    """The fields of SamplingParams as keywords of a call."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    max_tokens: int
    min_tokens: int
    stop: str | list[str] | None
    stop_token_ids: list[int] | None
    ignore_eos: bool
    seed: int | None
    logprobs: int | None
    logit_bias: dict[int, float] | dict[str, float] | None
    n: int
    speculate: int | bool | None


class Urgency(TypedDict, total=False):
    """How pressing a request is. For a list of prompts each is one value, or a list."""

    priority: int | Sequence[int]
    deadline_seconds: float | None | Sequence[float | None]
    tenant: str | None | Sequence[str | None]


class Request(Sampling, Urgency, total=False):
    """The keywords of a call that makes requests: sampling parameters, and how pressing the request is."""


FIELDS = tuple(Sampling.__annotations__)


def check_keywords(call: str, keywords: Iterable[str], also: Iterable[str] = ()) -> None:
    """Raises the TypeError for the first keyword that is no field of SamplingParams; `also`: what else the call takes."""
    for name in keywords:
        if name not in FIELDS:
            if name in habits.OPTIONS:
                raise TypeError(f"{call} takes no {name!r}; it is an option of LLM(model, {name}=)")
            known = [*also, *FIELDS, "priority", "deadline_seconds", "tenant"]
            habits.refuse_keyword(call, name, known, habits.CALLS, habits.SAMPLING, habits.LLM_OPTIONS)


def check_params(params: Any) -> None:
    """Raises the TypeError for what are no sampling parameters."""
    if not isinstance(params, (SamplingParams, dict, type(None))):
        raise TypeError(f"sampling_params must be a SamplingParams, a dict or None, not a {type(params).__name__}")


def _over(params: Params, keywords: Mapping[str, Any]) -> Params:
    if isinstance(params, SamplingParams):
        return SamplingParams(**{**params.__getstate__(), **keywords})
    return {**(params or {}), **keywords}


def sampling(call: str, params: Params, keywords: Mapping[str, Any], also: Iterable[str] = ()) -> Params:
    """Returns `params` with the keywords of the call over them."""
    check_keywords(call, keywords, also)
    check_params(params)
    return _over(params, keywords) if keywords else params


def each_sampling(call: str, params: Any, keywords: Mapping[str, Any], also: Iterable[str] = ()) -> list[Params]:
    """Returns the parameters of each request of a batch, given one for all or one for each."""
    listed = list(params) if isinstance(params, (list, tuple)) else [params]
    return [sampling(call, each, keywords, also) for each in listed]


def each_choice(params: Params) -> list[Params]:
    """Returns the parameters of each of the `n` outputs."""
    taken = params if isinstance(params, SamplingParams) else SamplingParams(**(params or {}))
    if taken.n == 1:
        return [params]
    seeds = [None] * taken.n if taken.seed is None else [(taken.seed + i) % 2**64 for i in range(taken.n)]
    return [_over(taken, {"n": 1, "seed": seed}) for seed in seeds]
