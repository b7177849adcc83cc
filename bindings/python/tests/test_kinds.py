"""Errors have the right class: for another kind of value, a path that leads nowhere, a change of a constant, a wrong loop.
json.dumps takes outputs and compositions.

Oracles: annotations of the fields, Python's own open() of the same path, and json.loads of what was written.
"""

import asyncio
import copy
import json
import pickle
import random
import warnings

import numpy as np
import pytest
from conftest import KEEPER, MODEL, some_ids
from test_dropped_arguments import KINDS, alternatives, values

import quire
from quire.sampling import FIELDS, Sampling

QUESTION = [{"role": "user", "content": "What does Ada trade in?"}]


@pytest.fixture(scope="module")
def llm():
    with quire.ChunkedLLM(MODEL, threads=2, kv_budget="64MiB") as opened:
        yield opened


@pytest.fixture(scope="module")
def ids(llm):
    chunks = [(KEEPER, "system_prompt"), ("Card 4. Ada keeps a goose.", "context"), ("Which animal?", "query")]
    system, context, query = llm.register_chunks(chunks)
    return system, [context], query


def wrong_kinds(field):
    """Returns values of each kind that the annotation of a field of SamplingParams does not name."""
    right = set().union(*(KINDS[name] for name, _ in alternatives(Sampling.__annotations__[field].__forward_arg__)))
    given = values(random.Random(field))
    return [value for kind, value in given.items() if kind not in right]


@pytest.mark.parametrize("field", FIELDS)
def test_another_kind_of_value_is_a_type_error_that_says_what_the_field_takes(llm, field):
    for value in wrong_kinds(field):
        with pytest.raises(TypeError, match=f"'{field}' cannot be .*; (it takes|give a number)") as refused:
            quire.SamplingParams(**{field: value})
        assert isinstance(refused.value, ValueError)  # as it was before
        with pytest.raises(TypeError, match=f"'{field}' cannot be"):
            llm.generate([5], **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", 5), ("stop", [5]), ("stop", ["a", 5]), ("stop", 1.5), ("stop", {"a": 1}), ("stop", [b"x"]), ("stop", [None]),
        ("stop_token_ids", 5), ("stop_token_ids", "5"), ("stop_token_ids", ["5"]), ("stop_token_ids", [1.0]),
        ("stop_token_ids", [True]), ("stop_token_ids", {1: 2}), ("logit_bias", 5), ("logit_bias", [(1, 2.0)]),
        ("logit_bias", {1: "2"}), ("logit_bias", {1.5: 2}), ("logit_bias", {1: None}), ("temperature", [1]), ("temperature", {}),
        ("max_tokens", 2.0), ("max_tokens", [1]), ("top_k", 1.5), ("seed", 1.0), ("n", [1]), ("ignore_eos", 2), ("ignore_eos", 1.0),
    ],
)  # fmt: skip
def test_what_a_list_or_a_dict_holds_counts_as_its_kind(field, value):
    with pytest.raises(TypeError, match=f"'{field}' cannot be"):
        quire.SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("seed", -1), ("seed", 2**64), ("max_tokens", 2**70), ("max_tokens", -1), ("stop_token_ids", [2**40]),
     ("logit_bias", {2**40: 1.0}), ("temperature", 10**400), ("temperature", -1), ("top_p", 2), ("n", 0)],
)  # fmt: skip
def test_a_number_out_of_range_is_a_value_error_and_no_type_error(field, value):
    with pytest.raises(ValueError, match=field) as refused:
        quire.SamplingParams(**{field: value})
    assert not isinstance(refused.value, TypeError)


def test_a_flag_is_true_false_one_or_zero():
    for value in (True, 1):
        assert quire.SamplingParams(ignore_eos=value).ignore_eos is True
    for value in (False, 0):
        assert quire.SamplingParams(ignore_eos=value).ignore_eos is False


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate(5), lambda llm: llm.generate(b"x"), lambda llm: llm.generate([5, True]),
        lambda llm: llm.stream(["a", "b"]), lambda llm: llm.generate([5, 6.0]), lambda llm: llm.chat("hi"),
        lambda llm: llm.chat({"role": "user", "content": "hi"}), lambda llm: llm.chat(["hi"]),
        lambda llm: llm.chat(QUESTION, documents="x"), lambda llm: llm.chat(QUESTION, documents=[5]),
        lambda llm: llm.chat(QUESTION, tools=[5]), lambda llm: llm.register_chunk("x", 5),
        lambda llm: llm.register_chunk("x", "context", metadata=[1]), lambda llm: llm.set_retention("a", priority=0.5),
        lambda llm: quire.LLM(MODEL, kv_budget=1.5), lambda llm: quire.LLM(MODEL, threads="2"), lambda llm: quire.Tokenizer("x"),
    ],
)  # fmt: skip
def test_an_argument_of_another_kind_is_a_type_error(llm, call):
    with pytest.raises(TypeError):
        call(llm)


def test_several_texts_where_one_prompt_is_wanted_are_named():
    with quire.LLM(MODEL, threads=1, kv_budget="8MiB") as llm, pytest.raises(TypeError, match="generate takes a list of prompts"):
        llm.stream(["a", "b"])


def test_sampling_params_say_how_to_get_a_changed_copy():
    params = quire.SamplingParams(temperature=0.5, stop=["x"])
    for change in (lambda: setattr(params, "temperature", 1), lambda: delattr(params, "temperature")):
        with pytest.raises(AttributeError, match=r"immutable; 'temperature' stays as it is: params\.replace\(temperature=\.\.\.\)"):
            change()
    with pytest.raises(AttributeError, match="no 'max_token'; did you mean max_tokens"):
        params.max_token = 5
    with pytest.raises(AttributeError, match="no 'max_new_tokens'; Quire's word is max_tokens"):
        params.max_new_tokens
    assert not hasattr(params, "__array__")
    changed = params.replace(temperature=1, seed=3)
    assert changed == quire.SamplingParams(temperature=1, stop=["x"], seed=3) and params.temperature == 0.5
    assert params.replace(stop=None) == quire.SamplingParams(temperature=0.5)
    with pytest.raises(ValueError, match="did you mean max_tokens"):
        params.replace(max_token=1)
    with pytest.raises(ValueError, match="top_p"):
        params.replace(top_p=2)
    if hasattr(copy, "replace"):
        assert copy.replace(params, seed=3) == params.replace(seed=3)


def test_sampling_params_as_a_dict_make_equal_ones():
    params = quire.SamplingParams(temperature=0.5, stop=["x"], logit_bias={7: -1.5})
    assert list(params.to_dict()) == list(FIELDS)
    assert quire.SamplingParams(**json.loads(json.dumps(params.to_dict()))) == params


def plain(value):
    """Returns `value` as JSON has it: lists for tuples and arrays, and keys that are texts."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("make", ["generate", "compose", "preview_composition", "delta", "part", "stats", "chunk", "item", "diff"])
def test_what_calls_give_is_json(llm, ids, make):
    def generate():
        return llm.generate([5, 6], max_tokens=2, logprobs=1, n=2, explain=True)

    def diff():
        with llm.sequence(some_ids(40)) as sequence, sequence.fork() as other:
            return sequence.diff(other)

    made = {
        "generate": generate, "compose": lambda: llm.compose(*ids), "preview_composition": lambda: llm.preview_composition(*ids),
        "delta": lambda: next(llm.stream([5, 6], max_tokens=1)), "part": lambda: llm.explain([5, 6])[0], "stats": llm.get_chunk_stats,
        "chunk": lambda: llm.get_chunk(ids[0]), "item": lambda: item(llm), "diff": diff,
    }[make]()  # fmt: skip
    for options in ({}, {"indent": 1}, {"sort_keys": True}):
        assert json.loads(json.dumps(made, **options)) == plain(dict(made))


def item(llm):
    context = quire.ContextManager(llm)
    return context.show(context.add("Card 4."))


def test_a_composition_is_a_record_with_its_token_ids(llm, ids):
    composition = llm.compose(*ids, mode="independent")
    written = json.loads(json.dumps(composition))
    assert written["token_ids"] == composition.token_ids == composition["token_ids"] and len(written["token_ids"]) > 10
    assert [segment["chunk_id"] for segment in written["segments"]] == [ids[0], *ids[1], ids[2]]
    assert composition.to_dict() == written and type(composition.to_dict()["segments"]) is list
    assert list(composition) == list(composition.keys()) == list(written) and len(composition) == len(written)
    assert dict(composition.items()) == dict(composition) and composition.get("nothing", 3) == 3 and "mode" in composition
    assert composition == llm.compose(*ids, mode="independent") != llm.compose(*ids)
    assert llm.generate_from_chunks(composition=composition, max_tokens=1).token_ids
    with pytest.raises(TypeError, match="to_dict"):
        pickle.dumps(composition)
    with pytest.raises(TypeError, match="immutable"):
        composition["mode"] = "exact"


def test_logits_are_json_as_lists(llm):
    out = llm.forward([5, 6])
    assert json.loads(json.dumps(out.to_dict()))["logits"] == out.logits.tolist()


@pytest.mark.parametrize("begin", ["stream", "stream_chat", "stream_from_chunks"])
@pytest.mark.parametrize("use", ["async for", "await", "async with"])
def test_a_stream_that_waits_names_the_calls_of_an_event_loop(llm, ids, begin, use):
    streams = {"stream": ([5, 6],), "stream_chat": (QUESTION,), "stream_from_chunks": ids}
    stream = getattr(llm, begin)(*streams[begin], max_tokens=2)

    async def misuse():
        if use == "await":
            await stream
        elif use == "async with":
            async with stream:
                pass
        else:
            async for _ in stream:
                pass

    with pytest.raises(TypeError, match=r"async for delta in llm\.stream_async\(prompt\).*generate_async"):
        asyncio.run(misuse())
    assert list(stream)[-1].finish_reason  # nothing was lost of it


@pytest.mark.parametrize("use", ["for", "await", "with"])
def test_a_stream_of_an_event_loop_names_the_right_loop(llm, use):
    async def misuse():
        stream = llm.stream_async([5, 6], max_tokens=2)
        if use == "await":
            await stream
        elif use == "with":
            with stream:
                pass
        else:
            list(stream)

    with pytest.raises(TypeError, match="an AsyncStream"):
        asyncio.run(misuse())


def refused_by_open(path):
    """Returns the class of Python's own error."""
    with pytest.raises(OSError) as refused:
        open(path).close()
    return type(refused.value), refused.value.errno


@pytest.mark.parametrize("path", ["none", "none/", "a/b/c", "none.gguf", "./none.gguf", "owner/none.gguf", "../none", "/none/at/all"])
@pytest.mark.parametrize("open_model", [quire.LLM, quire.ChunkedLLM, quire.Tokenizer.open, quire.inspect])
def test_a_model_that_is_not_there_is_a_file_not_found_error(tmp_path, monkeypatch, open_model, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such path|no such file") as refused:
        open_model(path)
    assert (type(refused.value), refused.value.errno) == refused_by_open(path)
    assert "hf download" not in str(refused.value)


def test_a_name_that_is_in_no_cache_is_a_file_not_found_error(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match='"hf download owner/model" fetches it') as refused:
        quire.LLM("owner/model")
    assert refused.value.errno == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda llm, path: llm.load_sequence(path), lambda llm, path: quire.LLM(MODEL, chat_template=path / "x.jinja"),
        lambda llm, path: quire.Store(path.parent / "new").import_(path), lambda llm, path: llm.sequence([5]).save(path / "x"),
    ],
)  # fmt: skip
def test_another_path_that_leads_nowhere_is_one_too(llm, tmp_path, call):
    with pytest.raises(FileNotFoundError, match="none"):
        call(llm, tmp_path / "none")


def test_a_folder_without_a_model_is_one_too(tmp_path):
    for open_model in (quire.LLM, quire.Tokenizer.open):
        with pytest.raises(FileNotFoundError, match="neither"):
            open_model(tmp_path)


def test_a_class_names_the_right_word_as_its_objects_do():
    for ask, word in (
        (lambda: quire.LLM.from_pretrained, r"LLM\(model\)"), (lambda: quire.ChunkedLLM.from_pretrained, r"LLM\(model\)"),
        (lambda: quire.Tokenizer.from_pretrained, r"Tokenizer\.open\(model\)"), (lambda: quire.LLM.generat, "did you mean generate"),
    ):  # fmt: skip
        with pytest.raises(AttributeError, match=word):
            ask()
    with pytest.raises(TypeError, match=r"Tokenizer\.open\(model\)"):
        quire.Tokenizer(MODEL)
    assert not hasattr(quire.LLM, "__wrapped__")


@pytest.mark.parametrize("name", ["temperature", "max_tokens", "stop", "top_p", "max_new_tokens"])
def test_sampling_parameters_of_an_llm_are_named_as_those_of_a_call(name):
    with pytest.raises(TypeError, match=f"LLM takes no '{name}'; Quire's word is a keyword of each call"):
        quire.LLM(MODEL, **{name: 1})


def test_a_document_keeps_its_text_and_its_other_keys_are_named(llm):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = llm.chat(QUESTION, documents=[{"text": "Ada trades in apples.", "title": ""}], temperature=0)
    with pytest.warns(UserWarning, match=r"documents\[0\] has the key 'title', which the chat template does not show"):
        titled = llm.chat(QUESTION, documents=[{"title": "Cards", "text": "Ada trades in apples."}], temperature=0)
    assert titled.prompt_token_ids == text.prompt_token_ids


def test_a_key_is_no_nearest_word_of_itself(llm):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(ValueError, match="has the key 'tool_calls', which the chat template never reads$"):
        llm.chat([{"role": "assistant", "content": None, "tool_calls": [call]}])
