"""What calls give back: records whose fields answer as attribute and as key."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from typing import Any, ClassVar

import numpy as np


class Record(Mapping):
    """Read-only fields that answer as attribute and as key: `out.text`, `out["text"]`, in the order of `keys()`.

    Properties that `_lazy` names are fields too, made when somebody asks for them.
    """

    _lazy: ClassVar[tuple[str, ...]] = ()

    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> KeysView[str]:
        return (self.__dict__ | dict.fromkeys(self._lazy)).keys()

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable; {name!r} stays as it is")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable; {name!r} stays as it is")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"


class Fields(dict):
    """A dict whose keys answer as attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Usage(Record):
    """Tokens of the prompt, of those taken from the cache, and generated."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Reuse(Record):
    """How exact the reuse was (`grade`), where it came from (`sources`: (what, tokens)), and the share of
    context tokens that was computed again.

    Sources add up to `usage.cached_tokens`, but for those that begin with "computed": these are what was
    computed beside the query, once for the first part or request of a call that uses it.
    """

    grade: str
    sources: list[tuple[str, int]]
    recompute_share: float


class Timing(Record):
    """Seconds from submission to first admission, first token and end."""

    queue_seconds: float
    first_token_seconds: float
    total_seconds: float


class GenerationOutput(Record):
    """One finished request. `logprobs` holds, per generated token, a dict id -> natural log probability.
    Where the call registered chunks, `chunk_ids` names them: {"system", "context": [...], "query"}; where turn and answer
    became items of a context, `user_id` (None without a turn) and `output_id` do."""

    request_id: int
    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    usage: Usage
    reuse: Reuse
    logprobs: list[dict[int, float]] | None
    timing: Timing
    chunk_ids: dict[str, Any]  # where there are such
    user_id: str | None
    output_id: str

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.__dict__["usage"] = Usage(fields["usage"])
        self.__dict__["reuse"] = Reuse(fields["reuse"])
        self.__dict__["timing"] = Timing(fields["timing"])


class Delta(Record):
    """What became certain since the last delta; `finish_reason` is None until the last one."""

    text: str
    token_ids: list[int]
    logprobs: list[dict[int, float]] | None
    finish_reason: str | None


class ForwardOutput(Record):
    """Logits float32 [rows computed, vocab_size] and the number of tokens whose KV was reused."""

    request_id: int
    logits: np.ndarray
    cached_tokens: int
