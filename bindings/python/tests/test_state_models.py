"""Models with recurrent states and windows: what their counters, parts, errors and saved files say. Oracles: the sizes of
the pool, the same model without reuse, and the bytes of config.json's own numbers."""
import json
import pathlib
import random
import shutil
import struct

import numpy as np
import pytest

import quire

GOLDENS = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden" / "model"
GREEDY = {"temperature": 0, "max_tokens": 3, "ignore_eos": True}


def ids(count, seed):
    chosen = random.Random(seed)
    return [chosen.randrange(3, 199) for _ in range(count)]


def opened(family, kind=quire.LLM, **options):
    return kind(str(GOLDENS / family), **{"dtype": "float32", "threads": 1, "kv_budget": "8MiB", **options})


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "fp8", "int4"])
@pytest.mark.parametrize("family", ["llama_gqa", "gemma3", "qwen3_5", "lfm2"])
def test_groups_have_the_bytes_of_a_token_in_the_format_of_the_pool(family, kv_dtype):
    try:
        llm = opened(family, kv_dtype=kv_dtype)
    except quire.UnsupportedError as error:
        pytest.skip(str(error))
    with llm:
        stats = llm.stats()
        sizes = [group["bytes_per_token"] for group in stats["groups"] if group["kind"] != "state"]
        assert sum(sizes) * 32 == stats["block_bytes"]
        said = quire.inspect(llm.model)["kv_bytes_per_token"]  # of the types that need no scales, and of int8 as one
        assert kv_dtype not in said or sum(sizes) == said[kv_dtype]


def test_parts_of_an_exact_composition_tell_what_is_known_usable_and_replayed():
    with opened("qwen3_5", quire.ChunkedLLM) as llm:
        system = llm.register_chunk(ids(100, 1), "system_prompt")
        cards = [llm.register_chunk(ids(70, 2), "context"), llm.register_chunk(ids(40, 3), "context")]
        query = llm.register_chunk(ids(5, 4), "query")
        for mode, usable in (("exact", 100), ("anchored", 210)):
            out = llm.generate_from_chunks(system, cards, query, {"max_tokens": 1}, mode=mode, explain=True)
            assert out.usage.cached_tokens == usable
            for part in out.parts:
                assert (part["matched_tokens"], part["usable_tokens"], part["replayed_tokens"]) == (usable, usable, 0)
        said = llm.explain(system_chunk_id=system, context_chunk_ids=cards[::-1], query_chunk_id=query, mode="exact")
        assert said[0]["hit"] and said[0]["usable_tokens"] == 100
        assert not said[1]["hit"] and said[1]["reason"] != "never seen"


def test_a_lack_of_states_says_how_many_bytes_are_needed():
    with opened("qwen3_5", kv_budget="300KiB") as llm:
        state = next(group["bytes"] for group in llm.stats()["groups"] if group["kind"] == "state")
        held = []
        with pytest.raises(quire.OutOfMemoryError, match="states") as refused:
            for seed in range(40):
                held.append(llm.sequence(ids(5, seed)))
        assert refused.value.needed_bytes >= state > refused.value.free_bytes == 0
        for sequence in held:
            sequence.close()
        assert len(llm.generate(ids(9, 77), GREEDY).token_ids) == 3


def test_a_sequence_owes_what_stands_behind_the_point_that_it_was_rolled_back_to():
    with opened("qwen3_5") as llm, opened("qwen3_5") as other:
        sequence = llm.sequence(ids(40, 5))
        sequence.append(ids(90, 5)[40:])
        for length, owed in ((90, 0), (80, 40), (61, 21), (40, 0), (7, 6), (1, 0)):
            computed = llm.stats()["tokens_computed"]
            sequence.rollback(to_length=length)
            assert sequence.owed_tokens == owed
            assert llm.stats()["tokens_computed"] == computed
            cold = other.forward(sequence.tokens, reuse="none", rows="last").logits[-1]
            assert (sequence.logits() == cold).all()
        assert llm.stats()["tokens_replayed"] == 40 + 21 + 6


def with_nan(family, tensor, folder):
    """Copies a tiny model whose tensor is NaN."""
    shutil.copytree(GOLDENS / family, folder)
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + size])[tensor]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    nan = np.array([0x7FC0], np.uint16) if entry["dtype"] == "BF16" else np.array([np.nan], np.float32)
    data[begin:end] = np.tile(nan, (end - begin) // nan.nbytes).tobytes()
    path.write_bytes(data)
    return folder


@pytest.mark.parametrize(
    ("family", "tensor", "part"),
    [("qwen3_5", "model.layers.0.linear_attn.in_proj_qkv.weight", "of layer 0"), ("lfm2", "model.layers.0.conv.in_proj.weight", "of layer 0")],
)
def test_a_nan_in_a_state_is_named_and_leaves_nothing(family, tensor, part, tmp_path):
    model = with_nan(family, tensor, tmp_path / "model")
    with quire.ChunkedLLM(str(model), dtype="float32", threads=1, kv_budget="8MiB") as llm:
        prompt = ids(40, 1)
        for _ in range(2):
            with pytest.raises(ValueError, match=part):
                llm.generate(prompt, GREEDY)
            with pytest.raises(ValueError, match=part):
                llm.forward(prompt)
            with pytest.raises(ValueError, match=part):
                llm.forward(prompt, reuse="none", rows="last")
            with pytest.raises(ValueError, match=part):
                llm.sequence(prompt)
        stats = llm.stats()
        assert stats["restore_points"] == stats["blocks_cached"] == stats["blocks_in_use"] == stats["states_in_use"] == 0
        assert [part["matched_tokens"] for part in llm.explain(prompt)] == [0]


def test_inspect_lists_the_sections_of_a_saved_sequence(tmp_path):
    path = tmp_path / "sequence.qkv"
    with opened("qwen3_5") as llm:
        with llm.sequence(ids(70, 1)) as sequence:
            sequence.save(path)
        state = next(group for group in llm.stats()["groups"] if group["kind"] == "state")
    report = quire.inspect(path)
    assert report["kind"] == "saved sequence" and report["file_bytes"] == path.stat().st_size
    assert report["tokens"] == 69 and report["kv_dtype"] == "float32"
    kv, *states = report["sections"]
    assert kv["section"] == "kv" and kv["tokens"] == 69 and kv["bytes"] > 0
    assert states[-1]["section"] == "state" and states[-1]["behind_tokens"] == 69
    named = {part["part"] for part in states[-1]["parts"]}
    assert {f"gated delta state of layer {layer}" for layer in state["layers"]} <= named
    assert {f"convolution tail of layer {layer}" for layer in state["layers"]} <= named


def test_inspect_lists_the_objects_of_an_exported_entry(tmp_path):
    with opened("qwen3_5", quire.ChunkedLLM, store=tmp_path / "store") as llm:
        ctx = quire.ContextManager(llm, store=tmp_path / "store")
        ctx.save(ctx.add(ids(40, 2), name="card"))
    store = quire.Store(tmp_path / "store")
    store.export(store.ls()[0].key, tmp_path / "card.qke")
    report = quire.inspect(tmp_path / "card.qke")
    assert report["kind"] == "store entry" and report["objects"]
    assert sum(each["tokens"] for each in report["objects"]) >= 40
    assert report["objects"][0]["sections"][0]["section"] == "kv"


@pytest.mark.parametrize("preset", ["lfm2-1.2b@layers=2", "qwen3.5-0.8b@layers=2"])
def test_inspect_says_that_a_preset_of_states_alone_does_not_load(preset):
    said = quire.inspect(f"preset:{preset}")["unsupported"]
    assert len(said) == 1 and "no attention layer" in said[0]
    assert quire.inspect(f"preset:{preset.replace('=2', '=4')}")["unsupported"] == []
