"""Whose a request is and how pressing, as callers say it and as the library takes it."""

from __future__ import annotations

import numbers
import reprlib
import sys
from collections.abc import MutableMapping, Sequence
from typing import Any

import numpy as np

from . import _quire, habits
from .convert import _set, to_flag, to_text
from .errors import KindError

_PLURALS = {
    "session": "sessions",
    "salt": "salts",
    "priority": "priorities",
    "deadline_seconds": "deadlines",
    "tenant": "tenants",
}

# Keywords of a call that say how pressing its request is.
URGENCY = ("priority", "deadline_seconds", "tenant")


def session_name(session: str | None) -> str:
    """Returns the name of a session. An empty name means no session, which nobody may ask for by accident."""
    name = "" if session is None else to_text(session, "session")
    if not name and session is not None:
        raise ValueError("session must be a name of 1 to 256 bytes, or None")
    return name


def to_salt(salt: str | None) -> str:
    """Returns the name of a tenant. An empty name means the engine's own, which nobody may ask for by accident."""
    name = "" if salt is None else to_text(salt, "salt")
    if not name and salt is not None:
        raise ValueError("salt must have 1 to 1024 bytes, or be None")
    return name


def _deadline(seconds: Any) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, (bool, np.bool_)) or not isinstance(seconds, (numbers.Real, np.number)):
        raise KindError(f"deadline_seconds must be a number above 0, or None, not {reprlib.repr(seconds)}")
    if not 0 < seconds < float("inf"):
        raise ValueError(f"deadline_seconds must be a finite number above 0, or None, not {reprlib.repr(seconds)}")
    try:
        return float(seconds)
    except OverflowError:  # an int that no float holds
        return sys.float_info.max


def whose(
    session: str | None = None,
    salt: str | None = None,
    keywords: MutableMapping[str, Any] | None = None,
    *,
    explain: bool = False,
    deltas: bool = True,
) -> _quire.RequestOptions:
    """Returns RequestOptions with the name of a session, a salt and the urgency that `keywords` holds, checked. Takes that
    out of `keywords`. `explain`: whether the output has parts; `deltas`: whether a stream gives them."""
    urgency = {name: keywords.pop(name) for name in URGENCY if name in keywords} if keywords else {}
    options = _quire.RequestOptions()
    options.deltas = deltas
    options.explain = to_flag(explain, "explain")
    options.session = session_name(session)
    options.salt = to_salt(salt)
    if urgency:
        _set(options, "priority", urgency.get("priority", 0))
        options.deadline_seconds = _deadline(urgency.get("deadline_seconds"))
        tenant = urgency.get("tenant")
        options.tenant = "" if tenant is None else to_text(tenant, "tenant")
    return options


def urgent(call: str, session: str | None, salt: str | None, urgency: MutableMapping[str, Any]) -> _quire.RequestOptions:
    """Returns RequestOptions of a call whose keywords are all urgency; TypeError for another keyword."""
    options = whose(session, salt, urgency)
    for name in urgency:
        habits.refuse_keyword(call, name, ("session", "salt", *URGENCY), habits.CALLS)
    return options


def each_whose(
    session: str | Sequence[str | None] | None,
    salt: str | Sequence[str | None] | None = None,
    keywords: MutableMapping[str, Any] | None = None,
    *,
    explain: bool = False,
    deltas: bool = True,
) -> list[_quire.RequestOptions]:
    """Returns one for all requests of a batch, or one for each. Takes the urgency out of `keywords`."""
    given: dict[str, Any] = {"session": session, "salt": salt}
    given |= {name: keywords.pop(name) for name in URGENCY if name in keywords} if keywords else {}
    each = {name: list(said) or [None] if isinstance(said, (list, tuple)) else [said] for name, said in given.items()}
    lengths = {name: len(values) for name, values in each.items() if len(values) > 1}
    if len(set(lengths.values())) > 1:
        counts = " and ".join(f"{length} {_PLURALS[name]}" for name, length in lengths.items())
        raise ValueError(f"{counts}; give one, or one for each request")
    requests = []
    for i in range(max(lengths.values(), default=1)):
        one = {name: values[i % len(values)] for name, values in each.items()}
        requests.append(whose(one.pop("session"), one.pop("salt"), one, explain=explain, deltas=deltas))
    return requests
