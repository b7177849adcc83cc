"""Salts: tenants share no cached prefix, chunk or session. The library's own test is
src/quire/api/salt_test.cc."""

import threading

import pytest

import quire
from conftest import MODEL, some_ids

ONE = {"temperature": 0, "max_tokens": 1}
PROMPT = some_ids(81, 4)


@pytest.fixture
def llm():
    with quire.LLM(MODEL, threads=2, block_tokens=8) as opened:
        yield opened


def cached(llm, salt, prompt=PROMPT):
    part = llm.explain(prompt, salt=salt)[0]
    return part.tokens if part.hit else 0


def test_a_prefix_is_reused_within_its_salt_and_not_beyond(llm):
    outputs = llm.generate([PROMPT, PROMPT], ONE, salt=["ada", "bob"])
    assert [output.usage.cached_tokens for output in outputs] == [0, 0]
    assert outputs[0].token_ids == outputs[1].token_ids
    assert llm.generate(PROMPT, ONE).usage.cached_tokens == 0
    assert llm.generate(PROMPT, ONE, salt="ada", session="s").usage.cached_tokens == 80
    assert llm.explain(PROMPT, salt="cleo")[0].reason == "never seen"


def test_the_operator_sees_how_many_hold_each_part_and_who_is_not_told(llm):
    def across(prompt):
        return [(part.position, part.tokens, part.num_salts) for part in llm.explain_across_salts(prompt)]

    assert across(PROMPT) == [(0, len(PROMPT), 0)]
    llm.generate([PROMPT, PROMPT[:41]], ONE, salt=["ada's secret", "bob"])
    llm.generate(PROMPT, ONE)
    assert across(PROMPT) == [(0, 40, 3), (40, 40, 2), (80, len(PROMPT) - 80, 0)]
    assert "secret" not in repr(llm.explain_across_salts(PROMPT))
    assert llm.explain(PROMPT, salt="cleo")[0].reason == "never seen"
    with pytest.raises(TypeError):
        llm.explain_across_salts(PROMPT, salt="ada's secret")


def test_every_call_takes_one(llm, tmp_path):
    list(llm.stream(PROMPT, ONE, salt="stream"))
    llm.forward(PROMPT, rows="last", salt="forward")
    sequence = llm.sequence(PROMPT, salt="sequence")
    sequence.save(tmp_path / "a.qkv")
    llm.load_sequence(tmp_path / "a.qkv", salt="loaded").close()
    blocks, count = sequence.blocks()
    assert llm.infer_from_blocks(blocks, count, [5] * 20, ONE, salt="sequence").usage.cached_tokens == 81
    list(llm.infer_from_blocks_stream(None, None, PROMPT, ONE, salt="infer"))
    for salt in ("stream", "forward", "sequence", "loaded", "infer"):
        assert cached(llm, salt) == 80, salt
    assert cached(llm, None) == 0
    question = [{"role": "user", "content": "Where does Ada live, and what does she trade in?"}]
    llm.chat(question, ONE, salt="chat")
    list(llm.stream_chat(question, ONE, salt="chat stream"))
    asked = llm.tokenizer.apply_chat_template(question, tokenize=True)
    assert cached(llm, "chat", asked) == cached(llm, "chat stream", asked) > 0 == cached(llm, None, asked)


def test_that_of_the_chunks_is_that_of_requests_without_one():
    with quire.ChunkedLLM(MODEL, threads=2, block_tokens=8, salt="ada") as chunked:
        chunked.generate(PROMPT, ONE)
        assert cached(chunked, "ada") == cached(chunked, None) == 80 and cached(chunked, "bob") == 0
        assert chunked.generate(PROMPT, ONE, salt="bob").usage.cached_tokens == 0
        chunked.sequence(PROMPT[:40], salt="cleo")
        assert cached(chunked, "cleo") == 32


@pytest.fixture
def chunked():
    with quire.ChunkedLLM(MODEL, threads=2, block_tokens=8) as llm:
        yield llm


def make(llm, salt, system=PROMPT[:24]):
    """Registers system, context and query of a tenant."""
    return (
        llm.register_chunk(system, "system_prompt", salt=salt),
        llm.register_chunk(PROMPT[24:56], "context", {"whose": salt}, salt=salt),
        llm.register_chunk(PROMPT[56:], "query", salt=salt),
    )


def test_equal_chunks_of_two_tenants_are_two_and_each_answers_its_own(chunked):
    ada, bob = make(chunked, "ada"), make(chunked, "bob")
    nobody = make(chunked, None)
    assert len({*ada, *bob, *nobody}) == 9
    outputs = [chunked.generate_from_chunks(ids[0], [ids[1]], ids[2], ONE, salt=salt)
               for ids, salt in ((ada, "ada"), (bob, "bob"), (nobody, None))]
    assert len({tuple(output.token_ids) for output in outputs}) == 1
    assert {output.usage.cached_tokens for output in outputs} == {56}
    for salt, ids in (("ada", ada), ("bob", bob), (None, nobody)):
        assert [chunk.chunk_id for chunk in chunked.list_chunks(salt=salt)] == list(ids)
        assert chunked.get_chunk_stats(salt=salt).total_chunks == 3
        assert chunked.get_chunk(ids[1], salt=salt).anchor == ids[0], "each under its own tenant's system chunk"


def test_register_chunks_takes_one_salt_for_all_and_that_of_a_chunk_goes_before_it(chunked):
    shared = {"content": PROMPT[:24], "chunk_type": "context"}
    ada, bob, own = chunked.register_chunks([shared, {**shared, "salt": "bob"}, (PROMPT[24:56], "context")], salt="ada")
    assert [chunk.chunk_id for chunk in chunked.list_chunks(salt="ada")] == [ada, own]
    assert [chunk.chunk_id for chunk in chunked.list_chunks(salt="bob")] == [bob]
    assert not chunked.list_chunks()


def test_the_chunk_of_another_tenant_is_as_one_that_never_was(chunked):
    own, other = make(chunked, "ada"), make(chunked, "bob")
    never = "0" * 64
    calls = [
        lambda i: chunked.get_chunk(i, salt="ada"),
        lambda i: chunked.update_chunk(i, {"a": 1}, salt="ada"),
        lambda i: chunked.chunk_blocks(i, salt="ada"),
        lambda i: chunked.compose(own[0], [i], own[2], salt="ada"),
        lambda i: chunked.preview_composition(own[0], [i], own[2], salt="ada"),
        lambda i: chunked.logits_from_chunks(own[0], [i], own[2], salt="ada"),
        lambda i: chunked.generate_from_chunks(own[0], [i], own[2], ONE, salt="ada"),
        lambda i: chunked.stream_from_chunks(own[0], [i], own[2], ONE, salt="ada"),
        lambda i: chunked.batch_generate_from_chunks([{"system_chunk_id": own[0], "context_chunk_ids": [i],
                                                       "query_chunk_id": own[2]}], ONE, salt="ada"),
        lambda i: chunked.register_chunk(PROMPT[:30], "context", anchor=i, salt="ada"),
    ]
    for number, call in enumerate(calls):
        said = []
        for chunk_id in (never, other[1]):
            with pytest.raises(quire.ChunkNotFoundError) as caught:
                call(chunk_id)
            assert caught.value.chunk_id == chunk_id
            said.append(str(caught.value).replace(chunk_id[:12], "..."))
        assert said[0] == said[1], number
    assert chunked.delete_chunk(other[1], salt="ada") is False
    parts = chunked.explain(system_chunk_id=own[0], context_chunk_ids=[other[1]], query_chunk_id=own[2], salt="ada")
    assert "never registered" in parts[1].reason
    assert chunked.clear_chunks(salt="ada") == 3 and len(chunked.list_chunks(salt="bob")) == 3
    assert chunked.evict_unused_chunks(0, salt="cleo") == 0
    with pytest.raises(ValueError, match="another salt's"):
        chunked.logits_from_chunks(composition=chunked.compose(*[other[0], [other[1]], other[2]], salt="bob"), salt="ada")


def test_block_ids_find_what_is_the_tenants_own_and_handles_are_leave(chunked):
    held = chunked.sequence(PROMPT, salt="ada")
    blocks, count = held.blocks()
    ids = list(blocks)
    said = []
    for salt, typed, tokens in ((None, ids, count), ("bob", ids, count), (None, [9999], 1)):
        with pytest.raises(quire.InvalidCompositionError) as caught:
            chunked.infer_from_blocks(typed, tokens, [5], ONE, salt=salt)
        said.append(str(caught.value).split(" tokens ")[1])
    assert len(set(said)) == 1 and "not those of any" in said[0]
    assert chunked.infer_from_blocks(ids, count, [5], ONE, salt="ada").usage.cached_tokens > 0
    assert chunked.infer_from_blocks(blocks, count, [5], ONE).usage.cached_tokens > 0
    system = chunked.register_chunk(PROMPT[:24], "system_prompt", salt="ada")
    blocks, count = chunked.chunk_blocks(system, salt="ada")
    with pytest.raises(quire.InvalidCompositionError, match="not those of any"):
        chunked.infer_from_blocks(list(blocks), count, [5], ONE)
    with pytest.raises(ValueError, match="another salt"):
        chunked.infer_from_blocks(blocks, count, [5], ONE, salt="bob")


def test_no_registration_goes_under_another_calls_temporary_system_chunk(chunked):
    stop = threading.Event()
    failures = []

    def generate():
        number = 0
        while not stop.is_set():
            number += 1
            try:
                chunked.generate(system_prompt=[*PROMPT[:20], 300 + number % 50], context=[PROMPT[20:40]], query=PROMPT[40:60],
                                 sampling_params=ONE, persist_chunks=False)
            except quire.QuireError as error:
                failures.append(error)

    worker = threading.Thread(target=generate)
    worker.start()
    try:
        for i in range(60):
            chunk = chunked.register_chunk([*PROMPT[:16], 200 + i], "context")
            assert chunked.get_chunk(chunk).anchor is None
    finally:
        stop.set()
        worker.join()
    assert not failures


def test_a_tenant_that_registers_much_evicts_its_own():
    with quire.ChunkedLLM(MODEL, threads=2, block_tokens=8, max_chunks=4) as llm:
        kept = [llm.register_chunk(PROMPT[i : i + 8], "context", salt="ada", anchor="") for i in range(3)]
        for i in range(12):
            llm.register_chunk(PROMPT[i : i + 8], "context", salt="bob", anchor="")
        assert [chunk.chunk_id for chunk in llm.list_chunks(salt="ada")] == kept
        assert len(llm.list_chunks(salt="bob")) == 4
        assert llm.get_chunk_stats(salt="bob").evictions == 8 and llm.get_chunk_stats(salt="ada").evictions == 0


def test_sessions_of_two_tenants_never_meet(llm):
    llm.generate(PROMPT, ONE, session="s", salt="ada")
    for salt in (None, "bob"):
        with pytest.raises(LookupError):
            llm.close_session("s", salt=salt)
    llm.pause_session("s", 5, salt="ada")
    llm.close_session("s", salt="ada")


def test_others_are_refused_by_name(llm):
    sequence = llm.sequence(PROMPT, salt="ada")
    with pytest.raises(ValueError, match="another salt"):
        llm.sequence([5], blocks=sequence.blocks()[0], salt="bob")
    for salt, error, message in (
        ("", ValueError, "salt must have 1 to 1024 bytes"),
        ("s" * 1025, ValueError, "salt must have at most 1024 bytes, not 1025"),
        (5, TypeError, "salt must be a str"),
    ):
        with pytest.raises(error, match=message):
            llm.generate(PROMPT, ONE, salt=salt)
    with pytest.raises(ValueError, match="2 sessions and 3 salts"):
        llm.generate([PROMPT] * 3, ONE, session=["a", "b"], salt=["a", "b", "c"])
