"""Whose a request is, as callers say it and as the library takes it."""

from __future__ import annotations

from collections.abc import Sequence

from .tokenizer import to_text


def session_name(session: str | None) -> str:
    """The name of a session; empty: of none, which nobody may ask for by accident."""
    if session == "":
        raise ValueError("session must be a name of 1 to 256 bytes, or None")
    return "" if session is None else to_text(session, "session")


def session_names(session: str | Sequence[str | None] | None) -> list[str]:
    """One for all requests of a batch, or one for each."""
    return [session_name(each) for each in (session if isinstance(session, (list, tuple)) else [session])]
