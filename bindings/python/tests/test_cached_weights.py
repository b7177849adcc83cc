"""cache_weights from Python: a second start maps what the first one packed."""

import os
import shutil

import numpy as np
import pytest
from conftest import MODEL, some_ids

import quire

pytestmark = pytest.mark.cpu_only  # a GPU has its weights in a layout of its own


def start(store, kind=quire.LLM, **options):
    """Opens an LLM and returns the bytes that it read and mapped, its remarks, and logits."""
    with kind(MODEL, threads=2, kv_budget="32MiB", store=store, cache_weights=True, **options) as llm:
        stats = llm.stats()
        return stats["load_bytes"], stats["mapped_weight_bytes"], llm.remarks(), llm.forward(some_ids(20)).logits


@pytest.mark.parametrize("kind", [quire.LLM, quire.ChunkedLLM])
def test_a_second_start_maps_the_weights(tmp_path, kind):
    read, mapped, remarks, logits = start(tmp_path / "store", kind)
    assert read > 0 and mapped == 0 and remarks == []
    again, mapped, remarks, same = start(tmp_path / "store", kind)
    assert again == 0 and mapped > 0 and remarks == []
    assert np.array_equal(logits, same)


def test_a_store_shows_checks_and_clears_them(tmp_path):
    start(tmp_path / "store")
    store = quire.Store(tmp_path / "store")
    (weights,) = store.weights(verify=True)
    assert (weights.state, weights.message, weights.model) == ("ok", "", str(MODEL))
    assert weights.bytes == (tmp_path / "store" / "weights" / f"{weights.key}.qw").stat().st_size
    assert store.gc().removed_weights == 0 and len(store) == 0
    file = tmp_path / "store" / "weights" / f"{weights.key}.qw"
    file.write_bytes(file.read_bytes()[:-1])
    assert store.weights()[0].state == "damaged"
    cleaning = store.gc()
    assert (cleaning.removed_weights, cleaning.removed_weight_bytes) == (1, weights.bytes - 1)
    assert store.weights() == []


def test_a_model_may_lie_below_a_name_that_is_no_text(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    shutil.copytree(os.fsencode(MODEL), folder)
    with quire.LLM(folder, threads=2, kv_budget="32MiB", store=tmp_path / "store", cache_weights=True) as llm:
        assert llm.remarks() == []
    (weights,) = quire.Store(tmp_path / "store").weights()
    assert (weights.state, weights.model) == ("ok", f"{tmp_path}/caf\ufffd")
    with pytest.raises(OSError, match=r"caf\\xe9/none"):
        quire.LLM(folder + b"/none")


def test_what_does_not_work_is_a_remark_and_what_cannot_be_meant_an_error(tmp_path):
    (tmp_path / "file").write_text("no folder")
    read, mapped, remarks, _ = start(tmp_path / "file" / "store")
    assert read > 0 and mapped == 0 and "not cached" in remarks[0]
    with pytest.raises(ValueError, match="cache_weights needs a store"):
        quire.LLM(MODEL, cache_weights=True)
    with pytest.raises(ValueError, match="is not a quire store"):
        start(tmp_path)
    with pytest.raises(NotImplementedError, match="cache_weights"):
        quire.LLM(MODEL, device="cuda", store=tmp_path / "store", cache_weights=True)
