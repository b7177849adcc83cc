"""Messages of a conversation: checked, and compared with what the chat template reads and shows."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .errors import KindError

_ROLES = ("system", "user", "assistant", "tool")
_ROLE_HABITS = {  # of others, and of other templates
    "human": "user",
    "ai": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "developer": "system",
    "function": "tool",
    "ipython": "tool",
}
_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id")
_WITHOUT_EFFECT = ("name", "tool_call_id", "cache_control")  # where a template does not read them, nothing is lost


def shown_keys(given: Mapping[str, Any]) -> str:
    """Lists the keys of a dict, for an error."""
    return ", ".join(repr(key) for key in given) or "no keys"


def listed(given: Any, what: str, example: str) -> list[Any]:
    """Returns a list of things; KindError for one thing, or anything else."""
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise KindError(f"{what} must be a list, not {given!r:.60}; give {example}")
    return list(given)


def _nearest(word: str, known: Iterable[str]) -> str:
    similar = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def _like(message: Mapping[str, Any], key: str) -> list[str]:
    """Returns the key of a message that was probably meant to be `key`, which it lacks; at most one."""
    return [] if key in message else difflib.get_close_matches(key, message, n=1, cutoff=0.6)


def _joined_parts(parts: Sequence[Any], where: str) -> str:
    """Joins the text of OpenAI's content parts."""
    texts = []
    for index, part in enumerate(parts):
        place = f"{where}[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            what = f"of type {kind!r}" if isinstance(kind, str) else f"{part!r:.60}"
            raise ValueError(f'{place} is {what}; a part is {{"type": "text", "text": ...}}, the model reads nothing else')
        if not isinstance(part.get("text"), str):
            raise ValueError(f'{place} has no "text" that is a str')
        for key, value in part.items():
            if key not in ("type", "text", *_WITHOUT_EFFECT) and not says_nothing(value):
                raise ValueError(f'{place} has the key {key!r}; a part is {{"type": "text", "text": ...}}')
        texts.append(part["text"])
    return "".join(texts)


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        hint = "; one call takes one conversation" if isinstance(message, (list, tuple)) else ""
        raise KindError(f'{where} must be a dict with "role" and "content", not {message!r:.60}{hint}')
    for key in message:
        if not isinstance(key, str):
            raise TypeError(f"{where}: keys are str, not {key!r:.60}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        hint = "; is {!r} meant to be it?".format(*meant) if (meant := _like(message, "role")) else ""
        raise ValueError(f'{where} has no "role" that is a str, such as "user"; it has {shown_keys(message)}{hint}')
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        return {**message, "content": _joined_parts(content, f'{where}["content"]')}
    if content is None and message.get("tool_calls"):
        return dict(message)
    if not isinstance(content, str):
        what = "has no" if content is None else f"holds {content!r:.60} as"
        hint = "; is {!r} meant to be it?".format(*meant) if (meant := _like(message, "content")) else ""
        raise ValueError(f'{where} {what} "content": give a str, or a list of parts; it has {shown_keys(message)}{hint}')
    return dict(message)


def to_messages(messages: Any) -> list[dict[str, Any]]:
    """Returns messages as a template takes them, with text parts joined. Errors name the index of a message."""
    shown = messages if isinstance(messages, str) and len(messages) < 40 else "..."
    given = listed(messages, "messages", f'[{{"role": "user", "content": {shown!r}}}]')
    if not given:
        raise ValueError("messages is empty; give at least one message")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(given)]


def says_nothing(value: Any) -> bool:
    """Tells whether a field has no value; programs that write every field of a type send such fields."""
    return value is None or (isinstance(value, (str, list, tuple, Mapping)) and not value)


def _refuse_role(role: str, where: str, known: Iterable[str]) -> None:
    """Raises the ValueError for a role that the template does not name, and that means another one."""
    lower = role.lower()
    meant = lower if lower in known else _ROLE_HABITS.get(lower, "")
    hint = f"; did you mean {meant!r}?" if meant else _nearest(lower, known)
    if hint:
        raise ValueError(f"{where} has the role {role!r}, which the chat template does not know{hint}")


class _Marks:
    """Marks that stand for what may be lost, and what to say of one that the template does not show."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def add(self, error: str) -> str:
        """Adds an error and returns a new mark for it."""
        self.errors.append(error)
        return f"quiremessage{len(self.errors) - 1}mark"

    def error(self, text: str) -> str | None:
        """Returns the error of the first mark that the text of the prompt lacks, or None."""
        shown = {int(number) for number in re.findall(r"quiremessage(\d+)mark", text)}
        return next((error for number, error in enumerate(self.errors) if number not in shown), None)


def check_shown(
    messages: Sequence[dict[str, Any]], words: Iterable[str], render: Callable[[Sequence[dict[str, Any]]], str]
) -> None:
    """Raises the ValueError for a role or a key that the template does not know, and for a message that it does not show.

    words: names and strings in the tags of the template
    render: the prompt of messages; a ValueError where the template refuses them
    """
    named = set(words)
    known_roles = [role for role in (*_ROLES, *_ROLE_HABITS) if role in _ROLES or role in named]
    marks, given = _Marks(), []
    for index, message in enumerate(messages):
        where, role = f"messages[{index}]", message["role"]
        marked = {**message, "content": message.get("content") or ""}
        if role not in named and role not in _ROLES:
            _refuse_role(role, where, known_roles)
            marked["role"] = marks.add(f"{where} has the role {role!r}, which the chat template does not know")
        if role not in ("user", "assistant") and message.get("content"):
            marked["content"] = marks.add(f"the chat template of this model does not show {where}, of the role {role!r}")
        for key, value in message.items():
            if key in named or key in ("role", "content", *_WITHOUT_EFFECT) or says_nothing(value):
                continue
            hint = "" if key in _KEYS else _nearest(key, _KEYS)
            marked[key] = marks.add(f"{where} has the key {key!r}, which the chat template never reads{hint}")
        given.append(marked)
    if not marks.errors:
        return
    try:
        text = render(given)
    except ValueError:  # a template that looks at what it shows
        return
    error = marks.error(text)
    if error is not None:
        raise ValueError(error)
