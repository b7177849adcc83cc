"""Sessions of LLM: hints reach the cache, bad ones are named. The rules themselves: src/quire/api/session_test.cc."""

import math
import threading

import pytest

import quire
from conftest import MODEL

ONE = {"temperature": 0, "max_tokens": 1}


def prompt(who):
    return [10 + (who * 131 + i * 17) % 1500 for i in range(81)]


@pytest.fixture
def small():
    """Opens a model with 41 blocks of 8 tokens: four prompts, and the open block of one."""
    with quire.LLM(MODEL, threads=2, block_tokens=8, kv_budget=41 * 8 * 4096) as llm:
        yield llm


def hits(llm, who):
    part = llm.explain(prompt(who))[0]
    return part.tokens if part.hit else 0


def test_a_closed_session_makes_room(small):
    small.generate([prompt(i) for i in range(3)], ONE, session=["a", "b", "c"])
    assert small.stats()["sessions"] == 3
    small.close_session("b")
    for who in (3, 4):
        small.generate(prompt(who), ONE)
    assert [hits(small, who) for who in range(3)] == [80, 0, 80]
    assert small.stats()["evictions_closed"] >= 9 and small.stats()["sessions"] == 2
    assert "its session was closed" in small.explain(prompt(1))[-1].reason


def test_the_later_return_goes_first(small):
    for who, back in ((0, 30), (1, 9000), (2, 60)):
        list(small.stream(prompt(who), ONE, session=str(who)))
        small.pause_session(str(who), expected_return=back)
    small.pause_session("2", 20)
    small.pause_session("2")
    small.set_retention("2", priority=1, ttl=500)
    for who in (3, 4):
        small.generate(prompt(who), ONE)
    assert [hits(small, who) for who in range(3)] == [80, 0, 80]


def test_chat_takes_a_session(small):
    asked = [{"role": "user", "content": "Where does Ada live?"}]
    small.chat(asked, ONE, session="chat")
    assert small.stats()["sessions"] == 1
    list(small.stream_chat(asked, ONE, session="streamed"))
    assert small.stats()["sessions"] == 2
    for session in ("chat", "streamed"):
        small.close_session(session)
    assert small.stats()["sessions"] == 0


def test_bad_hints_are_named(small):
    small.generate(prompt(0), ONE, session="known")
    for bad in (-1, -0.001, math.nan, math.inf, 1e300):
        with pytest.raises(ValueError, match="expected_return"):
            small.pause_session("known", expected_return=bad)
        with pytest.raises(ValueError, match="ttl"):
            small.set_retention("known", ttl=bad)
    for bad in ("", "x" * 257):
        for call in (small.pause_session, small.close_session, small.set_retention):
            with pytest.raises(ValueError, match="session"):
                call(bad)
        with pytest.raises(ValueError, match="session"):
            small.generate(prompt(0), ONE, session=bad)
    for call in (small.pause_session, small.close_session):
        with pytest.raises(LookupError, match='"unknown"'):
            call("unknown")
        with pytest.raises(TypeError):
            call(7)
    with pytest.raises(ValueError, match="2 request options for 3 prompts"):
        small.generate([prompt(i) for i in range(3)], ONE, session=["a", None])


def sequence_of(llm, ids, session):
    with llm.sequence(ids, session=session) as sequence:
        sequence.append([11], session=session)
        sequence.insert(len(sequence), [12], session=session)
        sequence.generate(ONE, session=session)
        list(sequence.stream(ONE, session=session))


def context_of(llm, ids, session):
    context = quire.ContextManager(llm, mode="exact")
    context.add(ids)
    context.infer(None, ONE, session=session)


WAYS = {
    "sequence": sequence_of,
    "blocks": lambda llm, ids, session: llm.infer_from_blocks([], 0, ids, ONE, session=session),
    "blocks, streamed": lambda llm, ids, session: list(llm.infer_from_blocks_stream([], 0, ids, ONE, session=session)),
    "virtual": lambda llm, ids, session: llm.infer(quire.VirtualSequence(ids, ONE), session=session),
    "context": context_of,
}


def test_an_edit_is_a_request_of_the_session(small):
    with small.sequence(prompt(0)[:40], session="a") as sequence:
        for edit in (
            lambda **more: sequence.replace(30, 32, [11], **more),
            lambda **more: sequence.insert(5, prompt(1)[:30], **more),
            lambda **more: sequence.delete(3, 5, **more),
            lambda **more: sequence.delete(3, 5, mode="approximate", **more),
        ):
            edit(session="a")
            before = sequence.tokens
            with pytest.raises(ValueError, match="session"):
                edit(session="x" * 257)
            assert sequence.tokens == before
    with small.sequence(prompt(1)[:41]) as sequence:
        sequence.replace(1, 2, [11], session="b")
        edited = sequence.tokens
    small.close_session("b")
    for who in (2, 3):
        small.generate(prompt(who), ONE)
    assert not small.explain(edited)[0].hit and "its session was closed" in small.explain(edited)[0].reason


@pytest.mark.parametrize("way", WAYS)
def test_a_session_speaks_for_what_any_request_leaves(small, way):
    for who in range(3):
        WAYS[way](small, prompt(who), str(who))
    assert small.stats()["sessions"] == 3
    small.close_session("1")
    for who in (3, 4):
        small.generate(prompt(who), ONE)
    assert [hits(small, who) for who in range(3)] == [80, 0, 80]
    with pytest.raises(ValueError, match="session"):
        WAYS[way](small, prompt(0), "")


def test_compositions_take_a_session():
    with quire.ChunkedLLM(MODEL, threads=2, max_chunks=3) as llm:
        stays, goes = (llm.register_chunk(prompt(who), "context") for who in range(2))
        query = llm.register_chunk([11, 12], "query")
        alone = {"query_chunk_id": query, "without_system": True, "sampling_params": ONE}
        unsaid = llm.generate_from_chunks(context_chunk_ids=[stays], **alone)
        said = llm.generate_from_chunks(context_chunk_ids=[stays], session="stays", **alone)
        assert said.token_ids == unsaid.token_ids
        requests = [{k: v for k, v in alone.items() if k != "sampling_params"} | {"context_chunk_ids": [goes]}]
        llm.batch_generate_from_chunks(requests, ONE, session=["goes"])
        list(llm.stream_from_chunks(context_chunk_ids=[goes], session="goes", **alone))
        composition = llm.compose(None, [goes], query, without_system=True)
        llm.sequence(composition, session="goes").close()
        with pytest.raises(ValueError, match="2 request options for 1 requests"):
            llm.batch_generate_from_chunks(requests, ONE, session=["a", "b"])
        llm.close_session("goes")
        llm.register_chunk(prompt(2), "context")
        assert {chunk.chunk_id for chunk in llm.list_chunks()} >= {stays, query}
        with pytest.raises(quire.ChunkNotFoundError):
            llm.get_chunk(goes)
        llm.generate(query=[13], without_system=True, sampling_params=ONE, session="registered")
        llm.close_session("registered")


def test_threads_hint_while_others_compute(small):
    def work(who):
        for turn in range(6):
            name = str((who + turn) % 3)
            small.generate(prompt((who + turn) % 3), ONE, session=name)
            small.set_retention(name, priority=turn % 2)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert small.stats()["blocks_in_use"] == 0 and small.stats()["sessions"] == 3
