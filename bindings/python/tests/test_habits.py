"""Tests the first tries of users of other engines: each works, or the error says Quire's word."""

import os

import pytest
from conftest import MODEL

import quire

CONFIG_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ({"n_ctx": 4096}, "Quire's word is kv_budget"),
        ({"max_model_len": 4096}, "Quire's word is kv_budget"),
        ({"gpu_memory_utilization": 0.9}, "kv_budget"),
        ({"n_threads": 4}, "Quire's word is threads"),
        ({"n_gpu_layers": -1}, 'device: "cuda"'),
        ({"tensor_parallel_size": 2}, "does not have it yet"),
        ({"load_in_4bit": True}, 'quantize="q4g32"'),
        ({"enable_prefix_caching": True}, "Quire's word is prefix_cache"),
        ({"model_name_or_path": "x"}, "Quire's word is model"),
        ({"draft_model": "x"}, "speculate"),
        ({"thread": 2}, r"did you mean threads\?"),
        ({"kv_bugdet": "1GiB"}, r"did you mean kv_budget\?"),
        ({"max_num_seqs": 8}, "as many requests run together as fit"),
        ({"enforce_eager": True}, "nothing: there is nothing to be set"),
        ({"flash_attn": True}, "nothing: it is always so"),
        ({"chunked_prefill_size": 512}, "Quire's word is max_batch_tokens"),
        ({"revision": "main"}, 'model: "owner/name@revision"'),
        ({"pipeline_parallel_size": 2}, "does not have it yet"),
        ({"no_such_thing_at_all": 1}, "'no_such_thing_at_all'$"),
    ],
)
def test_an_option_of_another_engine_is_refused_with_the_nearest_right_word(option, word):
    for opens in (quire.LLM, quire.ChunkedLLM):
        with pytest.raises(TypeError, match=f"^{opens.__name__} takes no .*{word}"):
            opens(MODEL, **option)


@pytest.mark.parametrize(
    ("use", "error", "word"),
    [
        (lambda llm: llm("Ada"), TypeError, r"llm\.generate\(prompt\), llm\.chat\(messages\)"),
        (lambda llm: llm.create_chat_completion([]), AttributeError, r"Quire's word is chat\(messages\)"),
        (lambda llm: llm.create_completion("a"), AttributeError, r"generate\(prompt\)"),
        (lambda llm: llm.tokenize(b"a"), AttributeError, r"tokenizer\.encode\(text\)"),
        (lambda llm: llm.embed("a"), AttributeError, "does not have it yet"),
        (lambda llm: llm.generat("a"), AttributeError, r"did you mean generate\?"),
        (lambda llm: llm.generate("Ada", max_tokens=1).choices, AttributeError, r"out\.text"),
        (lambda llm: llm.generate("Ada", max_tokens=1).response, AttributeError, r"out\.text"),
        (lambda llm: llm.chat([{"role": "user", "content": "Ada"}], keep_alive="5m"), TypeError, r"llm\.close\(\)"),
        (lambda llm: llm.generate("Ada", max_tokens=1).txt, AttributeError, r"did you mean text\?"),
        (lambda llm: llm.generate("Ada", max_tokens=None), TypeError, "'max_tokens' cannot be None; give a number"),
        (lambda llm: llm.generate("Ada", bad_words=["x"]), TypeError, "logit_bias"),
        (lambda llm: llm.generate("Ada", n_ctx=4096), TypeError, "generate takes no 'n_ctx'; Quire's word is kv_budget"),
        (lambda llm: llm.generate("Ada", threads=2), TypeError, r"it is an option of LLM\(model, threads=\)"),
        (lambda llm: llm.generate("Ada", truncation=True), TypeError, "a prompt is never cut"),
        (lambda llm: llm.generate("Ada", streamer=print), TypeError, r"stream\(prompt\)"),
        (lambda llm: llm.generate("Ada", mirostat=2), TypeError, "does not have it yet"),
        (lambda llm: llm.generate("Ada", system="Be brief."), TypeError, r'a message \{"role": "system"'),
        (lambda llm: llm.chat([{"role": "user", "content": "Ada"}], think=True), TypeError, "template_args"),
        (lambda llm: llm.generate(messages=[]), TypeError, r"Quire's word is chat\(messages\)"),
        (lambda llm: llm.stream(prompts=["Ada"]), TypeError, "Quire's word is prompt"),
        (lambda llm: llm.chat(conversation=[]), TypeError, "Quire's word is messages"),
        (lambda llm: llm.generate(), TypeError, "missing 1 required positional argument"),
        (lambda llm: llm.generate([{"role": "user", "content": "Ada"}]), ValueError, r"llm\.chat\(messages\)"),
        (lambda llm: llm.chat([[{"role": "user", "content": "Ada"}]]), ValueError, "one call takes one conversation"),
        (lambda llm: llm.n_ctx, AttributeError, r"quire\.inspect\(model\)"),
        (lambda llm: llm.cuda(), AttributeError, "device= and dtype="),
        (lambda llm: llm.tokenizer.eos_token, AttributeError, r"id_to_token\(tokenizer\.eos_token_id\)"),
        (lambda llm: llm.tokenizer.encode_plus("Ada"), AttributeError, r"tokenizer\(text\)"),
        (lambda llm: llm.tokenizer.encod("Ada"), AttributeError, r"did you mean encode\?"),
        (lambda llm: llm.tokenizer("Ada", truncation=True), TypeError, "a text is never cut"),
        (lambda llm: llm.tokenizer.encode("Ada", return_tensors="pt"), TypeError, "numpy.array"),
        (lambda llm: llm.tokenizer.decode([5], clean_up_tokenization_spaces=False), TypeError, "texts are decoded as they are"),
        (lambda llm: quire.Llama, AttributeError, r"quire has no 'Llama'; Quire's word is LLM\(model\)"),
        (lambda llm: quire.SamplingParam, AttributeError, r"did you mean SamplingParams\?"),
        (lambda llm: quire.no_such_thing_at_all, AttributeError, "quire has no 'no_such_thing_at_all'$"),
        (lambda llm: llm.generate("Ada", use_tqdm=False), TypeError, "progress="),
        (lambda llm: llm.generate(prompt_token_ids=[5]), TypeError, "prompt"),
        (lambda llm: llm.generate({"prompt": "a", "multi_modal_data": {}}), ValueError, "not dict"),
    ],
)
def test_a_habit_is_answered_with_quires_word(llm, use, error, word):
    with pytest.raises(error, match=word):
        use(llm)


def test_harmless_habits_work(llm):
    greedy = {"temperature": 0, "max_tokens": 2}
    wanted = llm.generate([5, 6], greedy)
    assert llm.generate({"prompt_token_ids": [5, 6]}, greedy).token_ids == wanted.token_ids
    both = llm.generate([{"prompt_token_ids": [5, 6]}, "Ada"], greedy)
    assert llm.generate({"prompt": "Ada"}, greedy).token_ids == llm.generate("Ada", greedy).token_ids
    assert [out.token_ids for out in both] == [wanted.token_ids, llm.generate("Ada", greedy).token_ids]
    assert quire.SamplingParams(top_k=-1) == quire.SamplingParams() and quire.SamplingParams(top_k=-1).top_k == 0
    assert llm.generate([]) == [] and llm.generate((), [{}]) == []
    with pytest.raises(ValueError, match="top_k"):
        quire.SamplingParams(top_k=-2)


def test_both_names_of_the_first_argument_work_in_both_classes():
    for opens in (quire.LLM, quire.ChunkedLLM):
        for named in ({"model": MODEL}, {"model_path": str(MODEL)}):
            with opens(**named, threads=1, kv_budget="2M") as llm:
                assert llm.stats()["blocks_total"] == 2**21 // (32 * 4096)
        with pytest.raises(TypeError, match="give a model: a folder"):
            opens()
        with pytest.raises(TypeError, match="one model, not model and model_path"):
            opens(MODEL, model_path=MODEL)


def test_a_registry_over_an_open_llm_leaves_it_open():
    with quire.LLM(MODEL, threads=1) as llm:
        with quire.ChunkedLLM(llm) as chunked:
            chunk = chunked.register_chunk("Card 4. Ada keeps a goose.", "context")
            assert chunked.generate("Ada", max_tokens=1, temperature=0).token_ids and "ChunkedLLM" in repr(chunked)
        for call in (chunked.list_chunks, chunked.stats, lambda: chunked.generate("Ada")):
            with pytest.raises(quire.ClosedError, match="the LLM that it was made over is not"):
                call()
        assert llm.generate("Ada", max_tokens=1).token_ids
        assert quire.ChunkedLLM(llm).get_chunk(chunk).content == "Card 4. Ada keeps a goose."
        for option in ({"max_chunks": 5}, {"threads": 2}, {"salt": "a"}):
            with pytest.raises(ValueError, match=rf"{next(iter(option))} cannot be given over an open LLM.*ChunkedLLM\(path, "):
                quire.ChunkedLLM(llm, **option)
    with pytest.raises(quire.ClosedError):
        quire.ChunkedLLM(llm).list_chunks()


def hub_cache(folder, name="owner/tiny-model", revision="main", commit="0123abc"):
    """Makes a Hugging Face cache that has the demo model under a name."""
    repository = folder / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True, exist_ok=True)
    for file in CONFIG_FILES:
        if (MODEL / file).exists():
            os.symlink(MODEL / file, snapshot / file)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / revision).write_text(commit)
    return snapshot


@pytest.mark.parametrize(
    ("variable", "below"), [("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")]
)
def test_a_hub_name_is_found_in_the_local_cache(tmp_path, monkeypatch, variable, below):
    for other in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    hub_cache(tmp_path / below)
    ids = quire.Tokenizer.open(MODEL).encode("Ada lives in Thornby.")
    for name in ("owner/tiny-model", "owner/tiny-model@main", "owner/tiny-model@0123abc"):
        assert quire.Tokenizer.open(name).encode("Ada lives in Thornby.") == ids
    assert quire.inspect("owner/tiny-model")["family"] == "llama"
    with quire.LLM("owner/tiny-model", threads=1) as llm:
        assert "owner/tiny-model" in repr(llm)
    with pytest.raises(OSError, match=r'no model at "owner/other": no such path, and no model of that name in .*hf download owner/other'):
        quire.LLM("owner/other")
    with pytest.raises(OSError, match="no revision 'v2' of it"):
        quire.LLM("owner/tiny-model@v2")


def test_a_path_goes_before_a_hub_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    os.symlink(MODEL, tmp_path / "owner" / "model")
    assert quire.Tokenizer.open("owner/model").vocab_size == 2048


def test_the_package_shows_its_own_names_alone():
    assert {name for name in dir(quire) if not name.startswith("__")} == {name for name in quire.__all__ if not name.startswith("__")}


def test_a_tokenizer_answers_like_others(llm):
    tokenizer = llm.tokenizer
    texts = ["Ada lives in Thornby.", "Lars"]
    one, several = tokenizer(texts[0]), tokenizer(texts)
    assert one == {"input_ids": tokenizer.encode(texts[0]), "attention_mask": [1] * len(tokenizer.encode(texts[0]))}
    assert several["input_ids"] == [tokenizer.encode(text) for text in texts]
    assert tokenizer.batch_decode(several["input_ids"]) == texts and tokenizer.batch_decode([]) == []
    assert len(tokenizer) == tokenizer.vocab_size == 2048 and tokenizer
    text = "Zürich, 🦆\n"
    assert b"".join(tokenizer.token_bytes(token) for token in tokenizer.encode(text, add_special_tokens=False)) == text.encode()
    with pytest.raises(ValueError, match="99999"):
        tokenizer.token_bytes(99999)


def test_a_bad_parameter_is_a_value_error_and_says_so_in_the_documentation():
    with pytest.raises(ValueError, match="temperature"):
        quire.SamplingParams(temperature=-1)
    assert "ValueError" in quire.SamplingParams.__doc__ and "ValueError" in quire.QuireError.__doc__


def test_a_type_that_is_misspelt_says_which_there_are():
    with pytest.raises(ValueError, match="one of 'system_prompt', 'context', 'query', not 'qury'"):
        quire.ChunkType("qury")
    with pytest.raises(AttributeError, match=r"did you mean QUERY\?"):
        quire.ChunkType.QURY  # noqa: B018
