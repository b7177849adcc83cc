"""Messages of an engine, on their way to a function or a logger."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from . import _quire

Log = Callable[[int, str], object] | logging.Logger | None


def _function(log: Log) -> Callable[[int, str], object] | None:
    """Returns the function that hears of (level, text); TypeError for anything else."""
    if isinstance(log, (logging.Logger, logging.LoggerAdapter)):
        logger = log
        return lambda level, text: logger.log(level, "%s", text)
    if log is not None and not callable(log):
        raise TypeError(f"log must be a function of a level and a text, or a logging.Logger, not {log!r}")
    return log


def _deliver(records: _quire.LogRecords, function: Callable[[int, str], object]) -> None:
    """Calls the function for each record until no more will come. An exception of the function is shown, as a thread's
    is, and ends nothing."""
    while taken := records.take():
        for level, text in taken:
            try:
                function(level, text)
            except Exception:
                sys.excepthook(*sys.exc_info())


def on_change(function: Callable[[dict[str, Any]], object] | None) -> Callable[[int, str], object] | None:
    """Returns the function that hears JSON and calls `function` with its dict."""
    if function is None:
        return None
    if not callable(function):
        raise TypeError(f"on_pressure must be a function of a dict, not {function!r}")
    return lambda _level, text: function(json.loads(text))


class Delivery:
    """The thread that calls a function of the user's: the engine never waits for it."""

    def __init__(self, log: Log, options: _quire.Options, source: str = "log_to") -> None:
        function = _function(log)
        self._thread: threading.Thread | None = None
        if function is None:
            return
        self._records = _quire.LogRecords()
        getattr(options, source)(self._records)
        self._thread = threading.Thread(target=_deliver, args=(self._records, function), name="quire-log", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Delivers what has come so far, and ends the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._records.end()
            if thread is not threading.current_thread():
                thread.join()
