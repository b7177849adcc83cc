"""kv_dtype="int8" and what says how exact it is; how stores are compressed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import MODEL, computed, some_ids

import quire

pytestmark = pytest.mark.cpu_only
GREEDY = quire.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def coded():
    with quire.ChunkedLLM(MODEL, threads=2, kv_dtype="int8") as llm:
        yield llm


def test_a_warm_request_equals_a_cold_one_in_int8(coded):
    ids = some_ids(150)
    cold = coded.generate(ids, GREEDY)
    before = computed(coded)
    warm = coded.generate(ids, GREEDY)
    assert warm.token_ids == cold.token_ids
    assert computed(coded) - before < 150, "the prefix came from the cache"


def test_a_budget_holds_nearly_twice_the_tokens(coded):
    with quire.LLM(MODEL, threads=2, kv_dtype="bfloat16") as plain:
        assert coded.stats()["blocks_total"] >= 1.9 * plain.stats()["blocks_total"]
    about = quire.inspect(MODEL)["kv_bytes_per_token"]
    assert about["bfloat16"] > 1.9 * about["int8"]


def test_chunks_and_segments_name_their_format(coded):
    card = coded.register_chunk("Card 7. Ada trades in apples.", "context", kv_dtype="int8")
    chunk = coded.get_chunk(card)
    assert chunk.kv_dtype == "int8" and 0 < chunk.kv_error["key"] < 0.02 and 8 < chunk.kv_error["bits_per_value"] <= 8.5
    query = coded.register_chunk("Who trades?", "query")
    preview = coded.preview_composition(None, [card], query, without_system=True)
    assert [segment.kv_dtype for segment in preview.segments] == ["int8", "int8"]
    with pytest.raises(quire.UnsupportedError, match="not the pool's"):
        coded.register_chunk("Card 8.", "context", kv_dtype="float16")
    assert coded.get_chunk(coded.register_chunk("Card 8.", "context", kv_dtype="bfloat16")).kv_error is None
    with pytest.raises(ValueError, match="not narrower"):
        coded.update_chunk(card, kv_dtype="bfloat16")
    assert coded.update_chunk(card, kv_dtype="int8", priority=2).priority == 2


def test_a_chunk_has_a_format_of_its_own_in_a_pool_of_floats():
    with quire.ChunkedLLM(MODEL, threads=2, kv_dtype="bfloat16") as llm:
        text = "Card 7. Ada trades in apples, and Bo in pears. " * 6
        plain = llm.register_chunk(text, "context")
        card = llm.register_chunk(text, "context", kv_dtype="int8")
        assert card != plain
        chunk = llm.get_chunk(card)
        assert chunk.kv_dtype == "int8" and 0 < chunk.kv_error["key"] < 0.02
        assert chunk.memory_bytes < 0.53 * llm.get_chunk(plain).memory_bytes
        assert llm.get_chunk(plain).kv_dtype == "bfloat16" and llm.get_chunk(plain).kv_error is None
        query = llm.register_chunk("Who trades?", "query")
        preview = llm.preview_composition(None, [plain, card], query, without_system=True)
        assert [segment.kv_dtype for segment in preview.segments] == ["bfloat16", "int8", "bfloat16"]
        with pytest.raises(quire.UnsupportedError, match="not the pool's"):
            llm.register_chunk("Card 8.", "context", kv_dtype="float16")


def test_a_chunk_that_is_there_is_narrowed():
    with quire.ChunkedLLM(MODEL, threads=2, kv_dtype="bfloat16") as llm:
        card = llm.register_chunk("Card 7. Ada trades in apples.", "context")
        before = computed(llm)
        narrowed = llm.update_chunk(card, kv_dtype="int8")
        assert narrowed.chunk_id != card and narrowed.kv_dtype == "int8" and 0 < narrowed.kv_error["value"] < 0.02
        assert computed(llm) == before, "it was converted"
        with pytest.raises(quire.ChunkNotFoundError):
            llm.get_chunk(card)
        with pytest.raises(ValueError, match="not narrower"):
            llm.update_chunk(narrowed.chunk_id, kv_dtype="bfloat16")


def _mixed(llm):
    system = llm.register_chunk("You are the keeper of a card file.", "system_prompt")
    cards = [llm.register_chunk(some_ids(70, seed), "context", kv_dtype=kv_dtype) for seed, kv_dtype in ((1, "int8"), (2, None))]
    return {"system_chunk_id": system, "context_chunk_ids": cards, "query_chunk_id": llm.register_chunk("Who trades?", "query")}


@pytest.mark.parametrize("mode", ["exact", "anchored", "independent", "blend"])
def test_a_segment_keeps_its_format_in_every_mode(mode):
    with quire.ChunkedLLM(MODEL, threads=2, kv_dtype="bfloat16") as llm:
        chunks = _mixed(llm)
        wanted = ["bfloat16", "int8", "bfloat16", "bfloat16"]
        composition = llm.compose(**chunks, mode=mode)
        assert [segment.kv_dtype for segment in composition.segments] == wanted
        assert [part.kv_dtype for part in llm.explain(composition)] == wanted
        output = llm.generate_from_chunks(composition=composition, sampling_params=GREEDY)
        assert output.token_ids == llm.generate_from_chunks(composition=composition, sampling_params=GREEDY).token_ids
        assert output.reuse.grade == composition.grade == "approximate"


def test_bytes_in_use_and_free_are_the_budget():
    with quire.ChunkedLLM(MODEL, threads=2, kv_dtype="bfloat16") as llm:
        empty = llm.stats()
        card = llm.register_chunk(some_ids(70), "context", kv_dtype="int8")
        llm.generate(some_ids(64, 5), GREEDY)
        stats = llm.stats()
        assert stats["bytes_in_use"] == llm.get_chunk(card).memory_bytes
        assert stats["bytes_in_use"] + stats["bytes_free"] == empty["bytes_free"] == stats["blocks_total"] * stats["block_bytes"]


def test_a_sequence_behind_a_coded_chunk_is_saved_and_another_pool_refuses_it(tmp_path):
    path = tmp_path / "sequence.qkv"
    with quire.ChunkedLLM(MODEL, threads=2, kv_dtype="bfloat16") as llm, llm.sequence(llm.compose(**_mixed(llm))) as sequence:
        sequence.save(path)
        logits, ids = sequence.logits(), sequence.generate(GREEDY).token_ids
    with quire.LLM(MODEL, threads=2, kv_dtype="bfloat16") as llm, llm.load_sequence(path) as sequence:
        fork = sequence.fork()
        assert np.array_equal(sequence.logits(), logits) and fork.generate(GREEDY).token_ids == ids
    with quire.LLM(MODEL, threads=2, kv_dtype="int8") as llm, pytest.raises(quire.IncompatibleChunksError, match="bfloat16.*int8"):
        llm.load_sequence(path)


def test_wrong_formats_of_chunks_are_named_and_change_nothing():
    with quire.ChunkedLLM(MODEL, threads=2, kv_dtype="bfloat16") as llm:
        card = llm.register_chunk("Card 7. Ada trades in apples.", "context")
        before = llm.get_chunk(card)
        with pytest.raises(ValueError, match="int3"):
            llm.register_chunk("Card 8.", "context", kv_dtype="int3")
        with pytest.raises(ValueError, match="int3"):
            llm.update_chunk(card, kv_dtype="int3")
        with pytest.raises(quire.UnsupportedError, match="float16"):
            llm.register_chunk("Card 8.", "context", kv_dtype="float16")
        with pytest.raises(ValueError, match="not narrower"):
            llm.update_chunk(card, kv_dtype="float32")
        assert llm.get_chunk(card) == before and len(llm.list_chunks()) == 1


def test_accuracy_is_measured(coded):
    accuracy = coded.kv_accuracy(text_or_ids=some_ids(200), kv_dtype="int8")
    assert accuracy["ratio_vs_fp32"] == pytest.approx(32 / accuracy["bits_per_value"])
    assert 8 < accuracy["bits_per_value"] <= 8.5
    assert 0 < accuracy["key_error"]["mean"] <= accuracy["key_error"]["max"] < 0.02
    assert len(accuracy["value_error"]["layers"]) == len(accuracy["key_error"]["layers"])
    assert 0 < accuracy["logit_kl_mean"] <= min(accuracy["logit_kl_p99"], 1e-3)
    assert 0.8 < accuracy["same_best"] <= 1
    exact = coded.kv_accuracy(some_ids(200), kv_dtype=accuracy["reference"])
    assert exact["logit_kl_p99"] == exact["perplexity_delta"] == exact["key_error"]["max"] == 0
    with pytest.raises(quire.UnsupportedError, match="float32, bfloat16, int8, fp8 and int4"):
        coded.kv_accuracy("a text", kv_dtype="float16")
    with pytest.raises(ValueError, match="at least two tokens"):
        coded.kv_accuracy([5])


@pytest.mark.parametrize("name, ratio", [("int4", 3.1), ("fp8", 1.9)])
def test_blocks_are_stored_when_they_are_full_and_no_call_changes_a_token(name, ratio):
    ids = some_ids(100)
    with quire.LLM(MODEL, threads=2, kv_dtype=name) as llm, quire.LLM(MODEL, threads=2, kv_dtype="bfloat16") as plain:
        assert llm.stats()["blocks_total"] >= ratio * plain.stats()["blocks_total"]
        cold = llm.generate(ids, GREEDY)
        llm.clear_prefix_cache()
        llm.forward(ids[:70])
        assert llm.forward(ids, rows="last").cached_tokens == 64
        assert llm.generate(ids, GREEDY).token_ids == cold.token_ids
        accuracy = plain.kv_accuracy(ids, kv_dtype=name)
        assert accuracy["ratio_vs_bf16"] >= ratio and 0 < accuracy["key_error"]["mean"] < 0.2


def test_blocks_of_int4_are_whole_runs_of_32_tokens():
    with pytest.raises(ValueError, match='block_tokens is 16; kv_dtype "int4" takes multiples of 32'):
        quire.LLM(MODEL, kv_dtype="int4", block_tokens=16)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "int4", "fp8"])
@pytest.mark.parametrize("codec", [True, "zstd", "lz4"])
def test_compressed_stores_give_back_the_bits(tmp_path, codec, kv_dtype):
    def register():
        with quire.ChunkedLLM(MODEL, threads=2, kv_dtype=kv_dtype, store=tmp_path, compress_store=codec) as llm:
            card = llm.register_chunk(some_ids(75), "context", anchor="")
            query = llm.register_chunk(some_ids(8, 1), "query")
            before = computed(llm)
            output = llm.generate_from_chunks(None, [card], query, GREEDY, mode="independent", without_system=True)
            return output.token_ids, before

    first, computed_first = register()
    second, computed_second = register()
    assert first == second and computed_first >= 75 and computed_second == 0


def test_another_codec_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'zstd', 'lz4'"):
        quire.ChunkedLLM(MODEL, store=tmp_path, compress_store="gzip")


def test_outliers_of_keys_cost_accuracy_and_no_bit_of_a_model_with_plain_kv(tmp_path):
    folder = tmp_path / "outliers"
    tool = Path(MODEL).parents[2] / "tools" / "key_outliers.py"
    subprocess.run([sys.executable, tool, MODEL, folder], check=True, capture_output=True)
    ids = some_ids(200)
    with quire.LLM(MODEL, threads=2) as plain, quire.LLM(folder, threads=2) as outliers:
        assert np.array_equal(plain.forward(ids).logits, outliers.forward(ids).logits), "powers of two change no score"
        usual, hard = plain.kv_accuracy(ids), outliers.kv_accuracy(ids)
    assert hard["attention_kl"] > 2 * usual["attention_kl"], "the generator makes a hard case"
    assert hard["value_error"] == usual["value_error"]
    assert hard["logit_kl_mean"] <= 1e-2


@pytest.mark.parametrize("name", ["int4", "fp8"])
def test_blocks_of_a_sequence_are_used_up_to_any_length_over_kv_that_is_stored_when_blocks_are_full(name):
    ids, more = some_ids(100), some_ids(5, 3)
    with quire.LLM(MODEL, threads=2, kv_dtype=name) as llm:
        sequence = llm.sequence(ids)
        blocks, count = sequence.blocks()
        for length in (1, 31, 32, 33, 64, 97, count):
            behind = llm.infer_from_blocks(blocks, length, more, GREEDY)
            assert behind.token_ids == llm.generate(ids[:length] + more, GREEDY).token_ids, length
        changed = sequence.fork()
        changed.replace(10, 14, some_ids(4, 9))
        assert changed.tokens[10:14] == some_ids(4, 9)
        sequence.replace(10, 14, some_ids(4, 9), mode="approximate")
        assert sequence.grade == "approximate" and sequence.tokens == changed.tokens
        assert len(sequence.generate(GREEDY).token_ids) == 12, "the tokens behind keep what is stored of them"


@pytest.mark.parametrize("name", ["int4", "fp8"])
def test_items_of_a_context_go_to_the_host_and_back_as_they_are_stored(name):
    with quire.LLM(MODEL, threads=2, kv_dtype=name) as llm:
        context = quire.ContextManager(llm, "anchored")
        item = context.add("Card 7. Ada trades in apples. " * 6)
        context.add("Card 8. Bruno trades in bells.")
        first = context.infer("Who trades in apples?", GREEDY).token_ids
        before = computed(llm)
        context.unload(item)
        assert context.show(item).tier == "host"
        context.restore(item)
        assert computed(llm) == before and context.show(item).tier == "device"
        context.unload(item, drop=True)
        assert context.infer("Who trades in apples?", GREEDY).token_ids == first, "computed again with the same bits"


@pytest.mark.parametrize("name", ["int4", "fp8"])
def test_sequences_of_blocks_are_saved_and_go_on_with_equal_bits(tmp_path, name):
    file, ids, more = tmp_path / "sequence.qkv", some_ids(75), some_ids(30, 3)
    with quire.LLM(MODEL, threads=2, kv_dtype=name) as llm:
        sequence = llm.sequence(ids)
        sequence.save(file)
        quire.CheckpointManager(llm, tmp_path / "checkpoints").save({"talk": sequence})
        sequence.append(more)
        logits, answer = sequence.logits(), sequence.generate(GREEDY).token_ids
    with quire.LLM(MODEL, threads=2, kv_dtype=name) as llm:
        saved = quire.CheckpointManager(llm, tmp_path / "checkpoints").load()["talk"]
        for loaded in (llm.load_sequence(file), llm.load_sequence(file, wait=False), saved):
            loaded.append(more)
            assert np.array_equal(loaded.logits(), logits)
            assert loaded.generate(GREEDY).token_ids == answer
    with quire.LLM(MODEL, threads=2, kv_dtype="int8") as llm:
        with pytest.raises(quire.IncompatibleChunksError, match=f"{name}, here it is int8"):
            llm.load_sequence(file)
