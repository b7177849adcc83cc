"""Tells what this machine and a model on its disk are, without opening the model."""

from __future__ import annotations

import json
from typing import Any

from . import _quire, habits
from .convert import to_model
from .load_options import Model


def doctor() -> dict[str, Any]:
    """Tells what this machine offers and which kernels are used; runs their self-test."""
    return json.loads(_quire.doctor_json())


@habits.names_unknown(habits.LLM_OPTIONS)
def inspect(model: Model) -> dict[str, Any]:
    """Tells what a model folder holds, what it needs in memory, and what is unsupported."""
    return json.loads(_quire.inspect_json(to_model(model)))


def groups_in_use(groups: list[dict[str, Any]], counters: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns `groups` of inspect() with what of each is in use and free. KV of all layers lies in the same blocks."""
    per_token = sum(group.get("bytes_per_token", 0) for group in groups)
    shares = []
    for group in groups:
        share = dict(group)
        if group["kind"] == "state":
            for name in ("states_in_use", "restore_points", "tokens_replayed"):
                share[name] = counters[name]
            share["bytes_in_use"] = counters["states_in_use"] * group["bytes"]
            share["bytes_free"] = (counters["states_total"] - counters["states_in_use"]) * group["bytes"]
        else:
            for name in ("bytes_in_use", "bytes_free"):
                share[name] = counters[name] * group["bytes_per_token"] // per_token
        shares.append(share)
    return shares
