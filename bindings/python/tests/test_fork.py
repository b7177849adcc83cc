"""Tests a model's remains in a forked child: errors that say so, and an end that waits for nobody."""

import gc
import os
import signal
import sys

import pytest
from conftest import KEEPER, MODEL, some_ids

import quire

SECONDS = 60  # a limit for a child that hangs
PARAMS = {"temperature": 0, "max_tokens": 4}


def in_child(work):
    """Returns the exit code of a forked child that does `work`, negative for the signal that ended it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(SECONDS)
            work()
            code = 0
        except BaseException as error:
            print(f"in the child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def opened(tmp_path):
    with quire.ChunkedLLM(MODEL, threads=2, kv_budget="32MiB", store=tmp_path / "store") as llm:
        llm.register_chunk(KEEPER, "system_prompt")
        yield llm


def test_every_call_in_a_forked_child_is_refused_at_once(opened):
    sequence, context = opened.sequence(some_ids(40)), quire.ContextManager(opened)
    context.add("Card 4. Ada keeps a goose.", name="ada")
    stream = opened.stream(some_ids(8), {"max_tokens": 1500, "ignore_eos": True})
    next(stream)
    calls = (
        lambda: opened.generate("Ada", PARAMS),
        lambda: opened.stats(),
        lambda: opened.tokenizer,
        lambda: opened.list_chunks(),
        lambda: sequence.append([5]),
        lambda: len(sequence),
        lambda: context.infer("Who?", PARAMS),
        lambda: context.items(),
        lambda: next(stream),
    )
    parent = os.getpid()

    def ask():
        for call in calls:
            with pytest.raises(quire.ClosedError, match=f"opened in process {parent}; a forked child has no engine"):
                call()

    assert in_child(ask) == 0
    assert opened.generate("Ada", PARAMS).token_ids and len(context) == 1
    stream.close()


def test_a_forked_child_closes_and_ends_like_any_program(opened):
    context, stream = quire.ContextManager(opened), opened.stream([5, 6], {"max_tokens": 1500, "ignore_eos": True})

    def close():
        stream.close()
        opened.close()
        opened.close()

    def drop():
        nonlocal context, stream
        del context, stream
        del opened._chunks, opened._handle
        gc.collect()

    assert in_child(close) == 0
    assert in_child(drop) == 0
    stream.close()
    assert opened.generate("Ada", PARAMS).token_ids and len(context) == 0


def test_a_store_of_the_parent_is_refused_in_a_forked_child_which_opens_it_again(opened, tmp_path):
    folder, other = tmp_path / "store", tmp_path / "entry.qke"
    store = quire.Store(folder)
    calls = (
        store.ls,
        store.gc,
        store.verify,
        store.weights,
        lambda: len(store),
        lambda: store.show("keeper"),
        lambda: store.pin("keeper"),
        lambda: store.set_ttl("keeper", 1),
        lambda: store.rm("keeper", wipe=True),
        lambda: store.export("keeper", other),
        lambda: store.import_(other),
    )
    parent = os.getpid()

    def ask():
        for call in calls:
            with pytest.raises(quire.ClosedError, match=f"the store was opened in process {parent}; a forked child"):
                call()
        assert len(quire.Store(folder)) == 1

    assert in_child(ask) == 0
    with store._lock:  # as another thread's call that is under way when the process forks
        assert in_child(ask) == 0
    assert len(store) == 1


@pytest.mark.cpu_only  # CUDA does not begin again in a forked child
def test_a_forked_child_opens_the_model_again(opened):
    expected = opened.generate("Ada", PARAMS).token_ids

    def again():
        with quire.LLM(MODEL, threads=2, kv_budget="32MiB") as llm:
            assert llm.generate("Ada", PARAMS).token_ids == expected

    assert in_child(again) == 0
