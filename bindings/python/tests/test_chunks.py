"""Chunks in Python, on the demo model. Oracles: plain prompts of the same ids, and the wording of docs/chunks.md."""

import json
import re
import threading
import time

import numpy as np
import pytest

import quire
from conftest import MODEL
from quire import ChunkedLLM, ChunkType

GREEDY = {"temperature": 0, "max_tokens": 32}
KEEPER = "You are the keeper of a card file. Answer from the cards."
ADA, LARS = "Card 7. Ada trades in apples. They live in Foxley.", "Card 9. Lars carries a lantern. They live in Thornby."
TRADE = "What does Ada trade in?"


@pytest.fixture(scope="module")
def shared():
    with ChunkedLLM(MODEL, threads=2) as llm:
        yield llm


@pytest.fixture
def llm(shared):
    shared.clear_chunks()
    return shared


@pytest.fixture
def ids(llm):
    """Registers a system chunk, two contexts and a query."""
    return llm.register_chunks([(KEEPER, "system_prompt"), (ADA, "context"), (LARS, "context"), (TRADE, "query")])


def composing(ids, **how):
    return {"system_chunk_id": ids[0], "context_chunk_ids": ids[1:-1], "query_chunk_id": ids[-1], **how}


def test_registering_gives_an_id_of_64_digits_and_one_prefill(llm):
    first = llm.register_chunk(ADA, ChunkType.CONTEXT, metadata={"a": 1, "b": [2]})
    computed = llm.stats()["tokens_computed"]
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert llm.register_chunk(ADA, "context", {"b": 3}) == first
    assert llm.stats()["tokens_computed"] == computed
    assert llm.get_chunk(first).metadata == {"a": 1, "b": 3} and llm.get_chunk(first)["access_count"] == 1


def test_lists_show_what_the_document_shows(llm, ids):
    rows = llm.list_chunks()
    assert [row["chunk_id"] for row in rows] == ids
    keys = {"chunk_id", "chunk_type", "content_preview", "token_count", "metadata", "created_at", "last_accessed", "access_count"}
    assert all(keys <= row.keys() for row in rows) and json.dumps(rows)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["created_at"]) for row in rows)
    assert [row.chunk_id for row in llm.list_chunks(ChunkType.CONTEXT)] == ids[1:3]
    llm.update_chunk(ids[1], metadata={"source": "cards", "year": 3})
    assert [row.chunk_id for row in llm.list_chunks(metadata_filter={"source": "cards", "year": 3})] == [ids[1]]
    assert llm.list_chunks("query", {"source": "cards"}) == []
    long = llm.register_chunk("word " * 50, ChunkType.CONTEXT)
    assert llm.list_chunks()[-1].content_preview == ("word " * 50)[:60] + "..."
    assert llm.get_chunk(long).content == "word " * 50


def test_a_chunk_stands_behind_the_one_that_it_belongs_to(llm, ids):
    part = llm.register_chunk(LARS + " They sell ink.", "context", anchor=[ids[0], ids[1]])
    assert llm.get_chunk(part).anchor == [ids[0], ids[1]] and llm.get_chunk(ids[1]).anchor == ids[0]
    preview = llm.preview_composition(ids[0], [ids[1], part], ids[-1])
    assert preview["grade"] == "equal_math" and all(segment["cached"] for segment in preview["segments"][:-1])
    exact = llm.logits_from_chunks(ids[0], [ids[1], part], ids[-1], mode="exact")
    assert np.abs(llm.logits_from_chunks(ids[0], [ids[1], part], ids[-1]) - exact).max() < 1e-2 * np.abs(exact).max()
    with pytest.raises(quire.InvalidCompositionError, match="each behind"):
        llm.register_chunk(LARS, "context", anchor=[ids[0], part])


def test_ids_are_taken_as_they_are(llm):
    tokens = llm.tokenizer.encode("<doc> Card 7. Ada trades in apples.", add_special_tokens=False)
    chunk = llm.get_chunk(llm.register_chunk(np.array(tokens), ChunkType.CONTEXT))
    assert chunk.token_ids == tokens and chunk.token_count == len(tokens)


def test_chunks_answer_in_any_order_and_reuse_all_but_the_query(llm, ids):
    for contexts in (ids[1:3], ids[2:0:-1], [ids[1]], [ids[1], ids[1]]):
        out = llm.generate_from_chunks(ids[0], contexts, ids[3], GREEDY)
        query = llm.get_chunk(ids[3]).token_count
        assert out["text"].strip() == "apples." and out.usage.prompt_tokens - out.usage.cached_tokens == query
        assert out.reuse.grade == ("approximate" if len(contexts) > 1 else "equal_math")


def test_exact_mode_is_a_plain_prompt(llm, ids):
    composition = llm.compose(**composing(ids, mode="exact"))
    out = llm.generate_from_chunks(composition=composition, sampling_params=GREEDY)
    plain = llm.generate(composition.token_ids, GREEDY)
    assert out.token_ids == plain.token_ids and out.reuse.grade == composition.grade == "exact"
    logits = llm.logits_from_chunks(composition=composition)
    full = llm.forward(composition.token_ids, reuse="none").logits
    assert logits.dtype == np.float32 and np.array_equal(logits, full[-logits.shape[0] :])


def test_compositions_tell_their_segments_and_are_immutable(llm, ids):
    composition = llm.compose(**composing(ids))
    assert [s.chunk_id for s in composition.segments] == ids and composition.mode == "anchored"
    starts = np.cumsum([0, *(s.num_tokens for s in composition.segments)])
    assert [s.position for s in composition.segments] == list(starts[:-1])
    assert len(composition.token_ids) == starts[-1] and composition.num_levels == 4 and composition.memory_bytes > 0
    assert "token_ids" in composition and composition.keys() >= {"segments", "mode", "token_ids"}
    assert dict(composition)["token_ids"] == composition["token_ids"] == composition.token_ids
    assert "spec" not in composition
    with pytest.raises(KeyError, match="spec"):
        composition["spec"]
    with pytest.raises(AttributeError, match="immutable"):
        composition.mode = "exact"
    parallel = llm.compose(**composing(ids, positions="parallel"))
    assert parallel.segments[1].position == parallel.segments[2].position
    given = llm.compose(**composing(ids, positions=[0, 40, 90, 130]))
    assert [s.position for s in given.segments] == [0, 40, 90, 130]
    llm.delete_chunk(ids[1])
    with pytest.raises(quire.ChunkNotFoundError):
        llm.generate_from_chunks(composition=composition)


def test_the_preview_is_what_the_run_does_and_changes_nothing(llm, ids):
    other = llm.register_chunk("Answer briefly.", ChunkType.SYSTEM_PROMPT)
    request = composing([other, *ids[1:]])
    before, chunks = llm.stats(), llm.list_chunks()
    preview = llm.preview_composition(**request)
    assert (llm.stats(), llm.list_chunks()) == (before, chunks)
    reasons = [part.reason for part in llm.explain(request)]
    assert reasons[0] == "hit" and "anchor" in reasons[1]
    out = llm.generate_from_chunks(**request, sampling_params={"max_tokens": 1})
    assert llm.stats()["tokens_computed"] - before["tokens_computed"] == preview["tokens_computed"]
    assert out.usage.cached_tokens == preview.tokens_reused and out.usage.prompt_tokens == preview.total_tokens
    assert preview.retokenizes_alike and preview.num_levels == 4


def test_explain_tells_what_became_of_chunks_and_of_plain_prompts(llm, ids):
    llm.delete_chunk(ids[1])
    parts = llm.explain(composing(ids))
    assert [part.chunk_id for part in parts] == ids and "deleted" in parts[1].reason
    assert parts[2].chunk_type == "context" and parts[2].tokens > 0
    assert [part.hit for part in parts] == [True, False, True, False] and parts[3].reason == "a query is always computed"
    llm.clear_prefix_cache()
    prompt = list(range(300, 370))
    assert [(part.hit, part.reason) for part in llm.explain(prompt)] == [(False, "never seen")]
    llm.generate(prompt, {"max_tokens": 1})
    hit, miss = llm.explain(prompt)
    assert hit.hit and hit.tokens == 64 and not miss.hit and miss.position == 64
    assert llm.explain(prompt[:40] + [299] * 40)[1].reason == "differs from what is cached at token 40"
    exact = composing([ids[0], ids[2], ids[3]], mode="exact")
    assert llm.explain(exact)[0].reason == "never seen"
    with pytest.raises(TypeError):
        llm.explain(exact, mode="exact")


def test_generated_text_becomes_a_chunk_and_what_is_exact_about_it_is_not_computed_again():
    with ChunkedLLM(MODEL, threads=2, block_tokens=4) as llm:
        ids = llm.register_chunks([(KEEPER, "system_prompt"), (ADA, "context"), (LARS, "context"), (TRADE, "query")])
        out = llm.generate_from_chunks(**composing(ids, mode="exact"), sampling_params=GREEDY)
        turn = llm.register_chunk(llm.get_chunk(ids[3]).token_ids + out.token_ids, "context")
        query = llm.register_chunk("What does Lars carry?", "query")
        request = composing([*ids[:3], turn, query], mode="exact")
        computed_before = len(out.prompt_token_ids) + len(out.token_ids) - 1  # the last token has no KV yet
        preview = llm.preview_composition(**request)
        assert preview.tokens_reused == computed_before // 4 * 4
        before = llm.stats()["tokens_computed"]
        answer = llm.generate_from_chunks(**request, sampling_params={"temperature": 0, "max_tokens": 1})
        assert answer.reuse.grade == "exact" and llm.stats()["tokens_computed"] - before == preview.tokens_computed
        # This chunk serves in any other composition, where its KV is its own.
        other = llm.generate_from_chunks(**composing([ids[0], turn, ids[2], query]), sampling_params=GREEDY)
        assert other.text.strip() == "a lantern." and other.usage.cached_tokens > 0


def test_a_batch_equals_single_calls(llm, ids):
    requests = [
        composing(ids),
        composing([ids[0], ids[2], ids[1], ids[3]], positions="parallel"),
        composing(ids, mode="independent", sink="bos"),
        llm.compose(ids[0], [], ids[3]),
    ]
    alone = [
        llm.generate_from_chunks(**({"composition": r} if isinstance(r, quire.Composition) else r), sampling_params=GREEDY)
        for r in requests
    ]
    together = llm.batch_generate_from_chunks(requests=requests, sampling_params=GREEDY)
    assert [out.token_ids for out in together] == [out.token_ids for out in alone]
    lengths = llm.batch_generate_from_chunks(requests, [{"max_tokens": n, "ignore_eos": True} for n in (1, 2, 3, 4)])
    assert [len(out.token_ids) for out in lengths] == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="2 .*4"):
        llm.batch_generate_from_chunks(requests, [{}, {}])


def test_streamed_pieces_joined_equal_the_output(llm, ids):
    stream = llm.stream_from_chunks(**composing(ids), sampling_params=GREEDY)
    text = "".join(delta.text for delta in stream)
    assert text == stream.output.text == llm.generate_from_chunks(**composing(ids), sampling_params=GREEDY).text


def test_text_in_ids_out(llm):
    out = llm.generate(system_prompt=KEEPER, context=[ADA, LARS], query=TRADE, sampling_params=GREEDY)
    assert out["text"].strip() == "apples."
    named = out["chunk_ids"]
    assert [c.chunk_id for c in llm.list_chunks()] == [named["system"], *named["context"], named["query"]]
    again = llm.generate_from_chunks(named["system"], named["context"], named["query"], GREEDY)
    assert again.token_ids == out.token_ids


def test_without_persistence_nothing_stays_but_what_was_there():
    with ChunkedLLM(MODEL, threads=2, prefix_cache=False) as llm:
        kept = llm.register_chunks([(KEEPER, "system_prompt"), (ADA, "context", {"mine": True})])

        def state():
            blocks = {name: value for name, value in llm.stats().items() if name.startswith("blocks_")}
            return llm.get_chunk_stats(), llm.list_chunks(), blocks

        before = state()
        out = llm.generate(system_prompt=KEEPER, context=[ADA, LARS], query=TRADE, sampling_params=GREEDY, persist_chunks=False)
        assert out.text.strip() == "apples." and out.chunk_ids["context"][0] == kept[1]
        assert state() == before
        with pytest.raises(quire.InvalidCompositionError):
            llm.generate(context=[LARS], query=TRADE)
        with pytest.raises(quire.InvalidCompositionError):
            llm.generate(system_prompt=KEEPER, query=TRADE, positions=[1, 2, 3], persist_chunks=False)
        assert state() == before


def test_statistics_count(llm):
    start = llm.get_chunk_stats()
    assert start.total_chunks == 0 and start.memory_used_bytes == 0
    ids = llm.register_chunks([(KEEPER, "system_prompt"), (ADA, "context"), (TRADE, "query")])
    llm.register_chunk(ADA, "context")
    stats = llm.get_chunk_stats()
    assert (stats.cache_misses - start.cache_misses, stats.cache_hits - start.cache_hits) == (2, 1)
    other = llm.register_chunk("Another keeper.", ChunkType.SYSTEM_PROMPT)
    for hits in (2, 4):  # a second variant of the context is one prefill more, once
        llm.generate_from_chunks(other, [ids[1]], ids[2], {"max_tokens": 1})
        now = llm.get_chunk_stats()
        assert (now.cache_misses - stats.cache_misses, now.cache_hits - stats.cache_hits) == (2, hits - 1)
    assert llm.delete_chunk(other)
    stats = llm.get_chunk_stats()
    assert stats["total_chunks"] == 3 and stats["context_chunks"] == 1 and 0 < stats["hit_rate"] < 1
    assert stats["memory_used_mb"] * 2**20 == sum(c.memory_bytes for c in llm.list_chunks()) > 0
    assert f"{stats['hit_rate']:.1%}".endswith("%")
    assert llm.delete_chunk(ids[1]) is True and llm.delete_chunk(ids[1]) is False
    assert llm.clear_chunks(ChunkType.QUERY) == 1 and llm.clear_chunks() == 1


def test_reused_tokens_are_counted_wherever_their_kv_was(llm, ids):
    params = {"temperature": 0, "max_tokens": 2}
    blocks, count = llm.chunk_blocks(ids[0])
    plain = llm.generate([*range(20, 90)], params)
    asks = (
        lambda: llm.generate(plain.prompt_token_ids, params),  # prefix cache
        lambda: llm.generate_from_chunks(**composing(ids), sampling_params=params),
        lambda: llm.generate_from_chunks(**composing(ids), mode="exact", sampling_params=params),
        lambda: llm.infer_from_blocks(blocks, count, [20, 21], params),
    )
    for ask in asks:
        before = llm.stats()["tokens_reused"]
        reused = ask().usage.cached_tokens
        assert llm.stats()["tokens_reused"] - before == reused
    assert reused == count


def test_age_pins_and_ttl_decide_what_goes(llm):
    pinned = llm.register_chunk(ADA, "context", pinned=True)
    short = llm.register_chunk(LARS, "context", ttl_seconds=3600)
    assert llm.evict_unused_chunks() == 0 and llm.get_chunk(short).ttl_seconds == 3600
    assert llm.update_chunk(short, ttl_seconds=None).ttl_seconds is None
    llm.update_chunk(short, ttl_seconds=0.01)
    time.sleep(0.05)
    with pytest.raises(quire.ChunkNotFoundError, match="expired") as caught:
        llm.get_chunk(short)
    assert caught.value.chunk_id == short
    assert llm.evict_unused_chunks(max_age_seconds=0) == 0
    assert llm.update_chunk(pinned, pinned=False).pinned is False
    assert llm.evict_unused_chunks(max_age_seconds=0) == 1


def test_lru_eviction_and_room_carry_numbers():
    with ChunkedLLM(MODEL, threads=2, max_chunks=2, kv_budget=8 * 32 * 4096) as llm:
        first = llm.register_chunk([4, 300], "context", anchor="")
        second = llm.register_chunk([4, 301], "context", anchor="", pinned=True)
        third = llm.register_chunk([4, 302], "context", anchor="", pinned=True)
        assert [c.chunk_id for c in llm.list_chunks()] == [second, third]
        with pytest.raises(quire.ChunkNotFoundError, match="evicted"):
            llm.get_chunk(first)
        with pytest.raises(quire.OutOfMemoryError) as caught:
            llm.register_chunk([4, 303], "context", anchor="")
        assert caught.value.needed_bytes == 32 * 4096 and caught.value.free_bytes == 2 * 32 * 4096
        with pytest.raises(quire.KVOverflowError) as caught:
            llm.register_chunk([4] * 200, "context", anchor="")
        assert caught.value.needed_bytes == 7 * 32 * 4096
        llm.update_chunk(second, pinned=False)
        assert llm.register_chunk([4, 303], "context", anchor="")


def test_salt_deduplication_and_format_are_options():
    with ChunkedLLM(MODEL, threads=1) as plain, ChunkedLLM(MODEL, threads=1, salt="b", enable_deduplication=False) as salted:
        ids = [llm.register_chunk(ADA, "context") for llm in (plain, plain, salted, salted)]
        assert ids[0] == ids[1] and len(set(ids)) == 3
    affixes = {"system": ("<bos><sys> ", ""), "context": ("<doc> ", ""), "query": ("<q> ", "<a>")}
    with ChunkedLLM(MODEL, threads=1, chunk_format=affixes) as llm:
        chunk = llm.get_chunk(llm.register_chunk("Who?", "query"))
        assert chunk.token_ids == llm.tokenizer.encode("<q> Who?<a>", add_special_tokens=False)
    for wrong in ({"sytem": ("", "")}, {"query": ("a",)}, {"query": ("a", 1)}):
        with pytest.raises(ValueError, match="chunk_format"):
            ChunkedLLM(MODEL, chunk_format=wrong)


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda m, i: m.register_chunk("", "context"), ValueError, "empty"),
        (lambda m, i: m.register_chunk(ADA, "document"), ValueError, "document"),
        (lambda m, i: m.register_chunk(ADA, "context", {"a": object()}), TypeError, "object"),
        (lambda m, i: m.register_chunk(ADA, "context", ["a"]), ValueError, "metadata"),
        (lambda m, i: m.register_chunk(ADA, "context", {"id": 2**64}), ValueError, "metadata.*18446744073709551616"),
        (lambda m, i: m.update_chunk(i[0], metadata={"a": [-(2**70)]}), ValueError, "metadata.*-1180591620717411303424"),
        (lambda m, i: m.list_chunks(metadata_filter={"id": 10**400}), ValueError, "metadata_filter.*1000"),
        (lambda m, i: m.register_chunk(ADA, "context", ttl=3), TypeError, "ttl"),
        (lambda m, i: m.register_chunk(ADA, "context", ttl_seconds=-1), ValueError, "ttl_seconds"),
        (lambda m, i: m.register_chunk(ADA, "context", ttl_seconds="soon"), TypeError, "ttl_seconds"),
        (lambda m, i: m.register_chunk(ADA, "context", priority=2**40), ValueError, "priority"),
        (lambda m, i: m.register_chunk(ADA, "context", anchor=i[1]), quire.InvalidCompositionError, "context"),
        (lambda m, i: m.register_chunk(ADA, "context", anchor="0" * 64), quire.ChunkNotFoundError, "never registered"),
        (lambda m, i: m.register_chunk([2048], "context"), ValueError, "2048"),
        (lambda m, i: m.register_chunk(3, "context"), ValueError, "ids"),
        (lambda m, i: m.register_chunks([{"content": ADA}]), TypeError, "chunk_type"),
        (lambda m, i: m.get_chunk("abc"), quire.ChunkNotFoundError, "abc"),
        (lambda m, i: m.get_chunk(...), quire.ChunkNotFoundError, "Ellipsis"),
        (lambda m, i: m.update_chunk("abc", pinned=True), quire.ChunkNotFoundError, "abc"),
        (lambda m, i: m.update_chunk(i[0], pinned="yes"), TypeError, "pinned"),
        (lambda m, i: m.clear_chunks("docs"), ValueError, "docs"),
        (lambda m, i: m.list_chunks("docs"), ValueError, "docs"),
        (lambda m, i: m.evict_unused_chunks(-1), ValueError, "max_age_seconds"),
        (lambda m, i: m.compose(None, [], i[3]), quire.InvalidCompositionError, "without_system"),
        (lambda m, i: m.compose(i[0], [], None), quire.InvalidCompositionError, "query"),
        (lambda m, i: m.compose(i[1], [], i[3]), quire.InvalidCompositionError, "context"),
        (lambda m, i: m.compose(i[0], [i[3]], i[3]), quire.InvalidCompositionError, "query"),
        (lambda m, i: m.compose(i[0], i[1], i[3]), TypeError, "context_chunk_ids"),
        (lambda m, i: m.compose(**composing(i, mode="fuzzy")), ValueError, "fuzzy"),
        (lambda m, i: m.compose(**composing(i, modus="exact")), TypeError, "modus"),
        (lambda m, i: m.compose(**composing(i, mode="blend", selector="best")), ValueError, "best"),
        (lambda m, i: m.compose(**composing(i, recompute=0.5)), ValueError, "blend"),
        (lambda m, i: m.compose(**composing(i, mode="blend", recompute="much")), TypeError, "recompute"),
        (lambda m, i: m.compose(**composing(i, mode="blend", selector="explicit")), ValueError, "explicit"),
        (lambda m, i: m.compose(**composing(i, mode="blend", base="exact")), ValueError, "exact"),
        (lambda m, i: m.compose(**composing(i, sink="eos")), ValueError, "eos"),
        (lambda m, i: m.compose(**composing(i, positions="apart")), ValueError, "apart"),
        (lambda m, i: m.compose(**composing(i, positions=[0, 1])), quire.InvalidCompositionError, "2 starts for 4"),
        (lambda m, i: m.compose(**composing(i, composition=m.compose(**composing(i)))), TypeError, "composition="),
        (lambda m, i: m.batch_generate_from_chunks([i[0]]), TypeError, "str"),
        (lambda m, i: m.generate("a", query="b"), TypeError, "prompt"),
        (lambda m, i: m.generate(None), ValueError, "prompt"),
        (lambda m, i: m.generate(query="b", system_chunk_id=i[0]), TypeError, "system_chunk_id"),
        (lambda m, i: m.generate_from_chunks(**composing(i), sampling_params={"tempratur": 1}), ValueError, "tempratur"),
        (lambda m, i: ChunkedLLM(MODEL, max_chunks=0), ValueError, "max_chunks"),
        (lambda m, i: ChunkedLLM(MODEL, chunk_memory_ratio=2), ValueError, "chunk_memory_ratio"),
        (lambda m, i: ChunkedLLM(MODEL, no_such_option=1), TypeError, "no_such_option"),
    ],
)
def test_refusals_name_the_thing_and_change_nothing(llm, ids, call, error, names):
    chunks, stats = llm.list_chunks(), llm.get_chunk_stats()
    with pytest.raises(error, match=names):
        call(llm, ids)
    assert (llm.list_chunks(), llm.get_chunk_stats()) == (chunks, stats)


def test_a_model_whose_layers_all_have_a_window_composes_in_every_mode():
    window = MODEL.parents[2] / "tests" / "golden" / "model" / "mistral_window"
    with ChunkedLLM(window, threads=1) as llm:
        texts = [(list(range(5, 25)), "system_prompt"), (list(range(30, 70)), "context"), ([9], "query")]
        ids = llm.register_chunks(texts)
        plain = llm.generate(sum((tokens for tokens, _ in texts), []), GREEDY).token_ids
        for mode in ("exact", "anchored"):  # one context sees all before it
            assert llm.generate_from_chunks(ids[0], [ids[1]], ids[2], GREEDY, mode=mode).token_ids == plain
        assert llm.generate_from_chunks(ids[0], [ids[1]], ids[2], {"max_tokens": 1}, mode="exact").reuse.grade == "exact"


def test_threads_share_chunks_without_the_gil(llm, ids):
    expected = llm.generate_from_chunks(**composing(ids), sampling_params=GREEDY).token_ids
    failures = []

    def work(index):
        try:
            mine = llm.register_chunk(f"Card {index}. Ruben owns a coat of felt.", "context", anchor=ids[0])
            for _ in range(5):
                assert llm.generate_from_chunks(**composing(ids), sampling_params=GREEDY).token_ids == expected
                llm.generate_from_chunks(ids[0], [mine, ids[1]], ids[3], {"max_tokens": 2})
            assert llm.delete_chunk(mine)
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and llm.get_chunk_stats().total_chunks == 4


def test_closed_llm_says_so():
    llm = ChunkedLLM(MODEL, threads=1)
    llm.close()
    for call in (lambda: llm.register_chunk(ADA, "context"), llm.list_chunks, llm.get_chunk_stats, lambda: llm.generate([5])):
        with pytest.raises(quire.ClosedError, match="closed"):
            call()


def test_a_restart_finds_its_chunks_in_the_store(tmp_path):
    store = tmp_path / "store"
    with ChunkedLLM(MODEL, threads=2, store=store) as llm:
        ids = llm.register_chunks([(KEEPER, "system_prompt"), (ADA, "context", {"n": 7}), (LARS, "context"), (TRADE, "query")])
        answer = llm.generate_from_chunks(**composing(ids), sampling_params=GREEDY).token_ids
    with ChunkedLLM(MODEL, threads=2, store=store) as llm:
        assert {row.chunk_id for row in llm.list_chunks()} == set(ids)
        assert llm.get_chunk(ids[1]).metadata == {"n": 7} and llm.get_chunk(ids[1]).memory_bytes == 0
        output = llm.generate_from_chunks(**composing(ids), sampling_params=GREEDY)
        assert output.token_ids == answer
        computed = llm.get_chunk(ids[3]).token_count + len(answer) - 1
        assert llm.stats()["tokens_computed"] == computed, "the query and the answer alone"
        assert llm.register_chunk(ADA, "context") == ids[1] and llm.stats()["tokens_computed"] == computed
        assert llm.delete_chunk(ids[1])
    with ChunkedLLM(MODEL, threads=2, store=store) as llm:
        with pytest.raises(quire.ChunkNotFoundError):
            llm.generate_from_chunks(**composing(ids))


def test_chunks_are_listed_in_the_order_of_registration_by_any_process(tmp_path):
    def numbers(llm):
        return [chunk.metadata["number"] for chunk in llm.list_chunks()]

    with ChunkedLLM(MODEL, threads=2, store=tmp_path) as llm:
        for number in range(4):
            llm.register_chunk(f"Card {number}.", ChunkType.CONTEXT, {"number": number})
            time.sleep(0.002)  # the store's clock counts milliseconds
    with ChunkedLLM(MODEL, threads=2, store=tmp_path) as llm:
        assert numbers(llm) == [0, 1, 2, 3]
        for number in (2, 0):  # a use of what is there
            llm.register_chunk(f"Card {number}.", ChunkType.CONTEXT)
            assert numbers(llm) == [0, 1, 2, 3]
        llm.register_chunk("Card 4.", ChunkType.CONTEXT, {"number": 4})
        assert numbers(llm) == [0, 1, 2, 3, 4]
    with ChunkedLLM(MODEL, threads=2, store=tmp_path) as llm:
        assert numbers(llm) == [0, 1, 2, 3, 4]


def test_a_store_that_cannot_be_is_an_os_error(tmp_path):
    (tmp_path / "file").write_text("no store")
    for path in (tmp_path / "file", "/proc/no/store"):
        with pytest.raises((OSError, ValueError)):
            ChunkedLLM(MODEL, threads=2, store=path)
