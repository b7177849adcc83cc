"""Gemma-3-270M from its GGUF file, with 15 of its 18 layers behind windows of 512 tokens.

The file is fetched into .cache/gemma3 by tools/fetch_gemma3.py and never committed; without it the tests are skipped. The oracle
of ids is transformers 5.23 on the dequantised weights in float32 (tests/golden/model/gemma3_270m).
"""

import json
import pathlib

import numpy as np
import pytest
import quire

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILE = ROOT / ".cache/gemma3/gemma-3-270m-q4_k_m.gguf"
NEAR_TIE = 1e-3  # of the logits' standard deviation

pytestmark = pytest.mark.skipif(not FILE.exists(), reason="fetch the model with tools/fetch_gemma3.py")


@pytest.fixture(scope="module")
def texts():
    return json.loads((ROOT / "tests/golden/model/gemma3_270m/golden.json").read_text())["texts"]


def certain(text):
    """Returns the golden ids before the first near tie of the reference."""
    ties = [i for i, gap in enumerate(text["gaps"]) if gap < NEAR_TIE * text["std"]]
    return text["greedy"][: ties[0] if ties else None]


def test_greedy_ids_equal_those_of_transformers_before_and_behind_the_window(texts):
    with quire.LLM(FILE, dtype="float32", kv_budget="256MiB") as llm:
        assert [group["kind"] for group in llm.stats()["groups"]].count("window") == 1
        for text in texts:
            ids = llm.generate(text["ids"], max_tokens=len(text["greedy"]), temperature=0, ignore_eos=True).token_ids
            assert list(ids[: len(certain(text))]) == certain(text)
    assert sum(len(certain(text)) for text in texts) >= 190 and len(certain(texts[-1])) == 32


def test_a_long_prompt_behind_cached_tokens_has_the_bits_of_a_cold_one(texts):
    ids = texts[-1]["ids"]
    with quire.LLM(FILE, kv_budget="256MiB") as llm:
        cold = llm.forward(ids, reuse="none").logits
        llm.clear_prefix_cache()
        for cut in (400, 700, 1500):
            llm.forward(ids[:cut])
        warm = llm.forward(ids)
        assert warm.cached_tokens >= 1400
        np.testing.assert_array_equal(warm.logits, cold[warm.cached_tokens :])
