"""How notebooks show what Quire gives: small tables, in HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Any


def bytes_text(count: float) -> str:
    """Formats a number of bytes for people: "1.5 GiB"."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _cell(value: Any, tag: str = "td") -> str:
    return f'<{tag} style="text-align:left">{html.escape(str(value))}</{tag}>'


def _row(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def table(title: str, fields: Mapping[str, Any]) -> str:
    """Shows names and values, one a row."""
    rows = "".join(_row((_cell(name, "th"), _cell(value))) for name, value in fields.items())
    return f"<div>{html.escape(title)}<table>{rows}</table></div>"


def grid(title: str, names: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Shows rows of values under their names."""
    head = _row(_cell(name, "th") for name in names)
    body = "".join(_row(_cell(value) for value in row) for row in rows)
    return f"<div>{html.escape(title)}<table>{head}{body}</table></div>"


def output(out: Any) -> str:
    """Shows an answer, and a line of how it came about."""
    usage = out.usage
    line = (
        f"{usage.cached_tokens} of {usage.prompt_tokens} prompt tokens reused ({out.reuse.grade}), "
        f"{usage.completion_tokens} generated in {out.timing.total_seconds:.2f} s, {out.finish_reason}"
    )
    text = f'<div style="white-space:pre-wrap">{html.escape(out.text)}</div>'
    return f"<div>{text}<small>{html.escape(line)}</small></div>"
