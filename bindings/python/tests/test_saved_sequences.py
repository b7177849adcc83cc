"""Sequences in files, on the demo model. Oracle: sequences that were never saved, bit for bit."""

import json
import os
import random
import stat
import subprocess
import sys

import numpy as np
import pytest

import quire
from conftest import MODEL, computed, holds_nothing_more, some_ids

GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
SEEDED = {"seed": 7, "max_tokens": 8, "ignore_eos": True, "repetition_penalty": 1.1, "presence_penalty": 0.2}
WINDOW = MODEL.parents[2] / "tests" / "golden" / "model" / "mistral_window"  # of 16 tokens
REFUSED = (OSError, quire.IncompatibleChunksError, quire.UnsupportedError)  # damaged, foreign, of a later version


@pytest.fixture(scope="module")
def shared():
    with quire.ChunkedLLM(MODEL, threads=2, prefix_cache=False) as llm:
        yield llm


@pytest.fixture
def llm(shared):
    with holds_nothing_more(shared) as model:
        yield model


@pytest.mark.parametrize("length", [0, 1, 2, 31, 32, 33, 64, 100])
def test_loaded_is_what_was_saved_and_computes_nothing(llm, tmp_path, length):
    ids, path = some_ids(length), tmp_path / "talk.qkv"
    with llm.sequence(ids) as seq:
        seq.save(path)
        before = computed(llm)
        with llm.load_sequence(path) as loaded:
            assert (loaded.tokens, loaded.grade, computed(llm)) == (ids, "exact", before)
            loaded.save(tmp_path / "again.qkv")  # the same content is the same bytes
            assert path.read_bytes() == (tmp_path / "again.qkv").read_bytes()
            if length > 0:
                assert np.array_equal(loaded.logits(), seq.logits())
                assert loaded.generate(GREEDY).token_ids == seq.generate(GREEDY).token_ids


def test_the_sampler_goes_on_where_it_was(llm, tmp_path):
    with llm.sequence(some_ids(70)) as seq:
        seq.generate(SEEDED)
        seq.save(tmp_path / "talk")
        with llm.load_sequence(tmp_path / "talk") as loaded:
            assert loaded.generate(SEEDED).token_ids == seq.generate(SEEDED).token_ids


def test_a_sequence_behind_chunks_keeps_their_order_and_positions(llm, tmp_path):
    ids = llm.register_chunks(
        [
            ("You are the keeper of a card file. Answer from the cards.", "system_prompt"),
            ("Card 7. Ada trades in apples.", "context"),
            ("Card 9. Lars carries a lantern.", "context"),
            ("What does Lars carry?", "query"),
        ]
    )
    with llm.sequence(llm.compose(ids[0], ids[1:3], ids[3])) as seq:
        seq.save(tmp_path / "talk")
        llm.clear_chunks()
        before = computed(llm)
        with llm.load_sequence(tmp_path / "talk") as loaded:
            assert (loaded.tokens, loaded.grade, computed(llm)) == (seq.tokens, "approximate", before)
            assert np.array_equal(loaded.logits(), seq.logits())
            assert loaded.generate({"temperature": 0}).text.strip() == "a lantern."


def test_what_the_prefix_cache_holds_is_shared(tmp_path):
    ids = some_ids(100)
    with quire.LLM(MODEL, threads=2) as llm, llm.sequence(ids) as seq:
        seq.save(tmp_path / "talk")
        before = llm.stats()["blocks_in_use"]
        with llm.load_sequence(tmp_path / "talk") as loaded:
            assert loaded.diff(seq).shared_blocks == 3 and llm.stats()["blocks_in_use"] == before + 1
            assert np.array_equal(loaded.logits(), seq.logits())


CHILD = """
import json, sys, quire
llm = quire.LLM(sys.argv[1], threads=2)
if sys.argv[2] == "save":
    seq = llm.sequence(json.loads(sys.argv[4]))
    seq.generate({"seed": 7, "max_tokens": 8, "ignore_eos": True})
    seq.save(sys.argv[3])
else:
    seq = llm.load_sequence(sys.argv[3])
    assert llm.stats()["tokens_computed"] == 0
    seq.save(sys.argv[4])
output = seq.generate({"seed": 7, "max_tokens": 64, "ignore_eos": True, "logprobs": 2})
print(json.dumps([output.prompt_token_ids, output.token_ids, output.logprobs, seq.logits().tolist()]))
"""


@pytest.mark.parametrize("model", [MODEL, WINDOW], ids=["demo", "past its window"])
def test_another_process_goes_on_with_the_same_bits(tmp_path, model):
    def run(*args):
        child = [sys.executable, "-c", CHILD, model, *args]
        return json.loads(subprocess.run(child, capture_output=True, text=True, check=True).stdout)

    first, second = tmp_path / "first", tmp_path / "second"
    saved = run("save", first, json.dumps([20 + token % 100 for token in some_ids(100)]))
    assert run("load", first, second) == saved and len(saved[1]) == 64
    assert first.read_bytes() == second.read_bytes()  # all KV


@pytest.mark.cpu_only
@pytest.mark.parametrize("options", [{"kv_dtype": "float32"}, {"kv_dtype": "int8"}, {"dtype": "float32"}, {"quantize": "q8g32"}, {"block_tokens": 64}])
def test_another_model_or_format_is_refused(llm, tmp_path, options):
    with llm.sequence(some_ids(40)) as seq:
        seq.save(tmp_path / "talk")
    with quire.LLM(MODEL, threads=2, **options) as other:
        with pytest.raises(quire.IncompatibleChunksError):
            other.load_sequence(tmp_path / "talk")
        assert (other.stats()["blocks_in_use"], computed(other)) == (0, 0)


def outcome(llm, path):
    """Returns the next ids, or None where the file was refused. A loaded sequence must be whole."""
    try:
        loaded = llm.load_sequence(path)
    except REFUSED:
        assert llm.stats()["blocks_in_use"] == 0
        return None
    with loaded:
        return loaded.tokens, loaded.generate(GREEDY).token_ids


def test_a_flipped_bit_anywhere_is_an_error_or_changes_nothing(llm, tmp_path):
    path, chance = tmp_path / "talk", random.Random(1)
    with llm.sequence(some_ids(40)) as seq:
        seq.save(path)
        good = path.read_bytes()
        expected = seq.tokens, seq.generate(GREEDY).token_ids
    assert outcome(llm, path) == expected
    front = good.index(bytes(256))  # header and what it says; zeros up to a page follow
    offsets = [*range(64), *(chance.randrange(64, front) for _ in range(150)), *(chance.randrange(len(good)) for _ in range(250))]
    refused = 0
    for offset in offsets:
        damaged = bytearray(good)
        damaged[offset] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        after = outcome(llm, path)
        assert after in (None, expected), offset
        refused += after is None
        assert after is None or not any(good[offset - offset % 8 : offset - offset % 8 + 8]), offset
    assert refused > 350


def test_damage_is_told_though_the_kv_is_in_memory(tmp_path):
    path = tmp_path / "talk"
    with quire.LLM(MODEL, threads=1) as llm:
        seq = llm.sequence(some_ids(100))
        seq.save(path)
        good, before = path.read_bytes(), computed(llm)
        for leave in (lambda: None, seq.close, llm.clear_prefix_cache):
            leave()
            for offset in range(len(good) // 40, len(good), len(good) // 20):
                damaged = bytearray(good)
                damaged[offset] ^= 1
                path.write_bytes(damaged)
                with pytest.raises(OSError, match="damaged"):
                    llm.load_sequence(path)
            path.write_bytes(good)
            with llm.load_sequence(path) as loaded:
                assert (loaded.tokens, computed(llm)) == (some_ids(100), before)


def test_a_file_that_was_cut_or_grew_is_an_error(llm, tmp_path):
    path = tmp_path / "talk"
    with llm.sequence(some_ids(40)) as seq:
        seq.save(path)
    good, chance = path.read_bytes(), random.Random(2)
    for size in (0, 1, 63, 64, 65, len(good) - 1, *(chance.randrange(len(good)) for _ in range(40))):
        path.write_bytes(good[:size])
        with pytest.raises(REFUSED):
            llm.load_sequence(path)
    for other in (good + b"\0", good[4096:], bytes(len(good)), chance.randbytes(len(good)), good[::-1]):
        path.write_bytes(other)
        with pytest.raises(REFUSED):
            llm.load_sequence(path)


@pytest.mark.parametrize("length", [1, 2, 33, 64, 1000])
def test_what_is_used_while_it_is_read_is_what_was_saved(llm, tmp_path, length):
    ids, path = some_ids(length), tmp_path / "talk.qkv"
    with llm.sequence(ids) as seq:
        seq.save(path)
        before = computed(llm)
        with llm.load_sequence(path, wait=False) as loaded:
            assert (loaded.tokens, loaded.grade, computed(llm)) == (ids, "exact", before)
            assert loaded.generate(SEEDED).token_ids == seq.generate(SEEDED).token_ids


def test_a_request_that_meets_a_damaged_block_is_told_which(llm, tmp_path):
    path = tmp_path / "talk"
    with llm.sequence(some_ids(1025)) as seq:  # its last block is full, so none is read before
        seq.save(path)
        good = bytearray(path.read_bytes())
        good[len(good) // 2] ^= 1
        path.write_bytes(good)
        with llm.load_sequence(path, wait=False) as loaded:
            for use in (loaded.logits, lambda: loaded.generate(GREEDY), lambda: loaded.save(tmp_path / "x")):
                with pytest.raises(OSError, match="checksum"):
                    use()
        assert seq.generate(GREEDY).finish_reason == "length"


def test_paths_are_what_the_system_takes(llm, tmp_path):
    names = ("plain", "größe", b"bytes", os.fsdecode(b"not-utf8-\xff"))
    with llm.sequence([5, 6, 7]) as seq:
        for name in names:
            for path in (os.path.join(os.fsencode(tmp_path), os.fsencode(name)), tmp_path / os.fsdecode(name)):
                seq.save(path)
                with llm.load_sequence(path) as loaded:
                    assert loaded.tokens == [5, 6, 7]
        assert sorted(os.listdir(tmp_path)) == sorted(os.fsdecode(name) for name in names)  # and no file besides
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_a_later_save_replaces_the_file_and_a_failed_one_leaves_it(llm, tmp_path):
    path = tmp_path / "talk"
    with llm.sequence([5, 6, 7]) as seq:
        seq.save(path)
        seq.append([8])
        seq.save(str(path))
    with llm.load_sequence(path) as loaded:
        assert loaded.tokens == [5, 6, 7, 8]
    with llm.sequence([9]) as other, pytest.raises(OSError):
        other.save(path / "below")
    assert os.listdir(tmp_path) == ["talk"]


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda m, s, d: m.load_sequence(d / "no such"), OSError, "no such"),
        (lambda m, s, d: m.load_sequence(d), OSError, "regular file|directory"),
        (lambda m, s, d: m.load_sequence(__file__), OSError, "test_saved"),
        (lambda m, s, d: m.load_sequence(7), TypeError, "int"),
        (lambda m, s, d: m.load_sequence("a\0b"), ValueError, "null"),
        (lambda m, s, d: s.save(d), OSError, "directory"),
        (lambda m, s, d: s.save(""), ValueError, "names no file"),
        (lambda m, s, d: s.save(d / "no folder" / "talk"), OSError, "no folder"),
        (lambda m, s, d: s.save(None), TypeError, "None"),
        (lambda m, s, d: s.save(str(d / "a") + "\0b"), ValueError, "null"),
    ],
)
def test_refusals_name_the_thing_and_leave_no_file(llm, tmp_path, call, error, names):
    with llm.sequence([5, 6, 7]) as seq:
        with pytest.raises(error, match=names):
            call(llm, seq, tmp_path)
        assert seq.tokens == [5, 6, 7] and os.listdir(tmp_path) == []


def test_closed_ones_say_so(tmp_path):
    llm = quire.LLM(MODEL, threads=1)
    seq, closed = llm.sequence([5, 6, 7]), llm.sequence([5])
    seq.save(tmp_path / "talk")
    closed.close()
    with pytest.raises(quire.ClosedError):
        closed.save(tmp_path / "closed")
    llm.close()
    with pytest.raises(quire.ClosedError):
        seq.save(tmp_path / "late")
    with pytest.raises(quire.ClosedError):
        llm.load_sequence(tmp_path / "talk")
    assert os.listdir(tmp_path) == ["talk"]
