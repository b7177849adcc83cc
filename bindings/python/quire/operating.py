"""Calls for operators of an LLM: sessions, pressure, decisions of the scheduler."""

from __future__ import annotations

import json
from typing import Any

from . import _quire
from .convert import _pass, _set
from .session import session_name, to_salt


class Operated:
    """The part of an LLM for operators."""

    _handle: _quire.LLM

    def pause_session(self, session: str, expected_return: float | None = None, *, salt: str | None = None) -> None:
        """Says that the session is away, and back in `expected_return` seconds (None: nobody knows). Its next request ends
        this.

        When memory runs short the KV of closed sessions goes first, then what outlived its TTL, then the lowest priority.
        Among equals goes what is expected back last. Results never depend on it. The first request or set_retention that
        names a session opens it. It stays open until it is closed, or until 16,384 others were named since. Any other is
        a LookupError. Each `salt` (see generate) has sessions of its own.
        """
        name, tenant = session_name(session), to_salt(salt)
        _pass("expected_return", expected_return, lambda seconds: self._handle.pause_session(name, seconds, tenant))

    def close_session(self, session: str, *, salt: str | None = None) -> None:
        """Says that nobody comes back to the session; what it alone has left in the cache goes first. LookupError as
        above."""
        self._handle.close_session(session_name(session), to_salt(salt))

    def set_retention(self, session: str, *, priority: int = 0, ttl: float | None = None, salt: str | None = None) -> None:
        """Sets how long and how well the session's KV is kept: `ttl` in seconds after its last request. Opens the session."""
        retention = _quire.SessionRetention()
        _set(retention, "priority", priority)
        _set(retention, "ttl", ttl)
        self._handle.set_retention(session_name(session), retention, to_salt(salt))

    def pressure(self) -> dict[str, Any]:
        """Tells how short blocks are. Never waits.

        `level` is "low", "medium", "high" or "critical", and `action` is what the level means: "none", "slow admission",
        "preempt" or "reject". `blocks_free_share` is that of free and cached blocks; `waiting` and
        `preemptions_per_minute` count requests."""
        return json.loads(self._handle.pressure_json())

    def plan_log(self, n: int = 4096) -> list[dict[str, Any]]:
        """Returns the last `n` decisions of the scheduler, the oldest first; at least 4,096 are kept. Each has `step`,
        `admitted` (request ids), `preempted` (lists of id and reason: "blocks" or "priority"), `rows` and `ms`."""
        return [json.loads(each) for each in _pass("n", n, self._handle.plan_log_json)]

    def remarks(self) -> list[str]:
        """Tells which requested things opening did not do, and why: packed weights that could not be kept, a store that
        is only read."""
        return self._handle.remarks()

    def metrics_text(self) -> str:
        """Writes the counters, and histograms of waiting and of steps, in Prometheus' text format 0.0.4. For the operator."""
        return self._handle.metrics_text()

    def clear_prefix_cache(self) -> int:
        """Forgets every cached block that nobody uses; returns how many became free."""
        return self._handle.clear_prefix_cache()
