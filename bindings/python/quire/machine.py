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


def groups_in_use(groups: list[dict[str, Any]], counters: dict[str, Any], block_tokens: int) -> list[dict[str, Any]]:
    """Returns `groups` of inspect() with what of each is in use and free. Groups with KV share what is free. Bytes of a
    token are those of the pool's format, where inspect() has those of the checkpoint's."""
    by_kind = {"full": counters["bytes_in_use"] - counters["window_bytes_in_use"], "window": counters["window_bytes_in_use"]}
    splits = counters["window_block_bytes"] > 0
    of_windows = counters["window_block_bytes"] if splits else counters["block_bytes"]
    block_bytes = {"full": counters["block_bytes"] - (of_windows if splits else 0), "window": of_windows}
    shares = []
    for group in groups:
        share = dict(group)
        if group["kind"] == "state":
            for name in ("states_in_use", "restore_points", "host_restore_points", "host_kv_bytes", "tokens_replayed"):
                share[name] = counters[name]
            share["bytes_in_use"] = counters["states_in_use"] * group["bytes"]
            share["bytes_free"] = (counters["states_total"] - counters["states_in_use"]) * group["bytes"]
        else:
            alike = [other for other in groups if other["kind"] == group["kind"] or (not splits and other["kind"] != "state")]
            in_use = by_kind[group["kind"]] if splits else counters["bytes_in_use"]
            per_token = sum(other["bytes_per_token"] for other in alike)
            share["bytes_in_use"] = in_use * group["bytes_per_token"] // per_token
            share["bytes_per_token"] = block_bytes[group["kind"]] * group["bytes_per_token"] // (per_token * block_tokens)
            share["bytes_free"] = counters["bytes_free"]
        shares.append(share)
    return shares
