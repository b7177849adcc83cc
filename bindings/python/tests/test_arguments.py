"""Tests the errors of wrong arguments, and values that are copied, changed or taken apart."""

import copy
import inspect
import pickle

import numpy as np
import pytest
from conftest import KEEPER, MODEL, holds_nothing_more, some_ids

import quire
from quire import ChunkNotFoundError, ChunkType, ContextManager


@pytest.fixture(scope="module")
def opened():
    with quire.ChunkedLLM(MODEL, threads=2, kv_budget="32MiB") as model:
        yield model


@pytest.fixture
def chunked(opened):
    with holds_nothing_more(opened):
        yield opened


@pytest.fixture
def ids(chunked):
    system = chunked.register_chunk(KEEPER, ChunkType.SYSTEM_PROMPT)
    ada = chunked.register_chunk("Card 4. Ada keeps a goose.", ChunkType.CONTEXT)
    return system, [ada], chunked.register_chunk("Which animal does Ada keep?", ChunkType.QUERY)


def test_the_options_of_a_chunk_stand_in_the_signature():
    parameters = inspect.signature(quire.ChunkedLLM.register_chunk).parameters
    defaults = {name: parameters[name].default for name in ("metadata", "ttl_seconds", "pinned", "priority", "anchor")}
    assert defaults == {"metadata": None, "ttl_seconds": None, "pinned": False, "priority": 0, "anchor": None}
    assert parameters["ttl_seconds"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda llm, ids: llm.register_chunk(None, "context"), ValueError, "^content must be"),
        (lambda llm, ids: llm.register_chunks([{"content": "x", "chunk_type": "context", "pinnd": 1}]), TypeError, "pinnd"),
        (lambda llm, ids: llm.register_chunks(["x"]), TypeError, "a dict of register_chunk's arguments.* not 'x'"),
        (lambda llm, ids: llm.register_chunks([{"content": "x"}]), TypeError, "chunk_type is missing"),
        (lambda llm, ids: llm.register_chunk("x", "doc"), ValueError, "one of 'system_prompt', 'context', 'query', not 'doc'"),
        (lambda llm, ids: llm.generate([5], {"logit_bias": {1.5: 2}}), ValueError, "'logit_bias' cannot be {1.5: 2}"),
        (lambda llm, ids: llm.evict_unused_chunks("soon"), TypeError, "max_age_seconds cannot be 'soon'"),
        (lambda llm, ids: llm.compose(*ids, mode=None), TypeError, "mode cannot be None"),
        (lambda llm, ids: llm.compose(*ids, positions=None), TypeError, "positions cannot be None"),
        (lambda llm, ids: llm.compose(*ids, positions=[0, 16.5, 30]), TypeError, r"positions cannot be \[0, 16.5, 30\]"),
        (lambda llm, ids: llm.compose(*ids, mode="blend", recompute="0.5"), TypeError, "recompute cannot be '0.5'"),
        (lambda llm, ids: llm.compose(*ids, mod="exact"), TypeError, "'mod' is no composing keyword"),
        (lambda llm, ids: llm.generate_from_chunks(llm.compose(*ids)), TypeError, "composition="),
        (lambda llm, ids: llm.generate("x", max_token=5), TypeError, "'max_token' is no composing keyword"),
        (lambda llm, ids: llm.generate("x", query="y"), TypeError, "takes a prompt, or system_prompt"),
        (lambda llm, ids: llm.generate(None), ValueError, "prompt must be a list of token ids, or a text"),
        (lambda llm, ids: llm.generate(query=5), ValueError, "^query must be"),
        (lambda llm, ids: llm.abort("1"), TypeError, "request_id cannot be '1'"),
        (lambda llm, ids: llm.infer_from_blocks({3, 4}, 40, [5]), TypeError, "existing_blocks must be a Blocks or a list"),
        (lambda llm, ids: llm.infer_from_blocks([2**40], 4, [5]), ValueError, "list of block ids"),
        (lambda llm, ids: llm.sequence([5]).rollback(to_length=2**64), ValueError, "no sequence has 18446744073709551616 tokens"),
        (lambda llm, ids: llm.sequence([5]).rollback(drop=10**30), ValueError, "no sequence has 10{30} tokens"),
        (lambda llm, ids: llm.sequence([5]).replace(2**63, 2**63, [5]), ValueError, "no sequence has 9223372036854775808"),
        (lambda llm, ids: quire.LLM(MODEL, kv_budget="\ud800"), ValueError, "is not a size"),
        (lambda llm, ids: quire.LLM(MODEL, kv_budget="many"), ValueError, '^kv_budget: "many" is not a size'),
        (lambda llm, ids: quire.ChunkedLLM(MODEL, max_store_bytes="many"), ValueError, '^max_store_bytes: "many"'),
        (lambda llm, ids: ContextManager(llm, max_store_bytes="many"), ValueError, '^max_store_bytes: "many"'),
        (lambda llm, ids: ContextManager(llm, max_host_bytes="1 GiBi"), ValueError, '^max_host_bytes: "1 GiBi"'),
        (lambda llm, ids: quire.CheckpointManager(llm, "x", max_bytes="many"), ValueError, '^max_bytes: "many"'),
        (lambda llm, ids: quire.Store("x", max_bytes=""), ValueError, '^max_bytes: ""'),
        (lambda llm, ids: ContextManager(llm, mode=None), TypeError, "^mode must be a str"),
        (lambda llm, ids: ContextManager(llm, salt=5), TypeError, "^salt must be a str"),
        (lambda llm, ids: ContextManager(llm).add("x", name=5), TypeError, "^name must be a str"),
        (lambda llm, ids: ContextManager(llm).add("x", kind=None), TypeError, "^kind must be a str"),
        (lambda llm, ids: ContextManager(llm).add("x", tags=None), TypeError, "^tags must be a list"),
        (lambda llm, ids: ContextManager(llm).add("x", tags=[""]), ValueError, "a tag is a word"),
        (lambda llm, ids: ContextManager(llm).add("x", priority="high"), TypeError, "^priority cannot be 'high'"),
        (lambda llm, ids: ContextManager(llm).add("x", ttl_seconds="soon"), TypeError, "^ttl_seconds cannot be 'soon'"),
        (lambda llm, ids: ContextManager(llm).set_retention("x", priority=2**40), ValueError, "^priority cannot be 10995"),
        (lambda llm, ids: ContextManager(llm).set_retention("x", ttl_seconds="1"), TypeError, "^ttl_seconds cannot be '1'"),
        (lambda llm, ids: ContextManager(llm).infer("x", on_text=5), TypeError, "^on_text must be a function, not 5"),
        (lambda llm, ids: llm.pause_session("a", "soon"), TypeError, "^expected_return cannot be 'soon'"),
        (lambda llm, ids: llm.pause_session(7), TypeError, "^session must be a str"),
        (lambda llm, ids: llm.close_session(7), TypeError, "^session must be a str"),
        (lambda llm, ids: llm.set_retention(7), TypeError, "^session must be a str"),
        (lambda llm, ids: llm.set_retention("a", priority="high"), TypeError, "^priority cannot be 'high'"),
        (lambda llm, ids: llm.set_retention("a", priority=0.5), ValueError, "^priority cannot be 0.5"),
        (lambda llm, ids: llm.set_retention("a", ttl=[1]), TypeError, r"^ttl cannot be \[1\]"),
        (lambda llm, ids: llm.sequence([5], session=7), TypeError, "^session must be a str"),
        (lambda llm, ids: llm.tokenizer.id_to_token("a"), TypeError, "^token_id cannot be 'a'"),
        (lambda llm, ids: llm.tokenizer.token_to_id(5), TypeError, "^token must be a str"),
        (lambda llm, ids: quire.LLM(MODEL, progress=5), TypeError, "^progress must be a function, not 5"),
        (lambda llm, ids: quire.ChunkedLLM(MODEL, chunk_format=5), TypeError, "chunk_format is a dict"),
        (lambda llm, ids: quire.ChunkedLLM(MODEL, chunk_format={"system": "ab"}), ValueError, "not 'ab'"),
    ],
)
def test_a_wrong_argument_is_named(chunked, ids, call, error, named):
    held = chunked.stats()["blocks_in_use"]
    with pytest.raises(error, match=named):
        call(chunked, ids)
    assert chunked.stats()["blocks_in_use"] == held


def test_sizes_are_numbers_or_texts_everywhere(tmp_path):
    for size in (2**30, "1GiB", "1024 MiB"):
        with quire.ChunkedLLM(MODEL, threads=2, store=tmp_path / "chunks", kv_budget=size, max_store_bytes=size) as llm:
            assert llm.stats()["blocks_total"] == 2**30 // (32 * 4096)
            ContextManager(llm, store=tmp_path / "items", max_host_bytes=size, max_store_bytes=size).add("x")
            quire.CheckpointManager(llm, tmp_path / "checkpoints", max_bytes=size)
        quire.Store(tmp_path / "chunks", max_bytes=size)
    with quire.ChunkedLLM(MODEL, threads=2, store=tmp_path / "chunks", max_store_bytes="1KiB") as llm:
        for animal in ("goose", "cat", "dog"):
            last = llm.register_chunk(f"Card 4. Ada keeps a {animal}.", ChunkType.CONTEXT)
    assert [entry.key for entry in quire.Store(tmp_path / "chunks").ls()] == [last]


def test_what_is_no_id_names_no_chunk(chunked, ids):
    with pytest.raises(ChunkNotFoundError) as refused:
        chunked.get_chunk(5)
    assert refused.value.chunk_id == "5"
    assert not chunked.delete_chunk("\ud800")  # a string that no UTF-8 can hold
    with pytest.raises(ChunkNotFoundError):
        chunked.generate_from_chunks("\ud800", *ids[1:])
    with pytest.raises(ChunkNotFoundError) as refused:
        ContextManager(chunked).show(chunked.preview_composition(*ids))
    assert len(str(refused.value)) < 300  # a long value is cut


def test_an_absent_context_is_an_empty_one(chunked):
    asked = {"system_prompt": KEEPER, "query": "Hello?", "sampling_params": {"max_tokens": 1}}
    assert chunked.generate(context=None, **asked).chunk_ids == chunked.generate(**asked).chunk_ids
    texts = ["Card 4. Ada keeps a goose."]
    assert chunked.generate(context=iter(texts), **asked).chunk_ids == chunked.generate(context=texts, **asked).chunk_ids


@pytest.mark.parametrize("no", [False, 0, None, np.bool_(False)])
def test_chunks_are_not_kept_when_persist_chunks_is_false_in_whatever_way(chunked, no):
    before = chunked.get_chunk_stats()
    chunked.generate(system_prompt="A.", query="B?", sampling_params={"max_tokens": 1}, persist_chunks=no)
    assert chunked.get_chunk_stats() == before


def test_records_are_read_only_mappings(chunked, ids):
    output = chunked.generate_from_chunks(*ids, {"temperature": 0})
    with pytest.raises(AttributeError, match="immutable"):
        output.text = ""
    with pytest.raises(AttributeError, match="immutable"):
        del output.usage
    assert list(output) == list(output.keys()) and len(output) == len(list(output))
    assert output.get("text") == output.text and output.get("nothing") is None
    assert dict(output.usage) == {"prompt_tokens": 33, "cached_tokens": 25, "completion_tokens": 4, "drafted_tokens": 0,
                                  "accepted_tokens": 0}
    for same in (copy.copy(output), copy.deepcopy(output), pickle.loads(pickle.dumps(output))):
        assert same == output


def test_a_composition_stays_as_it_was_made(chunked, ids):
    composition = chunked.compose(*ids)
    with pytest.raises(AttributeError):
        del composition.mode
    with pytest.raises(AttributeError):
        composition.segments.append(None)
    assert copy.copy(composition) is composition and copy.deepcopy(composition) is composition
    assert [segment.position for segment in composition.segments] == [0, 16, 25]


def test_sampling_params_are_values_with_the_signature_of_their_fields():
    params = quire.SamplingParams(0.5, 0.9, seed=3, stop=["x"], logit_bias={7: -1.5})
    assert (params.temperature, params.top_p, params.seed) == (0.5, 0.9, 3)
    for same in (copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert same == params
    assert params != quire.SamplingParams(0.5, 0.9) and params != {"temperature": 0.5}

    signature = inspect.signature(quire.SamplingParams)
    assert list(signature.parameters)[:3] == ["temperature", "top_p", "top_k"] and len(signature.parameters) == 17
    assert quire.SamplingParams(*(each.default for each in signature.parameters.values())) == quire.SamplingParams()
    assert signature.parameters["stop"].default is None and signature.parameters["max_tokens"].default == 256
    with pytest.raises(TypeError, match="'temperature' is given twice"):
        quire.SamplingParams(0.5, temperature=1)
    with pytest.raises(TypeError, match="17 fields, not 18"):
        quire.SamplingParams(*range(18))


def test_numbers_and_arrays_of_numpy_are_taken_like_those_of_python(chunked, ids):
    starts = [0, 40, 90]
    assert chunked.compose(*ids, positions=np.array(starts)) == chunked.compose(*ids, positions=starts)
    blended = chunked.compose(*ids, mode="blend", recompute=0.5)
    assert chunked.compose(*ids, mode="blend", recompute=np.float32(0.5)) == blended
    assert chunked.tokenizer.decode(np.int64(40)) == chunked.tokenizer.decode(40)


def test_a_copy_of_a_sequence_is_a_fork(chunked):
    with chunked.sequence(some_ids(40)) as origin:
        for copied in (copy.copy(origin), copy.deepcopy(origin)):
            with copied:
                copied.append([11])
                assert copied.tokens == [*origin.tokens, 11]
        assert len(origin) == 40 and origin.logits().shape == (2048,)


def test_a_mark_of_another_llm_is_none(chunked):
    with quire.LLM(MODEL, threads=1, kv_budget="8MiB") as other, other.sequence(some_ids(8)) as foreign:
        with chunked.sequence(some_ids(8)) as sequence:
            own = sequence.checkpoint()
            marks = [foreign.checkpoint() for _ in range(50)]
            assert repr(own) in map(repr, marks)
            sequence.append([11])
            for mark in marks:
                with pytest.raises(ValueError, match="another sequence"):
                    sequence.rollback(mark)
                with pytest.raises(ValueError, match="another sequence"):
                    sequence.commit(mark)
            sequence.rollback(own)
            assert len(sequence) == 8


def test_an_llm_takes_every_option_of_the_library_in_its_order():
    keywords = inspect.signature(quire.LLM).parameters
    assert [name for name in keywords if name not in ("model", "on_pressure", "progress", "log", "model_path")] == quire._quire.Options.fields
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for name, each in keywords.items() if name != "model")
    forms = {"quantize": None, "kv_budget": "1GiB", "threads": None, "store": None, "max_waiting": None,
             "max_decode_gap_ms": None, "speculate": None}  # where Python's is another
    library = quire._quire.Options()
    defaults = {name: forms.get(name, getattr(library, name)) for name in library.fields}
    assert {name: keywords[name].default for name in library.fields} == defaults


def test_what_requests_share_may_be_read_for_each():
    outputs = []
    for share in (True, False):
        with quire.LLM(MODEL, threads=2, kv_budget="32MiB", share_reads=share) as llm:
            outputs.append([output.token_ids for output in llm.generate([some_ids(40)] * 2, {"temperature": 0, "max_tokens": 4})])
    assert outputs[0] == outputs[1]


def test_fields_of_sampling_params_say_what_they_are():
    assert quire.SamplingParams.top_k.__doc__ == "tokens kept, 0 = all"
    assert all(getattr(quire.SamplingParams, name).__doc__ for name in inspect.signature(quire.SamplingParams).parameters)


def test_outputs_have_the_members_of_the_library_in_its_order(chunked):
    names = "request_id text token_ids prompt_token_ids finish_reason stopped_by usage reuse parts logprobs timing outputs".split()
    output = chunked.generate([5, 6], {"temperature": 0, "max_tokens": 2})
    assert list(output.keys()) == names and output.logprobs is None
    assert list(output.reuse.keys()) == ["grade", "sources", "recompute_share"]
    with chunked.stream([5, 6], {"temperature": 0, "max_tokens": 2}) as stream:
        deltas = list(stream)
    assert list(deltas[0].keys()) == ["text", "token_ids", "logprobs", "finish_reason"]
    assert [delta.finish_reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]
    (part,) = chunked.explain([5, 6])
    names = "chunk_type chunk_id position tokens hit reason matched_tokens usable_tokens replayed_tokens".split()
    assert list(part) == names and part.chunk_id is None


def test_quantize_auto_leaves_weights_as_the_checkpoint_has_them():
    options = {"threads": 2, "kv_budget": "32MiB"}
    with quire.LLM(MODEL, **options) as plain, quire.LLM(MODEL, quantize="auto", **options) as auto:
        np.testing.assert_array_equal(auto.forward(some_ids(9)).logits, plain.forward(some_ids(9)).logits)
