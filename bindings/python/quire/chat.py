"""Conversations on their way into a chat template. A template that would not show a part of a request is refused:
nothing is lost."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import habits
from .convert import to_flag, to_json
from .errors import KindError
from .messages import check_shown, listed, says_nothing, shown_keys, to_messages

OWN_WORDS = {"messages", "add_generation_prompt", "documents", "tools"}  # variables with an argument of their own


def to_documents(documents: Any) -> list[dict[str, Any]]:
    """Returns documents as templates take them: dicts with "text"; a str is one. Errors name the index of a document."""
    given = listed(documents, "documents", '[{"text": ...}]')
    taken = []
    for index, document in enumerate(given):
        if isinstance(document, str):
            document = {"text": document}
        if not isinstance(document, Mapping):
            raise KindError(f'documents[{index}] must be a dict with "text", or a str, not {document!r:.60}')
        if not isinstance(document.get("text"), str):
            raise ValueError(f'documents[{index}] has no "text" that is a str; it has {shown_keys(document)}')
        taken.append(dict(document))
    return taken


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def to_tools(tools: Any) -> list[Any]:
    """Returns tools as templates take them: dicts with the schema of a function; some know tools by name, a str. Errors name
    the index of a tool."""
    wanted = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}'
    given = listed(tools, "tools", f"[{wanted}]")
    for index, tool in enumerate(given):
        if not isinstance(tool, (Mapping, str)):
            raise KindError(f"tools[{index}] must be a dict, {wanted}, not {tool!r:.60}")
        if isinstance(tool, Mapping) and not isinstance(_function(tool).get("name"), str):
            raise ValueError(f'tools[{index}] has no function with a "name"; give {wanted}')
    return copy.deepcopy(given)


def _marked_documents(documents: list[dict[str, Any]]) -> tuple[list[Any], list[str]]:
    marks = [f"quiredocument{index}mark" for index in range(len(documents))]
    return [{**document, "text": mark} for document, mark in zip(documents, marks, strict=True)], marks


def _marked_tools(tools: list[Any]) -> tuple[list[Any], list[str]]:
    marks = [f"quiretool{index}mark" for index in range(len(tools))]
    marked = []
    for tool, mark in zip(tools, marks, strict=True):
        if isinstance(tool, str):
            marked.append(mark)
        elif _function(tool) is tool:
            marked.append({**tool, "name": mark})
        else:
            marked.append({**tool, "function": {**tool["function"], "name": mark}})
    return marked, marks


_MARKED: dict[str, Callable[[list[dict[str, Any]]], tuple[list[Any], list[str]]]] = {
    "documents": _marked_documents,
    "tools": _marked_tools,
}
_WAY_OUT = {
    "documents": "put their text into a message, or register them as chunks (quire.ChunkedLLM)",
    "tools": "describe them in a system message",
}


class Conversation:
    """Messages and template variables, checked. `handle`: the library's tokenizer, which has the template."""

    def __init__(self, handle: Any, messages: Any, add_generation_prompt: bool, variables: Mapping[str, Any]) -> None:
        self._handle = handle
        checked = to_messages(messages)
        self._messages = to_json(checked, "messages")
        self._prompt = to_flag(add_generation_prompt, "add_generation_prompt")
        self._variables = dict(variables)
        for name, take in (("documents", to_documents), ("tools", to_tools)):
            given = self._variables.pop(name, None)
            taken = [] if given is None else take(given)
            if taken:
                self._variables[name] = taken
        check_shown(checked, handle.template_words("tools" in self._variables), self._rendered_messages)

    def render(self) -> str:
        """Returns the prompt's text."""
        text = self._rendered(self._variables)
        self._check()
        return text

    def ids(self) -> list[int]:
        """Returns the ids of the prompt. Text of messages never becomes a special token."""
        ids = self._handle.apply_chat_template(self._messages, self._prompt, to_json(self._variables, "template variables"))
        self._check()
        return ids

    def _rendered(self, variables: Mapping[str, Any]) -> str:
        return self._handle.render_chat_template(self._messages, self._prompt, to_json(variables, "template variables"))

    def _rendered_messages(self, messages: Sequence[dict[str, Any]]) -> str:
        variables = to_json(self._variables, "template variables")
        return self._handle.render_chat_template(to_json(messages, "messages"), self._prompt, variables)

    def _check(self) -> None:
        """Raises the ValueError for a variable that the template does not read, and for a document or tool that is not shown."""
        read = self._handle.template_variables("tools" in self._variables)
        for name in self._variables:
            if name not in read and name not in _MARKED:
                known = sorted(set(read) - OWN_WORDS)
                reads = f"it reads {', '.join(known)}" if known else "it reads no variables"
                raise ValueError(f"the chat template never reads {name!r}{habits.hint(name, known)}; {reads}")
        for name in _MARKED:
            if name in self._variables:
                self._check_shown(name, name in read)

    def _check_shown(self, name: str, is_read: bool) -> None:
        if not is_read:
            raise ValueError(f"the chat template of this model shows no {name}; {_WAY_OUT[name]}")
        marked, marks = _MARKED[name](self._variables[name])
        try:
            text = self._rendered({**self._variables, name: marked})
        except ValueError:  # a template that looks at what it shows
            return
        if name == "documents":
            self._warn_of_lost_keys()
        lost = next((index for index, mark in enumerate(marks) if mark not in text), None)
        if lost is not None:
            raise ValueError(f"the chat template does not show {name}[{lost}] in this conversation; {_WAY_OUT[name]}")

    def _warn_of_lost_keys(self) -> None:
        """Warns of a key of a document that the template does not show. Its text is shown, so the prompt goes on."""
        words = set(self._handle.template_words("tools" in self._variables))
        documents = self._variables["documents"]
        for index, document in enumerate(documents):
            for key in document:
                if key == "text" or key in words or says_nothing(document[key]):
                    continue
                marked = [dict(each) for each in documents]
                marked[index][key] = mark = "quirekeymark"
                if mark not in self._rendered({**self._variables, "documents": marked}):
                    warnings.warn(
                        f"documents[{index}] has the key {key!r}, which the chat template does not show; put it into \"text\"",
                        stacklevel=2,
                    )
                    return


def template_arguments(template_args: Any, documents: Any, tools: Any) -> dict[str, Any]:
    """Returns the variables of a call that chats. Raises errors for what has an argument of its own."""
    if not isinstance(template_args, Mapping):
        raise TypeError(f"template_args must be a dict of template variables, not {template_args!r:.60}")
    for name in template_args:
        if not isinstance(name, str):
            raise TypeError(f"template_args has the key {name!r}; names of variables are str")
        if name in OWN_WORDS:
            raise ValueError(f"{name!r} in template_args: it is an argument of the call, or the call's own affair")
    return {**template_args, "documents": documents, "tools": tools}
