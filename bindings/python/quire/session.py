"""Whose a request is, as callers say it and as the library takes it."""

from __future__ import annotations

from collections.abc import Sequence

from . import _quire
from .convert import to_flag, to_text


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


def whose(
    session: str | None = None, salt: str | None = None, *, explain: bool = False, deltas: bool = True
) -> _quire.RequestOptions:
    """Returns RequestOptions with the name of a session and a salt, checked. `explain`: whether the output has parts;
    `deltas`: whether a stream gives them."""
    options = _quire.RequestOptions()
    options.deltas = deltas
    options.explain = to_flag(explain, "explain")
    options.session = session_name(session)
    options.salt = to_salt(salt)
    return options


def each_whose(
    session: str | Sequence[str | None] | None,
    salt: str | Sequence[str | None] | None = None,
    *,
    explain: bool = False,
    deltas: bool = True,
) -> list[_quire.RequestOptions]:
    """Returns one for all requests of a batch, or one for each."""
    sessions, salts = (list(said) or [None] if isinstance(said, (list, tuple)) else [said] for said in (session, salt))
    if 1 < len(sessions) != len(salts) > 1:
        raise ValueError(f"{len(sessions)} sessions and {len(salts)} salts; give one, or one for each request")
    count = max(len(sessions), len(salts))
    each = ((sessions[i % len(sessions)], salts[i % len(salts)]) for i in range(count))
    return [whose(*said, explain=explain, deltas=deltas) for said in each]
