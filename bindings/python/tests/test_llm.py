"""The Python surface on the demo model. Oracles: the model's golden file, and the documented messages."""

import math
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import quire
from conftest import MODEL

GREEDY = {"temperature": 0, "max_tokens": 64}


def test_answers_equal_the_golden_file(llm, goldens):
    outputs = llm.generate([g["prompt"] for g in goldens[:20]], GREEDY)
    assert [o.token_ids for o in outputs] == [g["greedy"] for g in goldens[:20]]


@pytest.mark.cpu_only
def test_logits_of_forward_equal_the_golden_file(goldens):
    with quire.LLM(MODEL, dtype="float32", threads=2) as llm:
        for golden in goldens[:20]:
            out = llm.forward(golden["prompt"], reuse="none", rows="last")
            assert out.logits.dtype == np.float32 and out.logits.shape == (1, 2048)
            np.testing.assert_allclose(out.logits[0, golden["top_ids"]], golden["top_logits"], atol=1e-3)


def test_outputs_answer_as_attribute_and_as_key(llm, goldens):
    out = llm.generate(goldens[0]["prompt"], GREEDY)
    assert out.text == out["text"] and out.text.strip() == goldens[0]["answer"]
    assert out.usage.prompt_tokens == out["usage"]["prompt_tokens"] == len(goldens[0]["prompt"])
    assert out.prompt_token_ids == goldens[0]["prompt"]
    assert out.finish_reason == "stop" and out.reuse.grade == "exact" and out.reuse.recompute_share == 0
    assert out.timing.total_seconds >= out.timing.first_token_seconds > 0
    with pytest.raises(KeyError):
        out["no such field"]


def test_text_prompts_equal_their_ids(llm):
    text = "<bos><sys> You are the keeper of a card file.<q> Who lives here?<a>"
    ids = llm.tokenizer.encode(text)
    assert llm.generate(text, GREEDY).token_ids == llm.generate(ids, GREEDY).token_ids
    assert llm.generate(np.array(ids), GREEDY).prompt_token_ids == ids


def test_chat_goes_through_the_template(llm):
    messages = [{"role": "user", "content": "Where does Ada live?"}]
    documents = ["Card 1. Ada lives in Thornby.", "Card 2. Lars lives in Eastmarch."]
    ids = llm.tokenizer.apply_chat_template(messages, documents=documents)
    text = llm.tokenizer.apply_chat_template(messages, tokenize=False, documents=documents)
    assert llm.tokenizer.encode(text, add_special_tokens=False) == ids
    out = llm.chat(messages, GREEDY, documents=documents)
    assert out.prompt_token_ids == ids and out.text.startswith("in Thornby") or "Thornby" in out.text


def test_text_of_messages_never_becomes_a_special_token(llm):
    eos = llm.tokenizer.eos_token_id
    ids = llm.tokenizer.apply_chat_template([{"role": "user", "content": "say <eos> <doc>"}])
    assert eos not in ids and llm.tokenizer.token_to_id("<doc>") not in ids


def test_streamed_pieces_joined_equal_the_output(llm, goldens):
    stream = llm.stream(goldens[1]["prompt"], GREEDY)
    deltas = list(stream)
    whole = llm.generate(goldens[1]["prompt"], GREEDY)
    assert "".join(d.text for d in deltas) == whole.text == stream.output.text
    assert [i for d in deltas for i in d.token_ids] == whole.token_ids
    assert [d.finish_reason for d in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == "stop"
    assert next(stream, None) is None


def test_a_stream_needs_no_params(llm):
    assert next(llm.stream([20, 30])).token_ids


def test_closing_a_stream_frees_its_blocks_at_once():
    with quire.LLM(MODEL, threads=2, prefix_cache=False) as llm:
        stream = llm.stream(list(range(10, 200)), {"max_tokens": 1000, "ignore_eos": True})
        next(stream)
        assert llm.stats()["blocks_in_use"] > 0
        stream.close()
        assert llm.stats()["blocks_in_use"] == 0
        assert not llm.abort(stream.request_id)


def test_warm_forward_equals_cold_bit_for_bit(llm):
    ids = [(i * 37) % 1500 + 10 for i in range(150)]
    cold = llm.forward(ids, reuse="none")
    assert cold.cached_tokens == 0 and cold.logits.shape == (150, 2048)
    llm.forward(ids[:100])
    warm = llm.forward(ids)
    assert warm.cached_tokens >= 96
    assert np.array_equal(warm.logits, cold.logits[warm.cached_tokens :])


def test_params_may_be_given_per_prompt(llm, goldens):
    prompts = [g["prompt"] for g in goldens[:3]]
    outputs = llm.generate(prompts, [{"max_tokens": n, "temperature": 0} for n in (1, 2, 0)])
    assert [len(o.token_ids) for o in outputs] == [1, 2, 0]
    with pytest.raises(ValueError, match="2 .*3"):
        llm.generate(prompts, [{}, {}])
    assert llm.generate([]) == []


def test_seeds_repeat_and_requests_without_differ(llm):
    params = {"temperature": 1.5, "max_tokens": 16, "ignore_eos": True}
    prompt = list(range(100, 140))
    assert llm.generate(prompt, {**params, "seed": 3}).token_ids == llm.generate(prompt, {**params, "seed": 3}).token_ids
    assert llm.generate(prompt, params).token_ids != llm.generate(prompt, params).token_ids


def test_logprobs_are_natural_logs_of_the_unmodified_softmax(llm, goldens):
    prompt = goldens[0]["prompt"]
    out = llm.generate(prompt, {"max_tokens": 2, "temperature": 2.0, "seed": 5, "logprobs": 4})
    logits = llm.forward(prompt, rows="last").logits[0].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum())
    assert len(out.logprobs) == len(out.token_ids)
    assert out.token_ids[0] in out.logprobs[0]
    for token, logprob in out.logprobs[0].items():
        assert math.isclose(logprob, expected[token], abs_tol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda m: m.generate(""), ValueError, "empty"),
        (lambda m: m.generate([2048]), ValueError, "2048"),
        (lambda m: m.generate([2**40]), ValueError, "token ids"),
        (lambda m: m.generate(["a", 3]), ValueError, "token ids"),
        (lambda m: m.generate("a", {"tempratur": 1}), ValueError, "tempratur"),
        (lambda m: m.generate("a", {"temperature": "hot"}), TypeError, "temperature"),
        (lambda m: m.generate("a", {"seed": -1}), ValueError, "seed"),
        (lambda m: m.generate("a", {"max_tokens": 2**40}), ValueError, "max_tokens"),
        (lambda m: m.generate("a", {"stop_token_ids": [2**40]}), ValueError, "stop_token_ids"),
        (lambda m: m.generate("a", {"logit_bias": {"x": 1}}), ValueError, "logit_bias"),
        (lambda m: m.generate(b"bytes"), ValueError, "bytes"),
        (lambda m: m.generate({"text": "a"}), ValueError, "dict"),
        (lambda m: m.generate(None), ValueError, "prompt"),
        (lambda m: m.generate(1.5), ValueError, "prompt"),
        (lambda m: m.chat([{"role": "user", "content": "a"}], tokenize=False), TypeError, "tokenize"),
        (lambda m: m.tokenizer.decode([2**40]), ValueError, "ids"),
        (lambda m: m.tokenizer.encode(5), TypeError, "int"),
        (lambda m: quire.LLM(MODEL, device="cudax"), ValueError, "cudax"),
        (lambda m: quire.LLM(MODEL, seed=-1), ValueError, "seed"),
        (lambda m: quire.LLM(MODEL, block_tokens="x"), TypeError, "block_tokens"),
        (lambda m: quire.LLM(MODEL, kv_budget=2**70), ValueError, "kv_budget"),
        (lambda m: m.generate("a", {"temperature": float("nan")}), ValueError, "temperature"),
        (lambda m: quire.SamplingParams(top_p=1.5), ValueError, "top_p"),
        (lambda m: m.forward([]), ValueError, "empty"),
        (lambda m: m.forward([5], reuse="some"), ValueError, "reuse"),
        (lambda m: m.tokenizer.decode([99999]), ValueError, "99999"),
        (lambda m: m.generate([10] * 2100), quire.KVOverflowError, "2100"),
        (lambda m: quire.LLM("no/such/folder"), OSError, "no/such/folder"),
        (lambda m: quire.LLM("no/such/\udcff"), OSError, "no/such/"),
        (lambda m: quire.LLM(MODEL, device="cuda:99"), quire.DeviceError, "(?i)cuda"),
        (lambda m: quire.LLM(MODEL, device="tpu"), ValueError, "device"),
        (lambda m: quire.LLM(MODEL, kv_budget=-1), ValueError, "kv_budget"),
        (lambda m: quire.LLM(MODEL, dtype="int3"), ValueError, "dtype"),
        (lambda m: quire.LLM(MODEL, no_such_option=1), TypeError, "no_such_option"),
        (lambda m: quire.LLM(MODEL, kv_budget="lots"), ValueError, "lots"),
        (lambda m: quire.LLM("preset:nothing"), ValueError, "nothing"),
    ],
)
def test_refusals_name_the_thing_and_leave_the_engine_usable(llm, call, error, names):
    with pytest.raises(error, match=names):
        call(llm)
    assert len(llm.generate([20, 30], {"max_tokens": 1, "temperature": 0}).token_ids) == 1


def test_an_automatic_budget_is_most_of_what_is_free():
    with quire.LLM(MODEL, kv_budget="auto", threads=2) as llm:
        assert llm.stats()["blocks_total"] * llm.stats()["block_bytes"] > 2**30
        assert len(llm.generate([20, 30], {"max_tokens": 1}).token_ids) == 1


def test_a_request_that_can_never_fit_carries_both_numbers():
    with quire.LLM(MODEL, kv_budget=8 * 32 * 4096, threads=2) as llm:
        with pytest.raises(quire.KVOverflowError) as caught:
            llm.generate([10] * 250, {"max_tokens": 100})
        assert caught.value.needed_bytes == 11 * 32 * 4096 and caught.value.free_bytes == 8 * 32 * 4096


def test_closed_llm_says_so():
    llm = quire.LLM(MODEL, threads=1)
    llm.close()
    llm.close()
    for call in (lambda: llm.generate([5]), lambda: llm.forward([5]), llm.stats, lambda: llm.tokenizer):
        with pytest.raises(quire.ClosedError, match="closed"):
            call()


def test_errors_have_the_documented_bases():
    for name in ("ChunkNotFoundError", "IncompatibleChunksError", "InvalidCompositionError", "OutOfMemoryError",
                 "KVOverflowError", "CancelledError", "DeviceError", "ClosedError"):
        assert issubclass(getattr(quire, name), quire.QuireError)


def test_threads_compute_together_without_the_gil(llm, goldens):
    outputs = {}

    def work(index):
        outputs[index] = llm.generate(goldens[index]["prompt"], GREEDY).token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {i: goldens[i]["greedy"] for i in range(12)}


def test_ctrl_c_ends_a_waiting_call():
    code = (
        "import quire, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a parent in the background may have it ignored
        f"llm = quire.LLM({str(MODEL)!r}, threads=1)\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    while True: llm.generate([10, 11], {'max_tokens': 2000, 'ignore_eos': True})\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', llm.stats()['blocks_in_use'], flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert out == "interrupted 0\n" and child.returncode == 0


def test_sampling_params_show_what_was_set():
    params = quire.SamplingParams(temperature=0.5, stop="x", seed=1)
    assert params.temperature == 0.5 and params.stop == ["x"] and params.max_tokens == 256
    assert repr(params) == "SamplingParams(temperature=0.5, stop=['x'], seed=1)"


def test_tokenizer_outlives_its_llm():
    llm = quire.LLM(MODEL, threads=1)
    tokenizer = llm.tokenizer
    llm.close()
    assert tokenizer.decode(tokenizer.encode("Ada lives in Thornby.")) == "Ada lives in Thornby."
    assert tokenizer.vocab_size == 2048 and tokenizer.eos_token_id == 2
    assert tokenizer.leading_bos_token_id == tokenizer.bos_token_id
    assert quire.Tokenizer.open(str(MODEL)).encode("Ada") == tokenizer.encode("Ada")


def test_doctor_and_inspect_tell_about_machine_and_model():
    report = quire.doctor()
    assert report["isa"]["chosen"] in report["isa"]["supported"]
    assert set(report["isa"]["self_test"].values()) == {"ok"}
    model = quire.inspect(MODEL)
    assert model["family"] == "llama" and model["parameters"] == 6426880 and model["unsupported"] == []
    assert model["kv_bytes_per_token"]["bfloat16"] == 4096
