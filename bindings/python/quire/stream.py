"""Outputs as they come: deltas, and the dicts of direct inference."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from . import _quire
from .answers import Answer
from .outputs import Delta, GenerationOutput


class Stream(Iterator[Delta]):
    """Deltas of one request as they come. Closing or dropping it aborts the request and frees its blocks."""

    def __init__(
        self,
        handle: _quire.Stream,
        ended: Callable[[GenerationOutput], object] | None = None,
        answer: Answer | None = None,
    ) -> None:
        """Wraps a handle. `ended` hears of the whole output, once finished. `answer` splits what a chat gives."""
        self._handle = handle
        self._ended = ended
        self._answer = answer
        self.request_id: int = handle.request_id
        self.output: GenerationOutput | None = None  # the whole output, once finished
        self._texts: list[str] = []

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Delta:
        fields = None if self._handle is None else self._handle.next()
        if fields is None:
            raise StopIteration
        if self._answer is not None:
            fields = self._answer.add(fields)
        if fields["finish_reason"] is not None:
            output = GenerationOutput(self._handle.output())
            self.output = output if self._answer is None else self._answer.finish(output)
            if self._ended is not None:
                self._ended(self.output)
        self._texts.append(fields["text"])
        return Delta(fields)

    if not TYPE_CHECKING:  # a type checker says it by itself

        def _refuse_loop(self, *_: object) -> NoReturn:
            raise TypeError("a Stream waits: for delta in stream; on an event loop: async for delta in llm.stream_async(prompt), "
                            "stream_chat_async(messages) or stream_from_chunks_async(...), or await llm.generate_async(prompt)")

        __aiter__ = __await__ = __aenter__ = __aexit__ = _refuse_loop

    @property
    def text(self) -> str:
        """The text of all deltas so far; it stays when the stream is closed."""
        return "".join(self._texts)

    def close(self) -> None:
        """Aborts the request if it still runs; no delta comes any more."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._handle is None else "running"
        if self.output is not None:
            state = f"finished: {self.output.finish_reason}"
        return f"Stream(request {self.request_id}, {state})"


def token_dicts(stream: Stream) -> Generator[dict[str, Any], None, None]:
    """Yields one dict per generated token: "token" (the text that became certain with it), "token_id", "finish_reason".

    Bytes that are no whole character yet, and text that may be part of a stop string, give "token": "" and come with a
    later one. A request that ends without another token (aborted, max_tokens=0) says so with "token_id": None.
    """
    with stream:
        for delta in stream:
            *first, last = delta.token_ids or [None]
            for token_id in first:
                yield {"token": "", "token_id": token_id, "finish_reason": None}
            yield {"token": delta.text, "token_id": last, "finish_reason": delta.finish_reason}
