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
