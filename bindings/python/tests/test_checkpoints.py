"""Checkpoints, on the demo model. Oracle: sequences that were never saved, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import quire
from conftest import MODEL, some_ids

SEEDED = {"seed": 7, "max_tokens": 64, "ignore_eos": True}


@pytest.fixture
def manager(llm, tmp_path):
    return quire.CheckpointManager(llm, tmp_path / "store")


CHILD = """
import json, sys, quire
llm = quire.LLM(sys.argv[1], threads=2)
manager = quire.CheckpointManager(llm, sys.argv[2])
if sys.argv[3] == "save":
    lengths = {"one": 1, "short": 33, "long": 300}
    sequences = {name: llm.sequence([10 + i * i % 1400 for i in range(length)]) for name, length in lengths.items()}
    for sequence in sequences.values():
        sequence.generate({"seed": 7, "max_tokens": 8, "ignore_eos": True})
    manager.save(sequences)
else:
    sequences = manager.load()
    assert llm.stats()["tokens_computed"] == 0
outputs = {name: sequence.generate({"seed": 7, "max_tokens": 64, "ignore_eos": True, "logprobs": 2})
           for name, sequence in sequences.items()}
print(json.dumps([[name, output.token_ids, output.logprobs, sequences[name].logits().tolist()]
                  for name, output in outputs.items()]))
"""


def test_another_process_goes_on_with_the_same_bits(tmp_path):
    def run(what):
        child = [sys.executable, "-c", CHILD, MODEL, tmp_path / "store", what]
        return json.loads(subprocess.run(child, capture_output=True, text=True, check=True).stdout)

    saved = run("save")
    assert run("load") == saved and [len(ids) for _, ids, _, _ in saved] == [64] * 3


def test_without_waiting_the_same_tokens_come(llm, manager):
    with llm.sequence(some_ids(200)) as talk:
        manager.save({"talk": talk})
        with manager.load(wait=False)["talk"] as loaded:
            assert loaded.tokens == talk.tokens
            assert loaded.generate(SEEDED).token_ids == talk.generate(SEEDED).token_ids


def test_chosen_ones_are_saved_and_loaded(llm, manager):
    with llm.sequence(some_ids(40)) as one, llm.sequence(some_ids(70, 1)) as two:
        sequences = {"one": one, "two": two}
        both = manager.save(sequences, name="both")
        assert (both.name, both.sequences, both.pinned) == ("both", {"one": 39, "two": 69}, False)
        assert both.written_bytes == both.bytes > 0
        only = manager.save(sequences, only=["two"])
        assert (only.name, only.number, only.sequences, only.written_bytes) == ("checkpoint-2", 2, {"two": 69}, 0)
        assert [(c.name, c.sequences) for c in manager.list()] == [("checkpoint-2", only.sequences), ("both", both.sequences)]
        assert manager.latest().name == "checkpoint-2"
        assert list(manager.load()) == ["two"]
        (loaded,) = manager.load("both", only=["one"]).values()
        assert loaded.tokens == one.tokens and np.array_equal(loaded.logits(), one.logits())


def test_increments_write_what_is_new_and_compact_changes_nothing(llm, manager):
    with llm.sequence(some_ids(512)) as seq:
        full = manager.save({"a": seq}).written_bytes
        for seed in range(4):
            seq.append(some_ids(32, seed))
            assert manager.save({"a": seq}).written_bytes < full / 6
        assert len(manager.list()) == 3
        name = manager.list()[0].name
        before = manager.load(name)["a"]
        assert manager.compact(name).written_bytes > full
        after = manager.load(name)["a"]
        assert before.tokens == after.tokens == seq.tokens
        assert np.array_equal(after.logits(), seq.logits())
        assert manager.cleanup(1) == 2 and manager.remove(name) and not manager.remove(name)
        assert manager.list() == []


def test_maybe_save_saves_once_enough_is_new(llm, tmp_path):
    tokens = quire.CheckpointManager(llm, tmp_path / "store", keep=0, every=16)
    seconds = quire.CheckpointManager(llm, tmp_path / "store", series="time", every_seconds=0.01)
    with llm.sequence(some_ids(20)) as seq:
        assert tokens.maybe_save({"a": seq}).number == 1
        seq.append(some_ids(15))
        assert tokens.maybe_save({"a": seq}) is None
        seq.generate({"max_tokens": 1, "ignore_eos": True})
        assert tokens.maybe_save({"a": seq}).number == 2
        time.sleep(0.02)
        assert seconds.maybe_save({"a": seq}).number == 1
        time.sleep(0.02)
        assert seconds.maybe_save({"a": seq}) is None  # nothing is new


def test_a_limit_evicts_the_oldest(llm, tmp_path):
    sizes = []
    for seed in range(4):
        limit = 2 * sizes[-1] if sizes else "1GiB"
        with llm.sequence(some_ids(64, seed)) as seq:
            sizes.append(quire.CheckpointManager(llm, tmp_path / "store", keep=0, max_bytes=limit).save({"a": seq}).bytes)
    assert [c.number for c in quire.CheckpointManager(llm, tmp_path / "store").list()] == [4, 3]


WRITER = """
import sys, quire
llm = quire.LLM(sys.argv[1], threads=1)
manager = quire.CheckpointManager(llm, sys.argv[2], keep=2)
seq = llm.sequence([20 + i % 900 for i in range(40)])
while True:
    manager.save({"a": seq})
    print("saved", flush=True)
    seq.append([20 + (len(seq) + i) % 900 for i in range(40)])
    if len(seq) > 400:
        manager.compact(manager.list()[0].name)
        seq.rollback(to_length=40)
"""


@pytest.mark.cpu_only
def test_a_writer_killed_at_any_time_leaves_a_good_one(tmp_path):
    oracle = {}
    for delay in (0, 0.003, 0.011, 0.027, 0.05, 0.1):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, MODEL, tmp_path / "store"], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2):
            assert child.stdout.readline() == "saved\n"
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        with quire.LLM(MODEL, threads=2, prefix_cache=False) as llm:
            manager = quire.CheckpointManager(llm, tmp_path / "store", keep=2)
            assert 2 <= len(manager.list()) <= 3
            newest = manager.list()[0].name
            assert manager.latest().name == newest
            (seq,) = manager.load().values()
            assert seq.tokens == [20 + i % 900 for i in range(len(seq))]
            if len(seq) not in oracle:
                oracle[len(seq)] = llm.sequence(seq.tokens).logits()
            assert np.array_equal(seq.logits(), oracle[len(seq)])


FORGETTING_WRITER = """
import sys, quire
llm = quire.LLM(sys.argv[1], threads=1)
manager = quire.CheckpointManager(llm, sys.argv[2], keep=1)
talks = [llm.sequence([10 + i] * 300) for i in range(2)]
for i in range(80):
    manager.save({"a": talks[i % 2]})
    print("saved", flush=True)
"""


def test_the_newest_is_loaded_while_another_process_saves_and_forgets(llm, tmp_path):
    command = [sys.executable, "-c", FORGETTING_WRITER, MODEL, tmp_path / "store"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "saved\n"
        manager = quire.CheckpointManager(llm, tmp_path / "store")
        while child.poll() is None:
            for wait in (True, False):
                with manager.load(wait=wait)["a"] as seq:
                    assert seq.tokens in ([10] * 300, [11] * 300)
    assert child.returncode == 0


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda m, s: m.save([s]), TypeError, "by name"),
        (lambda m, s: m.save({"a": 7}), TypeError, "int"),
        (lambda m, s: m.save({"a": s}, only="a"), TypeError, "list"),
        (lambda m, s: m.save({"a": s}, only=[]), ValueError, "no sequence"),
        (lambda m, s: m.load(only=[]), ValueError, "no sequence"),
        (lambda m, s: m.save({"a": s}, only=["b"]), ValueError, "'b'"),
        (lambda m, s: m.save({"a": s}, name=""), ValueError, "empty"),
        (lambda m, s: m.save({7: s}), TypeError, "str"),
        (lambda m, s: m.load("nobody"), quire.ChunkNotFoundError, "nobody"),
        (lambda m, s: m.load(), quire.ChunkNotFoundError, "no checkpoint"),
        (lambda m, s: m.latest(), quire.ChunkNotFoundError, "none was saved"),
        (lambda m, s: m.compact("nobody"), quire.ChunkNotFoundError, "nobody"),
        (lambda m, s: m.cleanup(-1), ValueError, "-1"),
    ],
)
def test_refusals_name_the_thing(llm, manager, call, error, names):
    with llm.sequence([5, 6, 7]) as seq:
        with pytest.raises(error, match=names):
            call(manager, seq)
        assert manager.list() == []


def test_arguments_are_checked(llm, tmp_path):
    for options in ({"keep": -1}, {"every": -1}, {"every_seconds": float("nan")}, {"max_bytes": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            quire.CheckpointManager(llm, tmp_path / "store", **options)
    with pytest.raises(ValueError, match="folder="):
        quire.CheckpointManager(llm)
    with pytest.raises(TypeError, match="str"):
        quire.CheckpointManager("model", tmp_path)
    assert os.listdir(tmp_path) == []
