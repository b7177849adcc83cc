"""Sequences and direct inference in Python, on the demo model. Oracles: plain prompts of the same ids, bit for bit."""

import gc
import threading
import time

import numpy as np
import pytest

import quire
from conftest import KEEPER, MODEL, output_after_ctrl_c, some_ids, ticks_during, together
from quire import Blocks, ChunkedLLM, VirtualSequence

GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
SEEDED = {"seed": 7, "max_tokens": 8, "ignore_eos": True, "repetition_penalty": 1.1, "presence_penalty": 0.2}
ADA, LARS = "Card 7. Ada trades in apples. They live in Foxley.", "Card 9. Lars carries a lantern. They live in Thornby."


def cold_logits(llm, ids):
    return llm.forward(ids, reuse="none", rows="last").logits[0]


@pytest.fixture(scope="module")
def shared():
    with ChunkedLLM(MODEL, threads=2, prefix_cache=False) as llm:
        yield llm


@pytest.fixture
def llm(shared):
    """Yields a model that holds nothing, and must hold nothing afterwards but what the test registered as chunks."""
    shared.clear_chunks()
    assert shared.stats()["blocks_in_use"] == 0
    yield shared
    gc.collect()
    shared.clear_chunks()
    assert shared.stats()["blocks_in_use"] == 0


@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
def test_logits_and_continuation_equal_a_plain_prompt_bit_for_bit(llm, length):
    ids = some_ids(length)
    with llm.sequence(ids) as seq:
        assert seq.tokens == ids and len(seq) == length and seq.grade == "exact"
        logits = seq.logits()
        assert logits.dtype == np.float32 and logits.shape == (2048,)
        assert np.array_equal(logits, cold_logits(llm, ids))
        out, plain = seq.generate(GREEDY), llm.generate(ids, GREEDY)
        assert out.token_ids == plain.token_ids and out.text == plain.text
        assert seq.tokens == ids + plain.token_ids


def test_ids_come_from_lists_tuples_and_arrays(llm):
    ids = some_ids(9)
    for form in (ids, tuple(ids), np.array(ids), np.array(ids, np.uint16)):
        with llm.sequence(form) as seq:
            seq.append(form)
            assert seq.tokens == ids * 2
            seq.insert(9, form)
            assert seq.tokens == ids * 3
    with llm.sequence() as seq:
        assert len(seq) == 0 and seq.tokens == []
        seq.append(ids)
        assert np.array_equal(seq.logits(), cold_logits(llm, ids))


def test_going_on_equals_never_having_stopped(llm):
    ids = some_ids(70)
    whole = llm.generate(ids, {**SEEDED, "max_tokens": 24}).token_ids
    with llm.sequence(ids) as seq:
        for part in (1, 7, 16):
            assert len(seq.generate({**SEEDED, "max_tokens": part}).token_ids) == part
        assert seq.tokens == ids + whole


def test_a_stream_is_the_same_and_the_sequence_grows_by_it(llm):
    with llm.sequence(some_ids(40)) as seq, seq.fork() as other:
        whole = other.generate(SEEDED)
        with seq.stream(SEEDED) as stream:
            deltas = list(stream)
        assert "".join(delta.text for delta in deltas) == whole.text == stream.output.text
        assert [i for delta in deltas for i in delta.token_ids] == whole.token_ids
        assert seq.tokens == other.tokens


def test_a_stream_makes_the_sequence_busy_and_closed_before_its_end_leaves_it(llm):
    ids = some_ids(40)
    with llm.sequence(ids) as seq:
        with seq.stream({"max_tokens": 1900, "ignore_eos": True}) as stream:
            next(stream)
            with pytest.raises(ValueError, match="busy"):
                seq.append([20])
        assert seq.tokens == ids
        seq.append([20])
        assert np.array_equal(seq.logits(), cold_logits(llm, [*ids, 20]))


def test_forks_share_blocks_and_go_their_own_ways(llm):
    ids, more = some_ids(97), some_ids(5, 1)
    with llm.sequence(ids) as seq:
        before = llm.stats()["blocks_in_use"]
        fork = seq.fork()
        assert llm.stats()["blocks_in_use"] == before
        fork.append(more)
        assert llm.stats()["blocks_in_use"] == before + 1  # the part block alone is copied
        assert np.array_equal(fork.logits(), cold_logits(llm, ids + more))
        assert np.array_equal(seq.logits(), cold_logits(llm, ids))
        diff = seq.diff(fork)
        assert (diff.common_tokens, diff.left, diff["right"], diff.shared_blocks) == (97, [], more, 3)
        del fork
        assert llm.stats()["blocks_in_use"] == before


def test_rolled_back_never_happened(llm):
    ids = some_ids(75)
    with llm.sequence(ids) as seq:
        head = seq.generate(SEEDED).token_ids
        mark = seq.checkpoint()
        tail = seq.generate(SEEDED).token_ids
        later = seq.checkpoint()
        seq.rollback(mark)
        assert seq.tokens == ids + head
        with pytest.raises(ValueError, match="no mark"):
            seq.rollback(later)
        assert seq.generate(SEEDED).token_ids == tail
        with seq.fork() as fork:
            fork.rollback(mark)
            assert fork.generate(SEEDED).token_ids == tail
        seq.commit(mark)
        with pytest.raises(ValueError, match="no mark"):
            seq.rollback(mark)
        seq.rollback(drop=len(tail))
        assert seq.tokens == ids + head
        for length in (75, 64, 33, 1):
            seq.rollback(to_length=length)
            assert np.array_equal(seq.logits(), cold_logits(llm, ids[:length]))
        marks = [seq.checkpoint(), seq.checkpoint()]
        seq.commit()
        for mark in marks:
            with pytest.raises(ValueError):
                seq.commit(mark)


@pytest.mark.parametrize(("start", "stop", "count"), [(40, 45, 5), (40, 40, 3), (0, 10, 0), (89, 90, 1), (90, 90, 4), (0, 90, 2)])
def test_an_edit_equals_computing_the_edited_ids_anew(llm, start, stop, count):
    ids, middle = some_ids(90), some_ids(count, 5)
    expected = ids[:start] + middle + ids[stop:]
    with llm.sequence(ids) as seq:
        before = llm.stats()["tokens_computed"]
        seq.replace(start, stop, middle)
        assert llm.stats()["tokens_computed"] - before <= len(expected) - start
        assert seq.tokens == expected and seq.grade == "exact"
        assert np.array_equal(seq.logits(), cold_logits(llm, expected))


def test_insert_and_delete_are_edits(llm):
    ids, more = some_ids(50), some_ids(3, 1)
    with llm.sequence(ids) as seq:
        seq.insert(20, more)
        assert seq.tokens == ids[:20] + more + ids[20:]
        seq.delete(20, 23)
        assert seq.tokens == ids and np.array_equal(seq.logits(), cold_logits(llm, ids))


def test_an_approximate_edit_computes_the_new_tokens_alone_and_says_so(llm):
    ids, more = some_ids(200), some_ids(3, 1)
    with llm.sequence(ids) as seq:
        before = llm.stats()["tokens_computed"]
        seq.insert(20, more, mode="approximate")
        seq.delete(100, 110, mode="approximate")
        assert llm.stats()["tokens_computed"] - before <= 8
        assert seq.tokens == (ids[:20] + more + ids[20:])[:100] + (ids[:20] + more + ids[20:])[110:]
        assert seq.grade == "approximate" and len(seq.generate({"max_tokens": 3, "ignore_eos": True}).token_ids) == 3


def registered(llm):
    ids = llm.register_chunks([(KEEPER, "system_prompt"), (ADA, "context"), (LARS, "context"), ("What does Ada trade in?", "query")])
    return ids, llm.compose(ids[0], ids[1:3], ids[3])


def test_a_sequence_goes_on_behind_a_composition(llm):
    _, composition = registered(llm)
    answer = llm.generate_from_chunks(composition=composition, sampling_params={"temperature": 0})
    with llm.sequence(composition) as seq:
        assert seq.tokens == composition.token_ids and seq.grade == "approximate"
        assert seq.generate({"temperature": 0}).text == answer.text and answer.text.strip() == "apples."
        seq.append(llm.tokenizer.encode("<q> What does Lars carry?<a>", add_special_tokens=False))
        assert seq.generate({"temperature": 0}).text.strip() == "a lantern."
        seq.replace(0, 1, seq.tokens[:1])  # within chunks: computed as one plain prompt
        assert seq.grade == "exact" and np.array_equal(seq.logits(), cold_logits(llm, seq.tokens))


def test_blocks_answer_like_a_list_of_their_ids(llm):
    with llm.sequence(some_ids(70)) as seq:
        blocks, count = seq.blocks()
        ids = list(blocks)
        assert count == blocks.num_tokens == 70 and len(blocks) == len(ids) == 3
        assert (blocks[0], blocks[-1], blocks[1:]) == (ids[0], ids[2], ids[1:]) and ids[1] in blocks
        assert repr(blocks) == f"Blocks({ids}, num_tokens=70)"
        with pytest.raises(IndexError):
            blocks[3]
        part = blocks.first(40)
        assert part.num_tokens == 40 and list(part) == ids[: len(part)]
        both = part + blocks
        assert (list(both), both.num_tokens) == (list(part) + ids, 110)
        assert len(Blocks()) == 0 and Blocks().num_tokens == 0 and (Blocks() + blocks).num_tokens == 70


def test_inference_goes_on_behind_blocks_with_and_without_new_tokens(llm):
    ids, more = some_ids(70), some_ids(6, 1)
    with llm.sequence(ids) as seq:
        blocks, count = seq.blocks()
        before = llm.stats()["blocks_in_use"]
        out = llm.infer_from_blocks(existing_blocks=blocks, existing_token_count=count, sampling_params=GREEDY)
        assert out.token_ids == llm.generate(ids, GREEDY).token_ids
        assert out["usage"]["cached_tokens"] == 69 and out.reuse.grade == "exact"
        out = llm.infer_from_blocks(existing_blocks=blocks, new_tokens=np.array(more), sampling_params=SEEDED)
        assert out.prompt_token_ids == ids + more and out.token_ids == llm.generate(ids + more, SEEDED).token_ids
        assert (out.usage.cached_tokens, out.reuse.sources) == (70, [("blocks", 70)])
        out = llm.infer_from_blocks(existing_blocks=blocks, existing_token_count=50, new_tokens=more, sampling_params=GREEDY)
        assert out.token_ids == llm.generate(ids[:50] + more, GREEDY).token_ids
        assert llm.stats()["blocks_in_use"] == before and seq.tokens == ids
    for nothing in ([], (), None, Blocks()):
        out = llm.infer_from_blocks(existing_blocks=nothing, existing_token_count=0, new_tokens=more, sampling_params=GREEDY)
        assert out.token_ids == llm.generate(more, GREEDY).token_ids


def test_existing_blocks_come_in_several_forms_that_mean_the_same(llm):
    a, b, more = some_ids(40, 1), some_ids(70, 2), some_ids(4, 3)
    (first, n), (second, m) = (llm.chunk_blocks(llm.register_chunk(ids, "context", anchor="")) for ids in (a, b))
    assert (n, m) == (40, 70)
    joined = llm.infer_from_blocks(first + second, n + m, more, GREEDY)
    assert joined.prompt_token_ids == a + b + more and joined.reuse.grade == "approximate"
    forms = ([first, second], (first, second), [(first, n), (second, m)], [first, (second, m)], [*first, *second], np.array([*first, *second]))
    for form in forms:
        assert llm.infer_from_blocks(form, n + m, more, GREEDY).token_ids == joined.token_ids
    cut = llm.infer_from_blocks([(first, 35), second.first(33)], None, more, GREEDY)
    assert cut.prompt_token_ids == a[:35] + b[:33] + more
    cut_by_count = llm.infer_from_blocks([*first, *second], n + 65, more, GREEDY)
    assert cut_by_count.prompt_token_ids == a + b[:65] + more
    with llm.sequence(blocks=[*first], existing_token_count=n) as seq:
        assert seq.tokens == a
    with llm.sequence(more, blocks=[first, second]) as seq:
        assert seq.grade == "approximate" and seq.generate(GREEDY).token_ids == joined.token_ids


def test_requests_share_blocks_that_stand_at_other_places(llm):
    a, b, c = (llm.chunk_blocks(llm.register_chunk([20 + i] * 20, "context", anchor=""))[0] for i in range(3))
    orders = ([a, b], [b, c], [c, b, a], [a], [b, a, c])
    params = {**GREEDY, "max_tokens": 100}
    alone = [llm.infer_from_blocks(order, None, [50], params).token_ids for order in orders]
    streams = [llm.infer_from_blocks_stream(order, None, [50], params) for order in orders]
    assert [[token["token_id"] for token in stream] for stream in streams] == alone


def test_streamed_tokens_joined_equal_the_output(llm):
    prompt = llm.tokenizer.encode("<bos><sys> " + KEEPER + "<doc> " + ADA + "<q> Where does Ada live?<a>", add_special_tokens=False)
    with llm.sequence(prompt) as seq:
        blocks, _ = seq.blocks()
        for params in ({"temperature": 0}, {**SEEDED, "max_tokens": 64}, {"temperature": 0, "stop": ["ley"]}):
            whole = llm.infer_from_blocks(blocks, sampling_params=params)
            dicts = list(llm.infer_from_blocks_stream(existing_blocks=blocks, sampling_params=params))
            assert "".join(d["token"] for d in dicts) == whole.text
            assert [d["token_id"] for d in dicts] == whole.token_ids
            assert [d["finish_reason"] for d in dicts] == [None] * (len(dicts) - 1) + [whole.finish_reason]
            assert all(set(d) == {"token", "token_id", "finish_reason"} for d in dicts)


def test_bytes_of_one_character_give_their_text_with_the_last_one(llm):
    euro = llm.tokenizer.encode("€", add_special_tokens=False)
    assert len(euro) == 3
    bias = dict(zip(euro, (100, 80, 60), strict=True))  # and what was chosen once is no longer wanted
    params = {"temperature": 0, "max_tokens": 3, "logit_bias": bias, "repetition_penalty": 10}
    dicts = list(llm.infer_from_blocks_stream([], 0, some_ids(10), params))
    assert [(d["token"], d["token_id"]) for d in dicts] == list(zip(("", "", "€"), euro, strict=True))
    cut_off = list(llm.infer_from_blocks_stream([], 0, some_ids(10), {**params, "max_tokens": 2}))
    assert [d["token"] for d in cut_off] == ["", "\ufffd"]


def test_text_that_may_become_a_stop_string_comes_with_the_token_that_decides(llm):
    prompt = some_ids(30)
    whole = llm.infer_from_blocks([], 0, prompt, SEEDED).text
    dicts = list(llm.infer_from_blocks_stream([], 0, prompt, {**SEEDED, "stop": [whole + "?"]}))
    assert [d["token"] for d in dicts] == [""] * 7 + [whole]


def test_no_token_at_all_is_one_dict_that_says_so(llm):
    assert list(llm.infer_from_blocks_stream([], 0, [20, 30], {"max_tokens": 0})) == [
        {"token": "", "token_id": None, "finish_reason": "length"}
    ]


@pytest.mark.parametrize("end", ["close", "drop", "close unstarted", "drop unstarted"])
def test_ending_the_generator_aborts_the_request(llm, end):
    with llm.sequence(some_ids(40)) as seq:
        before = llm.stats()["blocks_in_use"]
        tokens = llm.infer_from_blocks_stream(seq.blocks()[0], sampling_params={"max_tokens": 1900, "ignore_eos": True})
        if "unstarted" not in end:
            assert next(tokens)["finish_reason"] is None
        if "close" in end:
            tokens.close()
        else:
            del tokens
        stats = llm.stats()
        assert (stats["blocks_in_use"], stats["requests_running"]) == (before, 0)


def test_a_virtual_sequence_says_what_to_run(llm):
    ids, more = some_ids(40), some_ids(5, 1)
    with llm.sequence(ids) as seq:
        blocks, count = seq.blocks()
        virtual = VirtualSequence(token_ids=more, sampling_params=GREEDY, existing_blocks=blocks, existing_token_count=count)
        assert (virtual.num_tokens, virtual.num_new_tokens, virtual.existing_token_count) == (45, 5, 40)
        assert virtual.token_ids == more and virtual.existing_blocks.num_tokens == 40 and virtual.sampling_params == GREEDY
        out = llm.infer(virtual)
        assert out.token_ids == llm.infer(virtual).token_ids == llm.generate(ids + more, GREEDY).token_ids
        assert [d["token_id"] for d in llm.infer_stream(virtual)] == out.token_ids
        assert "num_tokens=40" in repr(virtual) and VirtualSequence(more).num_tokens == 5
        with pytest.raises(AttributeError):
            virtual.existing_token_count = 39


def test_handles_go_stale_loudly(llm):
    with llm.sequence(some_ids(40)) as seq:
        blocks, count = seq.blocks()
        with seq.fork():
            seq.append([30])
            assert llm.infer_from_blocks(blocks, count, sampling_params=GREEDY).usage.prompt_tokens == 40
        with pytest.raises(quire.InvalidCompositionError, match="stale"):
            llm.infer_from_blocks(blocks, count)
        with pytest.raises(quire.InvalidCompositionError, match="stale"):
            llm.sequence(blocks=[blocks])
    chunk = llm.register_chunk(ADA, "context")
    blocks, count = llm.chunk_blocks(chunk)
    llm.delete_chunk(chunk)
    llm.register_chunk(ADA, "context")
    with pytest.raises(quire.InvalidCompositionError, match="stale"):
        llm.infer_from_blocks_stream(blocks, count)


def test_blocks_of_another_model_are_refused(llm):
    ids = some_ids(40)
    with quire.LLM(MODEL, threads=1) as other, other.sequence(ids) as theirs, llm.sequence(ids) as ours:
        for call in (llm.infer_from_blocks, llm.infer_from_blocks_stream, lambda blocks, _: llm.sequence(blocks=blocks)):
            with pytest.raises(quire.InvalidCompositionError, match="another LLM"):
                call(*theirs.blocks())
        assert ours.diff(theirs).shared_blocks == 0


def test_marks_of_another_sequence_are_refused(llm):
    with llm.sequence(some_ids(40)) as seq, seq.fork() as fork, llm.sequence([5, 6]) as other:
        marks = {s: s.checkpoint() for s in (seq, fork, other)}
        for sequence, call in ((seq, seq.rollback), (fork, fork.commit), (other, other.rollback)):
            for mark in (mark for owner, mark in marks.items() if owner is not sequence):
                with pytest.raises(ValueError, match="no mark"):
                    call(mark)


def test_errors_and_aborts_leave_no_block_behind(llm):
    ids = some_ids(40)
    with llm.sequence(ids) as seq:
        before, logits, blocks = llm.stats()["blocks_in_use"], seq.logits(), seq.blocks()[0]
        for call in (
            lambda: seq.generate({"top_p": 3}),
            lambda: seq.append([1 << 20]),
            lambda: seq.append(some_ids(2100)),
            lambda: seq.replace(0, 41, []),
            lambda: llm.infer_from_blocks(blocks, 40, [1 << 20]),
            lambda: llm.infer_from_blocks(blocks, 40, some_ids(2100)),
            lambda: llm.infer_from_blocks(blocks, sampling_params={"top_p": 3}),
            lambda: llm.sequence(some_ids(2100)),
        ):
            with pytest.raises((ValueError, quire.KVOverflowError)):
                call()
            assert llm.stats()["blocks_in_use"] == before and seq.tokens == ids
        stream = seq.stream({"max_tokens": 1900, "ignore_eos": True})
        next(stream)
        assert llm.abort(stream.request_id)
        assert [delta.finish_reason for delta in stream][-1] == "cancelled"
        assert llm.stats()["blocks_in_use"] == before and seq.tokens == ids
        assert np.array_equal(seq.logits(), logits)


def test_running_out_of_memory_leaves_no_block_behind():
    with quire.LLM(MODEL, threads=2, prefix_cache=False, kv_budget=12 * 32 * 4096) as llm, llm.sequence(some_ids(200)) as seq:
        before, logits, blocks = llm.stats()["blocks_in_use"], seq.logits(), seq.blocks()[0]
        for call in (
            lambda: seq.append(some_ids(190)),
            lambda: seq.insert(0, some_ids(190)),
            lambda: seq.generate({"max_tokens": 300, "ignore_eos": True}),
            lambda: llm.infer_from_blocks(blocks, new_tokens=some_ids(190)),
            lambda: llm.sequence(some_ids(190), blocks=blocks),
            lambda: llm.sequence(some_ids(200)),
        ):
            with pytest.raises((quire.OutOfMemoryError, quire.KVOverflowError)):
                call()
            assert llm.stats()["blocks_in_use"] == before and len(seq) == 200
        assert np.array_equal(seq.logits(), logits)


TEXT = "token ids, not text.*tokenize"


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda m, s: m.sequence("Ada"), TypeError, TEXT),
        (lambda m, s: s.append("Ada"), TypeError, TEXT),
        (lambda m, s: s.replace(0, 1, "Ada"), TypeError, TEXT),
        (lambda m, s: m.infer_from_blocks([], 0, "Ada"), TypeError, TEXT),
        (lambda m, s: VirtualSequence("Ada"), TypeError, TEXT),
        (lambda m, s: s.append(7), ValueError, "ids"),
        (lambda m, s: s.append([1.5]), ValueError, "ids"),
        (lambda m, s: s.append(None), ValueError, "ids"),
        (lambda m, s: s.rollback(), TypeError, "exactly one"),
        (lambda m, s: s.rollback(s.checkpoint(), drop=1), TypeError, "exactly one"),
        (lambda m, s: s.rollback(to_length=3, drop=1), TypeError, "exactly one"),
        (lambda m, s: s.rollback(3), TypeError, "to_length"),
        (lambda m, s: s.rollback(to_length=41), ValueError, "41.*40"),
        (lambda m, s: s.rollback(to_length=-1), ValueError, "-1.*40"),
        (lambda m, s: s.rollback(drop=41), ValueError, "-1.*40"),
        (lambda m, s: s.rollback(drop=-1), ValueError, "41.*40"),
        (lambda m, s: s.rollback(drop=1.5), TypeError, "1.5"),
        (lambda m, s: s.commit(3), TypeError, "checkpoint"),
        (lambda m, s: s.replace(1, 2, [3], mode="fast"), ValueError, "'exact', 'approximate'.*'fast'"),
        (lambda m, s: s.replace(5, 41, []), ValueError, "41.*40"),
        (lambda m, s: s.replace(-1, 4, []), ValueError, "-1"),
        (lambda m, s: s.insert(41, [3]), ValueError, "41.*40"),
        (lambda m, s: s.delete(4, 3), ValueError, "4.*3"),
        (lambda m, s: s.diff([1]), TypeError, "Sequence"),
        (lambda m, s: s.generate("hot"), TypeError, "sampling_params"),
        (lambda m, s: m.infer_from_blocks(s.blocks()[0], 41), ValueError, "41.*40"),
        (lambda m, s: m.infer_from_blocks(s.blocks()[0], -1), ValueError, "-1.*40"),
        (lambda m, s: m.infer_from_blocks(s.blocks()[0], True), TypeError, "True"),
        (lambda m, s: m.infer_from_blocks([(s.blocks()[0], 41)]), ValueError, "41.*40"),
        (lambda m, s: m.infer_from_blocks([], 1, [5]), ValueError, "1.*0"),
        (lambda m, s: m.infer_from_blocks([], 0), ValueError, "empty"),
        (lambda m, s: m.infer_from_blocks([], 0, []), ValueError, "empty"),
        (lambda m, s: m.infer_from_blocks_stream([], 0), ValueError, "empty"),
        (lambda m, s: m.infer_from_blocks(list(s.blocks()[0])), ValueError, "existing_token_count"),
        (lambda m, s: m.infer_from_blocks([70000], 3), quire.InvalidCompositionError, "not those of any"),
        (lambda m, s: m.infer_from_blocks(list(s.blocks()[0]), 7), quire.InvalidCompositionError, "7"),
        (lambda m, s: m.infer_from_blocks(list(s.blocks()[0]), -1), ValueError, "-1.*2 blocks"),
        (lambda m, s: m.infer_from_blocks("blocks", 3), TypeError, "existing_blocks"),
        (lambda m, s: m.infer_from_blocks(7, 3), TypeError, "existing_blocks"),
        (lambda m, s: m.infer_from_blocks(s.blocks()), TypeError, "existing_blocks"),
        (lambda m, s: m.infer([5]), TypeError, "VirtualSequence"),
        (lambda m, s: m.infer(s), TypeError, "VirtualSequence"),
        (lambda m, s: m.chunk_blocks("0" * 64), quire.ChunkNotFoundError, "0000"),
        (lambda m, s: m.chunk_blocks(m.register_chunk("Who?", "query")), quire.InvalidCompositionError, "query"),
        (lambda m, s: m.sequence(registered(m)[1], blocks=s.blocks()[0]), TypeError, "composition"),
    ],
)
def test_refusals_name_the_thing_and_leave_the_sequence(llm, call, error, names):
    ids = some_ids(40)
    with llm.sequence(ids) as seq:
        with pytest.raises(error, match=names):
            call(llm, seq)
        assert seq.tokens == ids and len(seq.generate(GREEDY).token_ids) == 8


def test_a_plain_model_has_no_compositions(llm):
    composition = registered(llm)[1]
    with quire.LLM(MODEL, threads=1) as plain, pytest.raises(ValueError, match="token_ids.*Composition"):
        plain.sequence(composition)


def test_closed_sequences_say_so():
    llm = quire.LLM(MODEL, threads=1)
    seq, kept = llm.sequence([5, 6, 7]), llm.sequence([5, 6, 7])
    mark = seq.checkpoint()
    seq.close()
    seq.close()
    assert repr(seq) == "Sequence(closed)" and repr(kept) == "Sequence(3 tokens, exact)"
    calls = (
        lambda s: s.append([5]), lambda s: s.generate(), lambda s: s.stream(), lambda s: s.logits(), lambda s: s.fork(),
        lambda s: s.checkpoint(), lambda s: s.rollback(mark), lambda s: s.rollback(to_length=1), lambda s: s.commit(),
        lambda s: s.replace(0, 1, []), lambda s: s.diff(kept), lambda s: s.blocks(),
        lambda s: s.tokens, len, lambda s: s.grade, lambda s: s.rollback(drop=1),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(quire.ClosedError, match="sequence is closed"):
            call(seq)
    blocks, _ = kept.blocks()
    llm.close()
    for call in calls:
        with pytest.raises(quire.ClosedError, match="LLM is closed"):
            call(kept)
    assert repr(kept) == "Sequence(closed)"
    with pytest.raises(quire.ClosedError):
        llm.infer_from_blocks(blocks)
    kept.close()


def test_a_sequence_serves_one_call_at_a_time(llm):
    with llm.sequence(some_ids(20)) as seq:
        thread = threading.Thread(target=seq.generate, args=({"max_tokens": 300, "ignore_eos": True},))
        thread.start()
        while llm.stats()["requests_running"] == 0:
            time.sleep(0.001)
        with pytest.raises(ValueError, match="busy"):
            seq.append([20])
        thread.join()
        assert len(seq) == 320


def test_threads_use_sequences_of_one_origin_together(llm):
    ids = some_ids(60)
    expected = {i: llm.generate([*ids, 20 + i], GREEDY).token_ids for i in range(8)}
    with llm.sequence(ids) as seq:

        def work(index):
            for _ in range(3):
                with seq.fork() as fork:
                    fork.append([20 + index])
                    output = fork.generate(GREEDY).token_ids
            return output

        assert together(8, work) == [expected[index] for index in range(8)]
        assert seq.tokens == ids


def test_waiting_releases_the_gil(llm):
    with llm.sequence(some_ids(1000)) as seq:
        assert ticks_during(lambda: seq.generate({"max_tokens": 100, "ignore_eos": True})) >= 5


def test_ctrl_c_ends_a_waiting_call_and_leaves_the_sequence():
    code = (
        "import quire, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"llm = quire.LLM({str(MODEL)!r}, threads=1, prefix_cache=False)\n"
        "seq = llm.sequence([10, 11])\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    while True:\n"
        "        with seq.fork() as fork: fork.generate({'max_tokens': 2000, 'ignore_eos': True})\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', seq.tokens, llm.stats()['blocks_in_use'], flush=True)\n"
    )
    assert output_after_ctrl_c(code) == "interrupted [10, 11] 1\n"
