"""Chunks of the trained hybrid (models/hybrid): its golden logits, what composing loses, and what computing layers again
brings back. Oracle: golden.jsonl, by measure.py in float32 PyTorch on the same weights."""
import json
import pathlib

import numpy as np
import pytest

import quire

MODEL = pathlib.Path(__file__).resolve().parents[3] / "models" / "hybrid" / "model"
# KV and maps are stored in 32 bits, as `dtype` says; sums are in another order than PyTorch's.
MODES = ("exact", "anchored", "independent", "layers 0-3")
TOLERANCE = 2e-4
OPTIONS = {"layers 0-3": {"mode": "blend", "recompute_layers": (0, 3)}}


@pytest.fixture(scope="module")
def hybrid():
    with quire.ChunkedLLM(MODEL, dtype="float32", threads=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def prompts():
    with open(MODEL / "golden.jsonl") as lines:
        return [json.loads(line) for line in lines]


def register(llm, prompt):
    """Returns the ids of a golden prompt's chunks, as calls that compose take them."""
    system, *cards, query = [np.array(piece) for piece in prompt["pieces"]]
    system_id = llm.register_chunk(system, "system_prompt")
    return {"system_chunk_id": system_id,
            "context_chunk_ids": [llm.register_chunk(card, "context", anchor=system_id) for card in cards],
            "query_chunk_id": llm.register_chunk(query, "query")}


@pytest.mark.parametrize("mode", MODES)
def test_logits_of_the_trained_hybrid_are_those_of_the_reference(hybrid, prompts, mode):
    for prompt in prompts[::3]:
        ids = register(hybrid, prompt)
        logits = hybrid.logits_from_chunks(**ids, **OPTIONS.get(mode, {"mode": mode}))
        expected = prompt[mode]
        assert int(np.argmax(logits[-1])) == expected["ids"][0]
        assert np.abs(logits[-1][expected["ids"]] - expected["logits"]).max() < TOLERANCE
        hybrid.clear_chunks()


def answers(llm, prompts, **mode):
    """Returns how many prompts of a kind of question are answered right."""
    right = 0
    for prompt in prompts:
        out = llm.generate_from_chunks(**register(llm, prompt), temperature=0, max_tokens=32, **mode)
        right += out.text.strip() == prompt["answer"]
        llm.clear_chunks()
    return right


def test_composing_loses_what_crosses_a_border_and_layers_0_to_3_bring_it_back(hybrid, prompts):
    crossing = [prompt for prompt in prompts if prompt["type"] in ("split_adj", "two_hop_split")]
    assert len(crossing) >= 4
    exact = answers(hybrid, crossing, mode="exact")
    assert exact == len(crossing)
    assert answers(hybrid, crossing, mode="anchored") <= len(crossing) // 2
    assert answers(hybrid, crossing, mode="blend", recompute_layers=(0, 3)) == exact


def test_lookups_and_two_hops_keep_their_answers_when_cards_are_composed(hybrid, prompts):
    looked_up = [prompt for prompt in prompts if prompt["type"] in ("one_hop", "two_hop")]
    assert len(looked_up) >= 4
    assert answers(hybrid, looked_up, mode="anchored") == answers(hybrid, looked_up, mode="exact") == len(looked_up)
