"""Members of an output beside its text (stopped_by, parts, outputs), and what an LLM tells while it works."""

import asyncio
import json
import logging
import pickle

import pytest
from conftest import MODEL, computed, some_ids

import quire

QUESTION = [{"role": "user", "content": "Where does Ada live?"}]


@pytest.fixture(scope="module")
def llm():
    with quire.ChunkedLLM(MODEL, kv_budget="64MiB") as opened:
        yield opened


def test_stopped_by_is_eos_length_the_id_or_the_string(llm):
    whole = llm.chat(QUESTION, temperature=0)
    assert whole.finish_reason == "stop" and whole.stopped_by == "eos"
    assert llm.chat(QUESTION, temperature=0, max_tokens=1).stopped_by == "length"
    assert llm.chat(QUESTION, temperature=0, stop_token_ids=[whole.token_ids[1]]).stopped_by == whole.token_ids[1]
    stop = whole.text[1:3]
    assert llm.chat(QUESTION, temperature=0, stop=["~~", stop]).stopped_by == stop


def test_stopped_by_of_an_aborted_request_is_none(llm):
    stream = llm.stream(some_ids(10), max_tokens=500, ignore_eos=True)
    next(stream)
    llm.abort(stream.request_id)
    for _ in stream:
        pass
    assert stream.output.finish_reason == "cancelled" and stream.output.stopped_by is None


def test_parts_are_what_explain_said_before(llm):
    prompt = some_ids(150, 7)
    for salt in (None, None, "ada", "ada"):
        expected = llm.explain(prompt, salt=salt)
        out = llm.generate(prompt, max_tokens=1, salt=salt, explain=True)
        assert out.parts == expected and out.parts[-1].reason
    assert llm.generate(prompt, max_tokens=1).parts is None
    stream = llm.stream(prompt, max_tokens=1, explain=True)
    list(stream)
    assert [part.hit for part in stream.output.parts] == [True, False]
    assert llm.chat(QUESTION, max_tokens=1, explain=True).parts
    assert [out.parts is not None for out in llm.generate([[5, 6], [7]], max_tokens=1, explain=True)] == [True, True]


def test_parts_of_a_composition_are_what_explain_said_before(llm):
    for salt in (None, "ada"):
        ids = {
            "system_chunk_id": llm.register_chunk("Answer.", "system_prompt", salt=salt),
            "context_chunk_ids": [llm.register_chunk("Ada lives in Foxley.", "context", salt=salt)],
            "query_chunk_id": llm.register_chunk("Where?", "query", salt=salt),
        }
        for mode in ("anchored", "independent"):
            expected = llm.explain(**ids, mode=mode, salt=salt)
            out = llm.generate_from_chunks(**ids, mode=mode, max_tokens=1, salt=salt, explain=True)
            assert out.parts == expected and out.parts[0].chunk_id == ids["system_chunk_id"]
        out = llm.batch_generate_from_chunks([ids], max_tokens=1, salt=salt, explain=True)[0]
        assert [part.hit for part in out.parts] == [True, True, False]
    assert llm.generate(system_prompt="Answer.", query="Where?", max_tokens=1, explain=True).parts


def test_n_outputs_share_one_prefill(llm):
    before, prompt = computed(llm), some_ids(320, 9)
    out = llm.generate(prompt, n=3, seed=4, max_tokens=5, ignore_eos=True)
    assert len(out.outputs) == 3 and out.outputs[0].token_ids == out.token_ids
    assert computed(llm) - before < 320 + 3 * (32 + 5) and out.usage.prompt_tokens == 320
    for i, each in enumerate(out.outputs):
        assert each.token_ids == llm.generate(prompt, seed=4 + i, max_tokens=5, ignore_eos=True).token_ids
    assert pickle.loads(pickle.dumps(out)) == out
    assert len(json.loads(json.dumps(out))["outputs"]) == 3


def test_one_output_is_its_only_choice(llm):
    out = llm.generate([5, 6], max_tokens=2)
    assert out.outputs == [out] and out["outputs"] is None


def test_n_of_other_calls(llm):
    assert len(llm.chat(QUESTION, n=2, max_tokens=2).outputs) == 2
    assert len(llm.generate(system_prompt="Answer.", query="Where?", n=2, max_tokens=2).outputs) == 2
    with pytest.raises(ValueError, match="n is 2"):
        llm.stream([5, 6], n=2)
    for wrong in (0, 17, "2", True):
        with pytest.raises((ValueError, TypeError), match="n"):
            llm.generate([5, 6], n=wrong)


def test_async_calls_explain_and_have_choices(llm):
    async def ask():
        prompt = some_ids(100, 11)
        out = await llm.generate_async(prompt, n=3, seed=4, max_tokens=5, ignore_eos=True, explain=True)
        several = await llm.generate_async([prompt, [5, 6]], [{"n": 2, "max_tokens": 2}, {"max_tokens": 2}])
        chat = await llm.chat_async(QUESTION, n=2, max_tokens=2, explain=True)
        return prompt, out, several, chat

    prompt, out, several, chat = asyncio.run(ask())
    assert [len(each.outputs) for each in (out, *several, chat)] == [3, 2, 1, 2]
    assert out.parts[0].hit is False and chat.parts
    assert out.outputs[2].token_ids == llm.generate(prompt, seed=6, max_tokens=5, ignore_eos=True).token_ids


def test_explain_is_a_flag(llm):
    with pytest.raises(TypeError, match="explain"):
        llm.generate([5, 6], explain="yes")


TEMPLATE = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


@pytest.mark.parametrize("given", ["text", "path", "str"])
def test_a_chat_template_in_place_of_the_models_own(tmp_path, given):
    file = tmp_path / "own.jinja"
    file.write_text(TEMPLATE)
    template = {"text": TEMPLATE, "path": file, "str": str(file)}[given]
    with quire.LLM(MODEL, kv_budget="16MiB", chat_template=template) as own:
        assert own.tokenizer.apply_chat_template(QUESTION, tokenize=False) == "<Where does Ada live?>"
        assert own.chat(QUESTION, max_tokens=1).prompt_token_ids


@pytest.mark.parametrize(
    ("template", "error"), [("{% if %}", ValueError), ("/no/such.jinja", OSError), (5, TypeError), ("", TypeError)]
)
def test_a_chat_template_that_cannot_be_used_is_refused_by_name(template, error):
    with pytest.raises(error, match="chat_template"):
        quire.LLM(MODEL, chat_template=template)


@pytest.mark.parametrize("kind", [quire.LLM, quire.ChunkedLLM])
def test_a_function_hears_of_the_model_that_was_opened(kind):
    heard = []
    kind(MODEL, kv_budget="16MiB", log=lambda level, text: heard.append((level, text))).close()
    assert heard[0][0] == logging.INFO and heard[0][1].startswith("opened ")


def test_a_logger_hears_of_requests_that_do_not_fit(caplog):
    logger = logging.getLogger("test.quire")
    with caplog.at_level(logging.INFO, "test.quire"):
        llm = quire.LLM(MODEL, kv_budget="1MiB", log=logger)
        blocks = llm.stats()["blocks_total"]
        held = llm.sequence(some_ids(32 * (blocks // 2)))
        with pytest.raises(quire.OutOfMemoryError):
            llm.generate(some_ids(32 * (blocks * 3 // 4), 2), max_tokens=1)
        held.close()
        llm.close()
    assert any(record.levelno == logging.ERROR and "does not fit now" in record.message for record in caplog.records)


def test_a_log_that_raises_ends_nothing(capsys):
    def fail(level, text):
        raise RuntimeError("the log failed")

    with quire.LLM(MODEL, kv_budget="16MiB", log=fail) as llm:
        assert llm.generate([5, 6], max_tokens=1)
    assert "the log failed" in capsys.readouterr().err


def test_a_log_is_a_function_or_a_logger():
    with pytest.raises(TypeError, match="log must be"):
        quire.LLM(MODEL, log=True)
