"""Whose a request is, as callers say it and as the library takes it."""

from __future__ import annotations

from collections.abc import Sequence

from . import _quire
from .tokenizer import to_text


def session_name(session: str | None) -> str:
    """The name of a session; empty: of none, which nobody may ask for by accident."""
    if session == "":
        raise ValueError("session must be a name of 1 to 256 bytes, or None")
    return "" if session is None else to_text(session, "session")


def to_salt(salt: str | None) -> str:
    """The name of a tenant; empty: the engine's own, which nobody may ask for by accident."""
    if salt == "":
        raise ValueError("salt must have 1 to 1024 bytes, or be None")
    return "" if salt is None else to_text(salt, "salt")


def whose(session: str | None = None, salt: str | None = None) -> _quire.RequestOptions:
    """RequestOptions with the name of a session and a salt, checked."""
    options = _quire.RequestOptions()
    options.session = session_name(session)
    options.salt = to_salt(salt)
    return options


def each_whose(
    session: str | Sequence[str | None] | None, salt: str | Sequence[str | None] | None = None
) -> list[_quire.RequestOptions]:
    """One for all requests of a batch, or one for each."""
    sessions, salts = (list(said) or [None] if isinstance(said, (list, tuple)) else [said] for said in (session, salt))
    if 1 < len(sessions) != len(salts) > 1:
        raise ValueError(f"{len(sessions)} sessions and {len(salts)} salts; give one, or one for each request")
    return [whose(sessions[i % len(sessions)], salts[i % len(salts)]) for i in range(max(len(sessions), len(salts)))]
