"""Chunks of models whose layers carry a state. Oracle: what transformers computes of the same pieces
(tests/golden/model/make_compositions.py)."""

import json

import numpy as np
import pytest

import quire
from conftest import ROOT

MODELS = ROOT / "tests" / "golden" / "model"


@pytest.fixture(params=["qwen3_5", "nemotron_h", "lfm2"])
def composed(request):
    """A model, the pieces of a composition, its chunk ids and the logits of both modes."""
    golden = json.loads((MODELS / request.param / "composition.json").read_text())
    with quire.ChunkedLLM(str(MODELS / request.param), dtype="float32", threads=2) as llm:
        system, *contexts, query = golden["pieces"]
        ids = {"system_chunk_id": llm.register_chunk(system, "system_prompt")}
        ids["context_chunk_ids"] = [llm.register_chunk(context, "context") for context in contexts]
        ids["query_chunk_id"] = llm.register_chunk(query, "query")
        yield llm, ids, golden


@pytest.mark.parametrize("mode", ["anchored", "independent"])
def test_compositions_equal_those_of_transformers(composed, mode):
    llm, ids, golden = composed
    wanted = np.array(golden[mode], dtype=np.float32)
    logits = llm.logits_from_chunks(**ids, mode=mode)
    assert np.abs(logits - wanted).max() < 1e-4 * np.abs(wanted).max()
    output = llm.generate_from_chunks(**ids, mode=mode, sampling_params={"temperature": 0, "max_tokens": 4})
    assert output.token_ids[0] == wanted[-1].argmax()
    assert output.reuse["grade"] == "approximate"


def test_maps_count_as_memory_of_chunks(composed):
    llm, ids, _ = composed
    chunk = llm.get_chunk(ids["context_chunk_ids"][0])
    used = llm.get_chunk_stats()["memory_used_bytes"]
    preview = llm.preview_composition(**ids)
    assert preview["grade"] == "approximate" and preview["memory_bytes"] > chunk["memory_bytes"] > 0
    assert llm.delete_chunk(ids["context_chunk_ids"][0])
    assert llm.get_chunk_stats()["memory_used_bytes"] == used - chunk["memory_bytes"]


def test_explain_says_what_is_used_by_kind_of_layer(composed):
    llm, ids, _ = composed
    system, context, *_, query = llm.explain(**ids)
    assert context.layers.startswith("attention: stored keys and values; ")
    assert context.layers.endswith("inputs from behind the anchor") and "anchor" not in system.layers
    assert "layers" not in query
    assert llm.explain(**ids, mode="independent")[1].layers.endswith("inputs of the chunk alone")
    assert "layers" not in llm.explain(**ids, mode="exact")[1]


def test_contexts_keep_items_with_their_maps(composed, tmp_path):
    llm, _, golden = composed
    greedy = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    system, *contexts, _ = golden["pieces"]
    ctx = quire.ContextManager(llm, store=tmp_path / "store")
    ctx.add(system, kind="system")
    ids = [ctx.add(context) for context in contexts]
    answer = ctx.infer(None, greedy)
    for item in list(ctx):
        ctx.save(item.id)
    ctx.unload(ids[0])
    assert ctx.show(ids[0]).tier == "host"
    ctx.unload(ids[-1], drop=True)
    again = quire.ContextManager(llm, store=tmp_path / "store")
    for item in list(ctx)[:-1]:
        again.restore(item.id)
    assert again.infer(None, greedy).token_ids == answer.token_ids
    ctx.deactivate(list(ctx)[-1].id)
    assert ctx.infer(None, greedy).token_ids == answer.token_ids


def test_sequences_behind_chunks_are_saved(composed, tmp_path):
    llm, ids, _ = composed
    greedy = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    sequence = llm.sequence(llm.compose(**ids))
    sequence.generate(greedy)
    sequence.save(tmp_path / "sequence.qkv")
    with llm.load_sequence(tmp_path / "sequence.qkv") as loaded:
        assert loaded.grade == sequence.grade == "approximate"
        assert (loaded.logits() == sequence.logits()).all()
        assert loaded.generate(greedy).token_ids == sequence.generate(greedy).token_ids


def test_a_blend_of_tokens_is_refused_by_name(composed):
    llm, ids, _ = composed
    with pytest.raises(quire.IncompatibleChunksError, match="mode blend.*carry a state.*use mode anchored"):
        llm.logits_from_chunks(**ids, mode="blend", recompute=0.5)
