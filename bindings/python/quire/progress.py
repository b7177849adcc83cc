"""Bars that show how far loading and registering are."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .convert import _callback

Progress = Callable[[float], object] | bool | None

_WIDTH = 30  # of a bar on a terminal, in characters


def _in_notebook() -> bool:
    """Tells whether a notebook's kernel runs this: its output is no terminal but shows bars."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _columns() -> int:
    """Returns the width of the terminal on stderr, in characters."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):  # no terminal, or one that has no descriptor
        return 80


class _Line:
    """A bar of one line on stderr, which takes one row of the terminal."""

    def __init__(self, what: str) -> None:
        room = _columns() - len(" [] 100 %") - 1  # a full row would begin the next one
        self._what = what[: max(room, 0)]
        self._width = max(min(_WIDTH, room - len(self._what)), 0)
        self._shown = -1

    def __call__(self, share: float) -> None:
        percent = int(100 * share)
        if percent != self._shown:
            self._shown = percent
            filled = int(self._width * share)
            sys.stderr.write(f"\r{self._what} [{'#' * filled}{' ' * (self._width - filled)}] {percent:3d} %")
            sys.stderr.flush()

    def close(self) -> None:
        if self._shown >= 0:
            sys.stderr.write("\n")


class _Tqdm:
    """Shows progress with a bar of tqdm."""

    def __init__(self, what: str) -> None:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        self._bar = tqdm(total=100, desc=what, bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}")

    def __call__(self, share: float) -> None:
        self._bar.update(100 * share - self._bar.n)

    def close(self) -> None:
        self._bar.close()


def _bar(what: str) -> Any:
    try:
        return _Tqdm(what)
    except ImportError:
        return _Line(what)


@contextlib.contextmanager
def shown(progress: Progress, what: str) -> Iterator[Callable[[float], object] | None]:
    """Yields the function that hears of the share that is done, 0 to 1. True: a bar on a terminal or in a notebook, else
    none."""
    if not isinstance(progress, bool):
        yield _callback(progress, "progress")
    elif progress and (sys.stderr.isatty() or _in_notebook()):
        bar = _bar(what)
        try:
            yield bar
        finally:
            bar.close()
    else:
        yield None
