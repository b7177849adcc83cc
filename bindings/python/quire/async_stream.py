"""Streams on an event loop. The engine tells through one file descriptor for each loop; nothing waits in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import _quire
from .answers import Answer
from .errors import ClosedError
from .outputs import Delta, GenerationOutput
from .sampling import Params, each_choice


class _Waker:
    """The streams of one event loop that wait, by key. The loop watches its descriptor."""

    _of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waker] = weakref.WeakKeyDictionary()
    _making = threading.Lock()
    _keys = itertools.count(1)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wakeups = _quire.Wakeups()
        self._events: dict[int, asyncio.Event] = {}
        loop.add_reader(self._wakeups.fd(), self._wake)  # until it closes; this must not keep it alive

    @classmethod
    def of_running_loop(cls) -> _Waker:
        loop = asyncio.get_running_loop()
        with cls._making:
            if loop not in cls._of_loop:
                cls._of_loop[loop] = cls(loop)
            return cls._of_loop[loop]

    def add(self, options: _quire.RequestOptions) -> int:
        """Returns the key of a new stream, which `options` now wake."""
        key = next(self._keys)
        options.wake(self._wakeups, key)
        self._events[key] = asyncio.Event()
        return key

    def remove(self, key: int) -> None:
        """Forgets the stream, for which nobody waits any longer."""
        event = self._events.pop(key, None)
        if event is not None:
            event.set()

    async def wait(self, key: int) -> None:
        """Waits until the stream may have something."""
        event = self._events[key]
        await event.wait()
        event.clear()

    def _wake(self) -> None:
        for key in self._wakeups.take():
            event = self._events.get(key)
            if event is not None:
                event.set()


Start = Callable[[_quire.RequestOptions], Awaitable[_quire.Stream]]


class AsyncStream(AsyncIterator[Delta]):
    """Deltas of one request as they come: `async for delta in stream`. The request begins with the first that is asked
    for.

    Cancelling the task that waits, `await stream.aclose()` and dropping the stream abort the request.
    """

    def __init__(self, start: Start, options: _quire.RequestOptions, answer: Answer | None = None) -> None:
        """Wraps a call that starts the request. `answer` splits what a chat gives."""
        self._start = start
        self._options = options
        self._handle: _quire.Stream | None = None
        self._asked = False  # a task waits for the next delta
        self._ended = False
        self._answer = answer
        self._ended_with: Callable[[GenerationOutput], object] = lambda _: None  # hears of the whole output
        self._key = 0
        self.request_id: int | None = None  # once it has given a delta
        self.output: GenerationOutput | None = None  # the whole output, once finished
        self._texts: list[str] = []

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Delta:
        fields = None if self._ended else await self._next()
        if fields is None:
            raise StopAsyncIteration
        self._texts.append(fields["text"])
        return Delta(fields)

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            raise TypeError("an AsyncStream comes on the event loop: async for delta in stream; llm.stream(prompt) waits")

        def __await__(self) -> NoReturn:
            raise TypeError("an AsyncStream gives deltas: async for delta in stream; for the whole, await llm.generate_async(prompt)")

        def __enter__(self) -> NoReturn:
            raise TypeError("an AsyncStream is closed on the event loop: async with stream; llm.stream(prompt) waits")

        __exit__ = __enter__

    @property
    def text(self) -> str:
        """The text of all deltas so far; it stays when the stream is closed."""
        return "".join(self._texts)

    async def _next(self) -> dict[str, Any] | None:
        """Waits for the next delta. Returns None behind the last one, and when somebody has closed the stream meanwhile."""
        if self._asked:
            raise RuntimeError("another task waits for this stream already")
        self._asked = True
        try:
            handle = self._handle or await self._begin()
            while not self._ended and not handle.ready():
                await self._waker.wait(self._key)
            if self._ended:
                handle.close()
                return None
            fields = handle.next()
        except BaseException:  # also of a task that is cancelled
            self._end()
            raise
        finally:
            self._asked = False
        if self.request_id is None:
            self.request_id = handle.request_id
        if self._answer is not None and fields is not None:
            fields = self._answer.add(fields)
        if fields is None or fields["finish_reason"] is not None:
            output = GenerationOutput(handle.output())
            self.output = output if self._answer is None else self._answer.finish(output)
            self._end()
            self._ended_with(self.output)
        return fields

    async def _begin(self) -> _quire.Stream:
        self._waker = _Waker.of_running_loop()
        self._key = self._waker.add(self._options)
        self._handle = await self._start(self._options)
        return self._handle

    def _end(self) -> None:
        self._ended = True
        handle, self._handle = self._handle, None
        if self._key:
            self._waker.remove(self._key)
            self._key = 0
        if handle is not None:
            handle.close()

    async def aclose(self) -> None:
        """Aborts the request if it still runs; no delta comes any more. Does not wait for the engine."""
        self._end()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def __del__(self) -> None:
        if not getattr(self, "_ended", True):
            self._end()

    def __repr__(self) -> str:
        state = "closed" if self._ended else "running"
        if self.output is not None:
            state = f"finished: {self.output.finish_reason}"
        return f"AsyncStream(request {self.request_id}, {state})"


async def whole_output(stream: AsyncStream) -> GenerationOutput:
    """Waits for the output of a stream."""
    while stream.output is None:
        if await stream._next() is None and stream.output is None:
            raise ClosedError("the stream is closed")
    return stream.output


async def together(waits: Iterable[Awaitable[Any]]) -> list[Any]:
    """Waits for all, in order; the first error ends them all."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def all_choices(
    start: Callable[[Any, Params, _quire.RequestOptions], AsyncStream],
    asked: Sequence[tuple[Any, Params, _quire.RequestOptions]],
) -> list[GenerationOutput]:
    """Waits for the output of each (prompt, params, options), whose options ask for no deltas. The first of several choices
    gives a token before the others begin, which find its prompt cached. The queue counts them all with the first."""
    streams = []
    for prompt, params, options in asked:
        choices = each_choice(params)
        streams.append([start(prompt, one, of_choice(options, i, len(choices))) for i, one in enumerate(choices)])
    try:
        await together(of_prompt[0]._next() if len(of_prompt) > 1 else of_prompt[0]._begin() for of_prompt in streams)
        outputs = iter(await together(whole_output(stream) for of_prompt in streams for stream in of_prompt))
    finally:
        for stream in itertools.chain.from_iterable(streams):
            stream._end()
    several = [[next(outputs) for _ in of_prompt] for of_prompt in streams]
    return [each[0].with_choices(each) if len(each) > 1 else each[0] for each in several]


def of_choice(options: _quire.RequestOptions, index: int, count: int) -> _quire.RequestOptions:
    """Returns the options of one of `count` choices. The first tells by a delta that the others may begin."""
    own = _quire.RequestOptions(options)
    own.deltas = index == 0 and count > 1
    own.followers = count - 1 if index == 0 else 0
    own.follows = index > 0
    own.explain = options.explain and index == 0
    return own


async def in_thread(call: Callable[..., _quire.Stream], *arguments: Any) -> _quire.Stream:
    """Runs `call`, which may wait, in a thread and returns its stream. `call` takes a flag that ends its wait.

    Cancelling the task sets the flag, waits for the thread to leave, and closes a stream that was made meanwhile.
    """
    halt = _quire.Halt()
    made = asyncio.ensure_future(asyncio.to_thread(call, *arguments, halt))
    try:
        return await asyncio.shield(made)
    except asyncio.CancelledError:
        halt.set()
        with contextlib.suppress(Exception):
            (await made).close()
        raise
