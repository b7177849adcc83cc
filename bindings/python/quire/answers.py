"""Answers of chats, split into thinking, content and tool calls as the library's parser splits them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from . import _quire
from .convert import to_json
from .outputs import GenerationOutput, ToolCall


class Answer:
    """One answer as it comes, or as a whole."""

    def __init__(self, parser: _quire.AnswerParser) -> None:
        self._parser = parser
        self._parts: dict[str, Any] = {"thinking": "", "content": "", "tool_calls": []}

    def add(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the fields of the next delta, with its parts."""
        finished = fields["finish_reason"] is not None
        thinking, content, calls = self._parser.take(fields["text"], fields["token_ids"], finished)
        parts = {
            "thinking": thinking,
            "content": content,
            "tool_calls": [
                ToolCall({"id": call_id, "name": name, "arguments": json.loads(arguments)}) for call_id, name, arguments in calls
            ],
        }
        for name, part in parts.items():
            self._parts[name] = self._parts[name] + part
        return {**fields, **parts}

    def finish(self, output: GenerationOutput) -> GenerationOutput:
        """Returns the output with the parts of all deltas so far."""
        return GenerationOutput({**output, **self._parts})


class Answers:
    """The answers to one prompt. `tokenizer`: the library's, which has the template; `tools`: what the template had as such."""

    def __init__(self, tokenizer: _quire.Tokenizer, prompt_ids: list[int], tools: list[Any]) -> None:
        self._tokenizer = tokenizer
        self._prompt_ids = prompt_ids
        self._tools = to_json(tools, "tools")

    def answer(self) -> Answer:
        """Returns a new answer to take deltas."""
        return Answer(self._tokenizer.answer_parser(self._prompt_ids, self._tools))

    def split(self, output: GenerationOutput) -> GenerationOutput:
        """Returns a whole output with its parts, and with those of its choices."""
        answer = self.answer()
        answer.add(output)
        whole = answer.finish(output)
        return whole if whole["outputs"] is None else whole.with_choices([self.split(each) for each in whole.outputs])
