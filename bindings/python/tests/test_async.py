"""Calls on an event loop: what they give equals what the calls that wait give, and cancelling a task frees its blocks."""

import asyncio
import gc
import threading
import time

import pytest
from conftest import KEEPER, MODEL, some_ids

import quire
from quire import ChunkType, async_stream

GREEDY = {"temperature": 0, "max_tokens": 24}
ENDLESS = {"temperature": 0, "max_tokens": 2000, "ignore_eos": True}
QUESTION = [{"role": "user", "content": "Where does Ada live?"}]
CARDS = [{"text": "Card 7. Ada trades in apples. They live in Foxley."}]


@pytest.fixture(scope="module")
def chunked():
    with quire.ChunkedLLM(MODEL, threads=2, kv_budget="64MiB", prefix_cache=False) as model:
        yield model


@pytest.fixture
def ids(chunked):
    system = chunked.register_chunk(KEEPER, ChunkType.SYSTEM_PROMPT)
    card = chunked.register_chunk(CARDS[0]["text"], ChunkType.CONTEXT)
    return system, [card], chunked.register_chunk("Where does Ada live?", ChunkType.QUERY)


async def joined(stream):
    deltas = [delta async for delta in stream]
    return "".join(delta.text for delta in deltas), [token for delta in deltas for token in delta.token_ids], deltas


def test_each_call_gives_what_the_one_that_waits_gives(chunked, ids):
    async def ask():
        return [
            (await chunked.generate_async("Ada", GREEDY), await joined(chunked.stream_async("Ada", GREEDY))),
            (
                await chunked.chat_async(QUESTION, GREEDY, documents=CARDS),
                await joined(chunked.stream_chat_async(QUESTION, GREEDY, documents=CARDS)),
            ),
            (
                await chunked.generate_from_chunks_async(*ids, GREEDY, mode="independent"),
                await joined(chunked.stream_from_chunks_async(*ids, GREEDY, mode="independent")),
            ),
        ]

    chunked.generate_from_chunks(*ids, GREEDY, mode="independent")  # what contexts have then, no later one computes
    expected = [
        chunked.generate("Ada", GREEDY),
        chunked.chat(QUESTION, GREEDY, documents=CARDS),
        chunked.generate_from_chunks(*ids, GREEDY, mode="independent"),
    ]
    for (output, (text, token_ids, deltas)), wanted in zip(asyncio.run(ask()), expected, strict=True):
        assert (output.text, output.token_ids, output.usage) == (wanted.text, wanted.token_ids, wanted.usage)
        assert (text, token_ids) == (wanted.text, wanted.token_ids)
        assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + [wanted.finish_reason]


def test_a_list_of_prompts_gives_a_list_in_its_order(chunked):
    prompts = [some_ids(20 + n, seed=n) for n in range(5)]
    params = [{"temperature": 0, "max_tokens": n} for n in range(1, 6)]
    outputs = asyncio.run(chunked.generate_async(prompts, params))
    assert [output.token_ids for output in outputs] == [output.token_ids for output in chunked.generate(prompts, params)]
    assert asyncio.run(chunked.generate_async([])) == []


def test_keywords_are_sampling_parameters_and_others_are_refused(chunked, ids):
    assert len(asyncio.run(chunked.generate_async("Ada", temperature=0, max_tokens=3)).token_ids) == 3
    assert len(asyncio.run(chunked.generate_from_chunks_async(*ids, max_tokens=2, ignore_eos=True)).token_ids) == 2
    for call in (
        lambda: chunked.stream_async("Ada", max_token=3),
        lambda: chunked.stream_chat_async(QUESTION, max_token=3),
        lambda: asyncio.run(chunked.generate_async("Ada", max_token=3)),
    ):
        with pytest.raises(TypeError, match="did you mean max_tokens"):
            call()


def test_many_streams_run_beside_each_other_without_a_thread_of_their_own(chunked):
    streams = 100

    async def ask():
        before, most = threading.active_count(), 0

        async def one(number):
            nonlocal most
            text = []
            async for delta in chunked.stream_async(some_ids(12, seed=number % 7), GREEDY, ignore_eos=True):
                most = max(most, threading.active_count() - before)
                text += delta.token_ids
            return text

        return await asyncio.gather(*(one(number) for number in range(streams))), most

    given, most = asyncio.run(ask())
    assert most == 0
    expected = [output.token_ids for output in chunked.generate([some_ids(12, seed=n) for n in range(7)], GREEDY, ignore_eos=True)]
    assert given == [expected[number % 7] for number in range(streams)]


def test_the_loop_runs_on_while_the_engine_computes(chunked):
    async def ask():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        output = await chunked.generate_async(some_ids(1500), {**ENDLESS, "max_tokens": 64})
        ticking.cancel()
        return ticks, output.timing.total_seconds

    ticks, seconds = asyncio.run(ask())
    assert ticks > seconds / 0.001 / 20  # a twentieth of what an idle loop does


def waits_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_stream_that_is_made_while_its_task_is_cancelled_is_closed_before_the_task_ends():
    entered, may_leave = threading.Event(), threading.Event()
    closed = []

    class Made:
        def close(self):
            closed.append(True)

    def start(halt):
        entered.set()
        may_leave.wait(10)
        return Made()

    async def ask():
        task = asyncio.create_task(async_stream.in_thread(start))
        await asyncio.to_thread(entered.wait, 10)
        task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done(), "the thread is still at it"
        may_leave.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return list(closed)

    assert asyncio.run(ask()) == [True]


@pytest.mark.parametrize("kind", ["generate", "batch", "stream", "chunks", "chunk stream"])
def test_cancelling_the_task_frees_its_blocks(chunked, ids, kind):
    held = chunked.stats()["blocks_in_use"]

    async def read(stream):
        async for _ in stream:
            pass

    calls = {
        "generate": lambda: chunked.generate_async(some_ids(40), ENDLESS),
        "batch": lambda: chunked.generate_async([some_ids(40), some_ids(50)], ENDLESS),
        "stream": lambda: read(chunked.stream_async(some_ids(40), ENDLESS)),
        "chunks": lambda: chunked.generate_from_chunks_async(*ids, ENDLESS),
        "chunk stream": lambda: read(chunked.stream_from_chunks_async(*ids, ENDLESS)),
    }

    async def ask():
        task = asyncio.create_task(calls[kind]())
        while chunked.stats()["requests_running"] == 0:
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stats = chunked.stats()
        return stats["requests_running"], stats["blocks_in_use"]

    assert asyncio.run(ask()) == (0, held)


def test_a_task_that_is_cancelled_while_chunks_are_computed_ends_that(chunked):
    system = chunked.register_chunk(KEEPER, ChunkType.SYSTEM_PROMPT)
    long = [chunked.register_chunk(some_ids(400, seed=n), ChunkType.CONTEXT, anchor="") for n in range(3)]
    query = chunked.register_chunk("Who?", ChunkType.QUERY)

    async def ask():
        task = asyncio.create_task(chunked.generate_from_chunks_async(system, long, query, ENDLESS))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    assert chunked.stats()["requests_running"] == chunked.stats()["requests_waiting"] == 0


def test_a_stream_that_is_closed_or_dropped_aborts_its_request(chunked):
    async def ask():
        stream = chunked.stream_async(some_ids(40), ENDLESS)
        first = await anext(stream)
        assert first.token_ids and stream.request_id and stream.output is None
        await stream.aclose()
        assert [delta async for delta in stream] == []
        assert chunked.stats()["requests_running"] == 0

        async with chunked.stream_async(some_ids(40), ENDLESS) as stream:
            await anext(stream)
        assert chunked.stats()["requests_running"] == 0

        async for _ in chunked.stream_async(some_ids(40), ENDLESS):
            break
        gc.collect()
        assert chunked.stats()["requests_running"] == 0

    asyncio.run(ask())


@pytest.mark.parametrize("kind", ["plain", "chunks"])
def test_a_stream_that_another_task_closes_ends(chunked, ids, kind):
    async def ask():
        opened = chunked.stream_async(some_ids(40), ENDLESS) if kind == "plain" else chunked.stream_from_chunks_async(*ids, ENDLESS)
        for moment in range(8):
            stream = opened if moment == 0 else chunked.stream_async(some_ids(40), ENDLESS)
            reading = asyncio.create_task(joined(stream))
            for _ in range(moment):
                await asyncio.sleep(0.001)
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task waits"):
                await anext(stream)
            await stream.aclose()
            text, token_ids, deltas = await asyncio.wait_for(reading, 10)
            assert all(delta.finish_reason is None for delta in deltas)
        return chunked.stats()["requests_running"]

    assert asyncio.run(ask()) == 0


def test_an_aborted_request_ends_its_stream_with_cancelled(chunked):
    async def ask():
        stream = chunked.stream_async(some_ids(40), ENDLESS)
        await anext(stream)
        assert chunked.abort(stream.request_id)
        deltas = [delta async for delta in stream]
        return deltas[-1].finish_reason, stream.output.finish_reason

    assert asyncio.run(ask()) == ("cancelled", "cancelled")


def test_refusals_come_as_the_errors_of_the_calls_that_wait(chunked):
    async def first(stream):
        return await anext(stream)

    with quire.LLM(MODEL, threads=1, kv_budget="1MiB") as small:
        for call in (small.generate_async, lambda *given: first(small.stream_async(*given))):
            with pytest.raises(quire.KVOverflowError):  # of the engine
                asyncio.run(call(some_ids(40), {"max_tokens": 1000}))
            with pytest.raises(ValueError, match="2048"):  # of the call
                asyncio.run(call([2048]))
        assert small.stats()["requests_running"] == 0
    for call in (small.generate_async, lambda *given: first(small.stream_async(*given))):
        with pytest.raises(quire.ClosedError):
            asyncio.run(call("Ada"))
    with pytest.raises(quire.ChunkNotFoundError):
        asyncio.run(chunked.generate_from_chunks_async("0" * 64, [], "1" * 64))
    with pytest.raises(ValueError, match="2 sampling params for 3 prompts"):
        asyncio.run(chunked.generate_async(["a", "b", "c"], [{}, {}]))


def test_closing_the_llm_ends_what_waits_on_the_loop():
    async def ask():
        llm = quire.LLM(MODEL, threads=1)
        waiting = [asyncio.create_task(llm.generate_async(some_ids(20, seed=n), ENDLESS)) for n in range(3)]
        while llm.stats()["requests_running"] < 3:
            await asyncio.sleep(0.002)
        await asyncio.to_thread(llm.close)
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(each) for each in asyncio.run(ask())] == [quire.ClosedError] * 3


def test_each_loop_has_its_own_streams(chunked):
    expected = chunked.generate("Ada", GREEDY).token_ids
    given = {}

    def run(number):
        given[number] = [asyncio.run(chunked.generate_async("Ada", GREEDY)).token_ids for _ in range(5)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert given == {number: [expected] * 5 for number in range(4)}


def test_what_waits_where_something_else_is_meant_says_the_other_call(chunked):
    async def awaits_an_output():
        return await chunked.generate("Ada", GREEDY)

    with pytest.raises(TypeError, match=r"await llm\.generate_async\(prompt\)"):
        asyncio.run(awaits_an_output())
    with pytest.raises(TypeError, match=r"async for delta in stream; llm\.stream\(prompt\) waits"):
        list(chunked.stream_async("Ada", GREEDY))


def test_the_text_of_a_stream_stays_when_it_is_closed(chunked):
    async def ask():
        stream = chunked.stream_async([5, 6], ENDLESS)
        first = [(await anext(stream)).text for _ in range(3)]
        await stream.aclose()
        return "".join(first), stream.text

    whole, kept = asyncio.run(ask())
    assert kept == whole != ""
    with chunked.stream([5, 6], ENDLESS) as stream:
        first = "".join(next(stream).text for _ in range(3))
    assert stream.text == first != "" and stream.output is None
    with chunked.stream([5, 6], GREEDY) as stream:
        list(stream)
    assert stream.text == stream.output.text
