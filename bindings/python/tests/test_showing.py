"""Tests how a notebook, a log and a JSON file show engines and outputs."""

import copy
import io
import os
import json
import pickle
import sys

import pytest
from conftest import KEEPER, MODEL, some_ids

import quire
from quire import progress

GREEDY = {"temperature": 0, "max_tokens": 3}


@pytest.fixture(scope="module")
def chunked():
    with quire.ChunkedLLM(MODEL, threads=1, kv_budget="16MiB") as model:
        yield model


@pytest.fixture
def ids(chunked):
    system = chunked.register_chunk(KEEPER, "system_prompt")
    return system, [chunked.register_chunk("Card <4>.", "context")], chunked.register_chunk("Who?", "query")


def test_an_engine_shows_model_type_device_and_memory(chunked):
    for llm in (chunked, quire.LLM(MODEL, threads=1, dtype="float32", kv_budget="1GiB")):
        kind = type(llm).__name__
        dtype = "auto" if llm is chunked else "float32"
        budget = "16.0 MiB" if llm is chunked else "1.0 GiB"
        shown = repr(llm)
        assert shown.startswith(f"{kind}({str(MODEL)!r}, dtype={dtype!r}, device='{llm.device}', KV ")
        assert shown.endswith(f" of {budget} in use)")
        assert kind in llm._repr_html_() and budget in llm._repr_html_()
    llm.close()
    assert repr(llm).endswith("KV closed)") and "closed" in llm._repr_html_()


def test_tokenizers_and_streams_show_what_they_are(chunked):
    assert repr(chunked.tokenizer) == "Tokenizer(2048 ids, with chat template)"
    stream = chunked.stream([5, 6], GREEDY, ignore_eos=True)
    assert repr(stream) == f"Stream(request {stream.request_id}, running)"
    list(stream)
    assert repr(stream) == f"Stream(request {stream.request_id}, finished: length)"
    closed = chunked.stream([5, 6])
    closed.close()
    assert repr(closed).endswith("closed)")


def test_the_text_of_an_output_is_what_print_shows(chunked):
    out = chunked.generate(some_ids(40), GREEDY)
    assert str(out) == out.text and f"{out}" == out.text
    delta = next(chunked.stream([5, 6], GREEDY))
    assert str(delta) == delta.text
    assert len(repr(out)) < 1000 and "... 32 more]" in repr(out)  # of the prompt's ids


def test_json_takes_outputs_as_they_are(chunked, ids):
    out = chunked.generate([5, 6], GREEDY, logprobs=2)
    read = json.loads(json.dumps(out))
    assert read["text"] == out.text and read["token_ids"] == out.token_ids
    assert read["usage"] == {"prompt_tokens": 2, "cached_tokens": out.usage.cached_tokens, "completion_tokens": 3,
                             "drafted_tokens": 0, "accepted_tokens": 0}
    assert [list(map(int, step)) for step in read["logprobs"]] == [list(step) for step in out.logprobs]
    assert json.loads(json.dumps(out.usage)) == dict(out.usage)
    composed = chunked.generate_from_chunks(*ids, GREEDY)
    assert json.loads(json.dumps(composed))["reuse"]["sources"] == [list(source) for source in composed.reuse.sources]
    assert json.loads(json.dumps([next(chunked.stream([5, 6], GREEDY))]))[0].keys() == {"text", "token_ids", "logprobs", "finish_reason"}
    json.dumps([chunked.preview_composition(*ids), chunked.compose(*ids).to_dict(), chunked.list_chunks(), chunked.explain([5])])


def test_a_dict_of_an_output_may_be_changed_and_the_output_may_not(chunked):
    out = chunked.generate([5, 6], GREEDY)
    plain = out.to_dict()
    assert type(plain) is dict and type(plain["usage"]) is dict and plain == json.loads(json.dumps(out))
    plain["usage"]["cached_tokens"] = -1
    assert out.usage.cached_tokens != -1
    for change in (
        lambda: out.update(text=""),
        lambda: out.pop("text"),
        lambda: out.clear(),
        lambda: out.setdefault("x", 1),
        lambda: out.__setitem__("text", ""),
        lambda: out.__delitem__("text"),
        lambda: out.popitem(),
    ):
        with pytest.raises(TypeError, match="immutable"):
            change()
    for same in (copy.copy(out), copy.deepcopy(out), pickle.loads(pickle.dumps(out))):
        assert same == out and type(same.usage) is type(out.usage) and str(same) == out.text


def test_notebooks_show_outputs_and_compositions_as_tables(chunked, ids):
    out = chunked.generate_from_chunks(*ids, GREEDY)
    assert "23 of 27 prompt tokens reused (equal_math), 3 generated" in out._repr_html_()
    assert "&lt;" in quire.GenerationOutput({**out, "text": "<b>"})._repr_html_()
    for composed in (chunked.compose(*ids), chunked.preview_composition(*ids)):
        shown = composed._repr_html_()
        assert shown.count("<tr>") == 4 and ids[0][:16] in shown and "mode anchored" in shown
    assert "<table>" in out.usage._repr_html_() and "<table>" in chunked.get_chunk(ids[0])._repr_html_()


def test_registering_says_what_it_did(chunked):
    chunk = {"content": some_ids(40, seed=9), "chunk_type": "context", "anchor": ""}
    first, again = (chunked.register_chunk(**chunk, details=True) for _ in range(2))
    assert first == quire.RegisteredChunk(chunk_id=first.chunk_id, created=True, tokens_computed=40)
    assert again == quire.RegisteredChunk(chunk_id=first.chunk_id, created=False, tokens_computed=0)
    (listed,) = chunked.register_chunks([chunk], details=True)
    assert listed == again and chunked.register_chunks([chunk]) == [first.chunk_id] == [chunked.register_chunk(**chunk)]


def test_progress_of_registering_grows_from_none_to_all(chunked):
    shares = []
    contents = [(some_ids(300, seed=20 + n), "context") for n in range(3)]
    chunked.register_chunks(contents, progress=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1 and all(0 <= share <= 1 for share in shares)
    shares.clear()
    chunked.register_chunk(*contents[0], progress=shares.append)
    assert shares == [1]


def test_progress_of_a_prompt_grows_within_a_step_from_none_to_all(chunked):
    shares = []
    prompts = [some_ids(900, seed=40 + n) for n in range(2)]  # one step of many layers computes them all
    outs = chunked.generate(prompts, GREEDY, progress=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1 and all(0 <= share <= 1 for share in shares)
    assert any(0 < share < 1 for share in shares), shares
    chunked.clear_prefix_cache()
    assert [out.token_ids for out in chunked.generate(prompts, GREEDY)] == [out.token_ids for out in outs]
    shares.clear()
    out = chunked.chat([{"role": "user", "content": "Who keeps a goose?"}], GREEDY, progress=shares.append)
    assert shares[-1] == 1 and out.text == chunked.chat([{"role": "user", "content": "Who keeps a goose?"}], GREEDY).text
    with pytest.raises(TypeError, match="progress must be a function"):
        chunked.generate("Ada", progress=5)
    with pytest.raises(TypeError, match="register_chunks takes it"):
        chunked.generate(context=["Card 4."], query="Who?", progress=True)


def test_many_more_threads_than_processors_are_remarked():
    with quire.LLM(MODEL, threads=64 * os.cpu_count()) as llm:
        (remark,) = llm.remarks()
        assert f"threads is {64 * os.cpu_count()}, but this machine has {os.cpu_count()} processor" in remark
        assert llm.generate("Ada", max_tokens=1).token_ids
    with quire.LLM(MODEL, threads=1) as llm:
        assert llm.remarks() == []


def test_progress_of_a_prompt_that_raises_ends_the_call(chunked):
    def stop(share):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        chunked.generate("Ada", {"max_tokens": 2000, "ignore_eos": True}, progress=stop)
    assert chunked.stats()["requests_running"] == 0 and chunked.generate("Ada", GREEDY).text


def test_progress_that_raises_ends_the_call():
    with quire.ChunkedLLM(MODEL, threads=1) as llm:
        with pytest.raises(ZeroDivisionError):
            llm.register_chunk(some_ids(1500), "context", progress=lambda share: 1 / 0)
        with pytest.raises(TypeError, match="progress must be a function, not 5"):
            llm.register_chunk([5], "context", progress=5)
        assert llm.register_chunk([5], "context")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_true_is_a_bar_on_a_terminal_and_nothing_elsewhere(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)  # as where it is not installed
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    for stream, bars in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with quire.ChunkedLLM(MODEL, threads=1, progress=True) as llm:
            llm.register_chunk(some_ids(100), "context", progress=True)
        said = stream.getvalue()
        assert ("loading model [" in said and "registering [##############################] 100 %\n" in said) if bars else said == ""


@pytest.mark.parametrize("columns", [120, 40, 24, 8, 0])
def test_a_bar_takes_one_row_of_the_terminal_however_narrow(monkeypatch, columns):
    stream = Terminal()
    stream.fileno = lambda: 2
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((columns, 24)))
    bar = progress._Line("computing the prompt")
    for share in (0, 0.5, 1):
        bar(share)
    drawn = stream.getvalue().split("\r")[1:]
    assert len(drawn) == 3 and drawn[-1].endswith("100 %") and len({len(each) for each in drawn}) == 1
    assert len(drawn[-1]) < max(columns or 80, 9) + 1
    assert (columns < 60 and columns) or drawn[1] == f"computing the prompt [{'#' * 15}{' ' * 15}]  50 %"


def test_progress_true_is_tqdm_where_it_is_installed(monkeypatch):
    made = []

    class Tqdm:
        def __init__(self, **how):
            self.n = 0
            self.closed = False
            made.append((self, how))

        def update(self, more):
            self.n += more

        def close(self):
            self.closed = True

    monkeypatch.setitem(sys.modules, "tqdm.auto", type("module", (), {"tqdm": Tqdm}))
    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    with quire.LLM(MODEL, threads=1, progress=True):
        pass
    ((bar, how),) = made
    assert bar.closed and round(bar.n) == 100 and how["desc"] == "loading model"
