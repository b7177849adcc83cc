"""Models, ids, and ways to look at threads and signals, for the Python tests. The demo model lies in the
tree."""

import contextlib
import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import quire

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "models" / "cardfile" / "model"
# Where models compute that name no device, as in the C++ tests: QUIRE_TEST_DEVICE=cuda on a GPU machine.
DEVICE = os.environ.get("QUIRE_TEST_DEVICE", "cpu")
KEEPER = "You are the keeper of a card file. Answer from the cards."


def compute_on(device):
    """Makes `device` the default of the classes that open a model."""
    for opens in (quire.LLM, quire.ChunkedLLM):
        def init(self, *args, _init=opens.__init__, **options):
            _init(self, *args, **{"device": device, **options})

        opens.__init__ = init


if DEVICE != "cpu":
    compute_on(DEVICE)


def pytest_collection_modifyitems(config, items):
    """Skips tests that are marked `cpu_only` on other devices than the CPU."""
    left_out = [item for item in items if DEVICE != "cpu" and item.get_closest_marker("cpu_only")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def some_ids(count, seed=0):
    return np.random.default_rng(seed).integers(10, 1500, count).tolist()


def computed(llm):
    return llm.stats()["tokens_computed"]


@contextlib.contextmanager
def holds_nothing_more(model):
    """Yields a model that must hold nothing more afterwards."""
    held = model.stats()["blocks_in_use"]  # by what a failed test has left
    yield model
    gc.collect()
    if isinstance(model, quire.ChunkedLLM):
        model.clear_chunks()
    assert model.stats()["blocks_in_use"] == held


def together(count, work):
    """Runs work(0), work(1), ... in threads; their results, or the first error."""
    results, errors = {}, []

    def run(index):
        try:
            results[index] = work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[index] for index in range(count)]


def ticks_during(work):
    """Counts how often another thread has run while `work` did: at most every 2 ms."""
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.002)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    work()
    end = time.monotonic()
    done.set()
    thread.join()
    return sum(start < tick < end for tick in ticks)


def output_after_ctrl_c(code):
    """Returns the output of a child that gets Ctrl-C half a second after it has printed "ready"."""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    return out


@pytest.fixture(scope="session")
def llm():
    with quire.LLM(MODEL, threads=2) as model:
        yield model


@pytest.fixture(scope="session")
def goldens():
    with open(MODEL / "golden.jsonl") as lines:
        rows = [json.loads(line) for line in lines]
    for row in rows:
        row["prompt"] = [token for piece in row["pieces"] for token in piece]
    return rows
