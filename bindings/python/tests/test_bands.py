"""Blend by layers: recompute_layers, keep_hidden and find_band, over the demo model."""

import json
import pathlib

import numpy as np
import pytest

import quire
from conftest import MODEL
from quire.bands import band_of

SYSTEM = "You answer from the cards."
CARDS = ["Card 3: Ada keeps the green key.", "Card 7: the green key opens the library.", "Card 9: Bob sings."]
HYBRID = pathlib.Path(__file__).resolve().parents[3] / "models" / "hybrid" / "model"
TINY_MODELS = pathlib.Path(__file__).resolve().parents[3] / "tests" / "golden" / "model"
QUERY = "What does the key of Ada open?"


@pytest.fixture(scope="module")
def llm():
    with quire.ChunkedLLM(str(MODEL), dtype="float32", threads=2, kv_budget="64MiB") as llm:
        yield llm


@pytest.fixture
def ids(llm):
    llm.clear_chunks()
    system = llm.register_chunk(SYSTEM, "system_prompt")
    cards = [llm.register_chunk(card, "context", keep_hidden=3) for card in CARDS]
    return system, cards, llm.register_chunk(QUERY, "query")


def num_layers(llm):
    return sum(len(group["layers"]) for group in llm.stats()["groups"])


def test_all_layers_equal_mode_exact(llm, ids):
    exact = llm.logits_from_chunks(*ids, mode="exact")
    again = llm.logits_from_chunks(*ids, mode="blend", recompute_layers=(0, num_layers(llm)))
    assert np.abs(again - exact).max() < 1e-3
    stored = llm.logits_from_chunks(*ids)
    assert np.abs(stored - exact).max() > 1e-2  # the band has something to bring back


def test_a_band_from_hidden_states_says_its_share(llm, ids):
    composition = llm.compose(*ids, mode="blend", recompute_layers=(3, 5))
    assert composition.grade == "approximate"
    output = llm.generate_from_chunks(composition=composition, max_tokens=4, temperature=0)
    assert output.reuse.recompute_share == pytest.approx(2 / num_layers(llm))
    assert output.usage.cached_tokens == composition.tokens_reused


def test_hidden_states_are_a_field_of_the_chunk_and_part_of_its_memory(llm, ids):
    with_states = llm.get_chunk(ids[1][0])
    assert with_states.keep_hidden == 3
    llm.delete_chunk(with_states.chunk_id)
    plain = llm.get_chunk(llm.register_chunk(CARDS[0], "context"))
    assert plain.chunk_id == with_states.chunk_id and plain.keep_hidden is None
    assert with_states.memory_bytes > plain.memory_bytes


def test_a_band_without_hidden_states_is_refused_by_name(llm, ids):
    with pytest.raises(quire.IncompatibleChunksError, match="keep_hidden=2"):
        llm.logits_from_chunks(*ids, mode="blend", recompute_layers=(2, 4))


@pytest.mark.parametrize("layers", [(3, 3), (4, 2), (-1, 2), (0, 1000), (0,), (0, 1, 2)])
def test_wrong_bands_are_value_errors(llm, ids, layers):
    with pytest.raises(ValueError, match="recompute_layers"):
        llm.logits_from_chunks(*ids, mode="blend", recompute_layers=layers)


def test_a_band_belongs_to_blend_and_stands_alone(llm, ids):
    with pytest.raises(ValueError, match="blend"):
        llm.compose(*ids, recompute_layers=(0, 2))
    with pytest.raises(ValueError, match="recompute"):
        llm.compose(*ids, mode="blend", recompute_layers=(0, 2), recompute=0.5)
    with pytest.raises(ValueError, match="selector"):
        llm.compose(*ids, mode="blend", recompute_layers=(0, 2), selector="all")


@pytest.mark.parametrize("layer", [0, -1, 1000])
def test_hidden_states_of_layers_that_are_not_there_are_refused(llm, layer):
    with pytest.raises(ValueError, match="keep_hidden"):
        llm.register_chunk(CARDS[0], "context", keep_hidden=layer)


def test_find_band_says_the_error_of_each_layer_and_leaves_nothing(llm):
    llm.clear_chunks()
    kept = llm.register_chunk(CARDS[0], "context", anchor="")
    found = llm.find_band(CARDS, [QUERY, "Who sings?"])
    assert len(found["layers"]) == num_layers(llm)
    first, last = found["band"]
    assert 0 <= first < last <= num_layers(llm)
    assert min(found["layers"]) < found["base"]
    assert found["layers"][0] == pytest.approx(found["base"], rel=1e-3)  # layer 0 sees its tokens alone
    assert [chunk.chunk_id for chunk in llm.list_chunks()] == [kept]


def divergence(exact, other):
    """Returns the KL divergence of the last row's distributions, in nats."""
    exact, other = exact[-1].astype(np.float64), other[-1].astype(np.float64)
    exact, other = exact - np.logaddexp.reduce(exact), other - np.logaddexp.reduce(other)
    return (np.exp(exact) * (exact - other)).sum()


def layers_of(model):
    config = json.loads((model / "config.json").read_text())
    return config.get("num_hidden_layers") or len(config["layers_block_type"])


# Oracle: the modes anchored and exact themselves, and the number of layers in config.json.
@pytest.mark.parametrize("family", ["qwen3_5", "lfm2", "granitemoehybrid", "nemotron_h", "models/hybrid"])
def test_find_band_says_the_error_of_every_layer_of_models_with_states(family):
    model = HYBRID if family == "models/hybrid" else TINY_MODELS / family
    with quire.ChunkedLLM(str(model), dtype="float32", threads=1, kv_budget="64MiB") as llm:
        system, *cards, query = [list(range(start, start + 12)) for start in (5, 40, 80, 120, 160)]
        found = llm.find_band(cards, [query], system_prompt=system)
        layers = layers_of(model)
        assert len(found["layers"]) == layers and np.isfinite(found["layers"]).all()
        first, last = found["band"]
        assert 0 <= first < last <= layers
        system_id = llm.register_chunk(system, "system_prompt")
        chunks = (system_id, [llm.register_chunk(card, "context") for card in cards], llm.register_chunk(query, "query"))
        exact = llm.logits_from_chunks(*chunks, mode="exact")
        anchored = divergence(exact, llm.logits_from_chunks(*chunks, mode="anchored"))
        assert found["base"] == pytest.approx(anchored, rel=1e-3, abs=1e-9)
        assert found["base"] > 0
        assert llm.logits_from_chunks(*chunks, mode="blend", recompute_layers=(0, layers)) == pytest.approx(exact, abs=1e-3)


def test_find_band_takes_sets_of_contexts_with_queries_of_their_own(llm):
    alone = [llm.find_band(CARDS, ["Who sings?"]), llm.find_band(CARDS[:2], [QUERY])]
    both = llm.find_band([CARDS, CARDS[:2]], [["Who sings?"], [QUERY]])
    assert both["base"] == pytest.approx((alone[0]["base"] + alone[1]["base"]) / 2)
    with pytest.raises(ValueError, match="sets"):
        llm.find_band([CARDS, CARDS[:2]], [["Who sings?"]])
    with pytest.raises(ValueError, match="two contexts"):
        llm.find_band(CARDS[:1], [QUERY])


def test_a_band_runs_the_layers_below_those_that_gain_most():
    assert band_of([9.0, 9.0, 5.0, 1.0, 4.0, 9.0], 9.0) == (1, 4)
    assert band_of([9.0, 8.0, 8.9], 9.0) == (0, 1)
    assert band_of([9.0, 9.0], 9.0) == (0, 1)  # nothing gains
