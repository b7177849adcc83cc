"""Records that calls return: their fields answer as attribute and as key, and json.dumps takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from . import habits, show

_SHOWN_ITEMS = 8  # of a list in a repr


def _plain(value: Any) -> Any:
    """Returns `value` as json.loads would give it back, but for keys that are numbers."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _short(value: Any) -> str:
    """Returns the repr of a field, with few of a long list's items."""
    if type(value) is list and len(value) > _SHOWN_ITEMS:
        first = ", ".join(map(repr, value[:_SHOWN_ITEMS]))
        return f"[{first}, ... {len(value) - _SHOWN_ITEMS} more]"
    return repr(value)


class Record(dict):
    """Read-only fields that answer as attribute and as key: `out.text`, `out["text"]`. A dict, which json.dumps takes."""

    __slots__ = ()
    _habits: ClassVar[dict[str, str]] = {}  # of others, see habits.hint

    if not TYPE_CHECKING:  # a type checker knows the fields, and no others

        def __getattr__(self, name: str) -> Any:
            if name in self and not name.startswith("__"):
                return self[name]
            known = [*self, *(each for each in dir(type(self)) if not each.startswith("_"))]
            raise AttributeError(f"a {type(self).__name__} has no {name!r}{habits.hint(name, known, self._habits)}")

        def __missing__(self, name: object) -> NoReturn:
            near = habits.hint(name, self, self._habits) if isinstance(name, str) else ""
            raise KeyError(f"a {type(self).__name__} has no {name!r}{near}")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is immutable; dict(it) is a copy that may be changed")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse  # type: ignore[assignment]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable; {name!r} stays as it is")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable; {name!r} stays as it is")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_short(value)}" for name, value in dict.items(self))
        return f"{type(self).__name__}({fields})"

    def _repr_html_(self) -> str:
        """Shows the record in a notebook."""
        return show.table(type(self).__name__, {name: _short(value) for name, value in dict.items(self)})

    def to_dict(self) -> dict[str, Any]:
        """Returns a plain dict of plain dicts and lists, which may be changed."""
        return _plain(self)


class Fields(dict):
    """A dict whose keys answer as attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def _repr_html_(self) -> str:
        """Shows the fields in a notebook."""
        return show.table("", {name: repr(value) for name, value in self.items()})


class Usage(Record):
    """Tokens of the prompt, of those taken from the cache, and generated."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int
    accepted_tokens: int


class Reuse(Record):
    """How exact the reuse was (`grade`), where it came from (`sources`: (what, tokens)), and the share of
    context tokens that was computed again.

    Sources add up to `usage.cached_tokens`, but for those that begin with "computed". These were computed beside the
    query, once for the first part or request of a call that uses them.
    """

    grade: str
    sources: list[tuple[str, int]]
    recompute_share: float


class Timing(Record):
    """Seconds from submission to first admission, first token and end."""

    queue_seconds: float
    first_token_seconds: float
    total_seconds: float


class ToolCall(Record):
    """A call of a function that the model asks for. `id`: what a message of the role "tool" refers to."""

    id: str
    name: str
    arguments: dict[str, Any]


class GenerationOutput(Record):
    """One finished request; str(output) is its text. Answers of chats have its parts, as the model marks them: `thinking`,
    `tool_calls` and, as `content`, the rest. Without marks the content is all of the text. `logprobs` holds, per generated token, a dict id -> natural log probability.
    `stopped_by`: what ended the text: the stop string, the stop id, "eos" or "length"; None of an aborted request. `parts`, with
    explain=True: for each part of the prompt whether its KV was there. `outputs`: all choices, of which this is the first. Where
    the call registered chunks, `chunk_ids` names them: {"system", "context": [...], "query"}. Where turn and answer became items
    of a context, `user_id` (None without a turn) and `output_id` do."""

    request_id: int
    text: str
    thinking: str  # of chats, as the next two
    content: str
    tool_calls: list[ToolCall]
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    stopped_by: str | int | None
    usage: Usage
    reuse: Reuse
    parts: list[Fields] | None
    logprobs: list[dict[int, float]] | None
    timing: Timing
    chunk_ids: dict[str, Any]  # where there are such
    user_id: str | None
    output_id: str

    _habits = habits.OUTPUT

    def __init__(self, fields: dict[str, Any]) -> None:
        named = {"usage": Usage(fields["usage"]), "reuse": Reuse(fields["reuse"]), "timing": Timing(fields["timing"])}
        if fields.get("parts") is not None:
            named["parts"] = [Fields(part) for part in fields["parts"]]
        choices = fields.get("outputs")
        named["outputs"] = None if choices is None else [GenerationOutput(each) for each in choices]
        super().__init__({**fields, **named})

    @property
    def outputs(self) -> list[GenerationOutput]:
        """All choices in order; of one without others, itself."""
        return [self] if self["outputs"] is None else self["outputs"]

    def with_choices(self, outputs: list[GenerationOutput]) -> GenerationOutput:
        """Returns this output with all choices, of which it is the first."""
        return GenerationOutput({**self, "outputs": outputs})

    def __str__(self) -> str:
        return self.text

    if not TYPE_CHECKING:  # a type checker says it by itself

        def __await__(self) -> NoReturn:
            raise TypeError("an output is there at once, and no awaitable; on an event loop: await llm.generate_async(prompt), "
                            "or chat_async(messages)")

    def _repr_html_(self) -> str:
        """Shows the answer in a notebook, and how much of the prompt was reused."""
        return show.output(self)


class Delta(Record):
    """Text that became certain since the last delta; `finish_reason` is None until the last one. Those of chats have the
    parts of the answer that became certain; a tool call comes whole."""

    text: str
    thinking: str  # of chats, as the next two
    content: str
    tool_calls: list[ToolCall]
    token_ids: list[int]
    logprobs: list[dict[int, float]] | None
    finish_reason: str | None

    def __str__(self) -> str:
        return self.text


class ForwardOutput(Record):
    """Logits float32 [rows computed, vocab_size] and the number of tokens whose KV was reused. json.dumps takes to_dict(),
    where the logits are lists; an array is no JSON."""

    request_id: int
    logits: np.ndarray
    cached_tokens: int
