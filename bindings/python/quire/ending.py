"""The end of an interpreter while engines run and threads wait for them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import _quire
from .errors import ClosedError

# Each LLM whose engine may still run: an interpreter that ends closes them.
opened: weakref.WeakSet[Any] = weakref.WeakSet()


def _unless_closed(hook: Callable[[Any], object], raised: Any) -> None:
    """Calls `hook`, but for the ClosedError of a daemon thread."""
    is_closed = issubclass(raised.exc_type, ClosedError)
    if not (is_closed and raised.thread is not None and raised.thread.daemon):
        hook(raised)


@atexit.register
def close_all() -> None:
    """Ends what other threads wait for, with ClosedError, and keeps them from coming back later.

    Daemon threads end there without a word, as at the end of every interpreter.
    """
    threading.excepthook = functools.partial(_unless_closed, threading.excepthook)
    for _ in range(2):  # the second time: what they have opened since
        while opened:
            with contextlib.suppress(KeyError):  # the last one has gone meanwhile
                opened.pop().close()
        _quire.end_waiting()
