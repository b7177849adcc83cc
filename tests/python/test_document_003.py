"""The usage examples of the document that asked for direct inference (data/document_003.md) run as they are written."""
import pathlib
import re

import pytest
import quire

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = pathlib.Path(__file__).parent / "data" / "document_003.md"
SYSTEM = "You are the keeper of a card file. Answer from the cards."
CARD = "Card 7. Ada trades in apples."
QUESTION, ANSWER = "<q> What does Ada trade in?<a>", " apples."


@pytest.fixture
def names():
    with quire.LLM(ROOT / "models" / "cardfile" / "model", threads=2) as llm:
        params = quire.SamplingParams(temperature=0)
        context_mgr = quire.ContextManager(llm)
        context_mgr.add(SYSTEM, kind="system")
        context_mgr.add(CARD)
        assert context_mgr.infer("What does Ada trade in?", params).text == ANSWER
        yield {"llm": llm, "tokenizer": llm.tokenizer, "params": params, "context_mgr": context_mgr}


def test_the_usage_examples_run_one_after_the_other(names):
    going_on, new_input, by_hand = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    llm, tokenizer = names["llm"], names["tokenizer"]

    exec(compile(going_on, f"{DOCUMENT} (1)", "exec"), names)
    conversation = names["result"].prompt_token_ids
    assert tokenizer.decode(conversation, skip_special_tokens=False).startswith(QUESTION + ANSWER)
    assert len(conversation) == names["token_count"] == names["result"].usage.cached_tokens + 1

    exec(compile(new_input, f"{DOCUMENT} (2)", "exec"), names)
    assert names["result"].prompt_token_ids == conversation + tokenizer.encode("Continue this thought: ")
    assert names["result"].usage.cached_tokens == len(conversation)

    exec(compile(by_hand, f"{DOCUMENT} (3)", "exec"), names)
    assert names["result"].prompt_token_ids == names["tokens"] and len(names["result"].token_ids) > 0
    assert "".join(names["prompt_parts"]) == tokenizer.decode(names["tokens"], skip_special_tokens=False)
    assert llm.stats()["requests_running"] == 0


def test_the_calls_of_its_interface_mean_what_it_says(names):
    llm, params, context_mgr = names["llm"], names["params"], names["context_mgr"]
    blocks, count = context_mgr.get_all_active_blocks()
    new_tokens = names["tokenizer"].encode(QUESTION)
    result = llm.infer_from_blocks(existing_blocks=blocks, existing_token_count=count, new_tokens=new_tokens, sampling_params=params)
    seq = quire.VirtualSequence(
        token_ids=new_tokens, sampling_params=params, existing_blocks=blocks, existing_token_count=count
    )
    assert llm.infer(seq).token_ids == result.token_ids and result["text"] == ANSWER
    printed = "".join(
        token_data["token"]
        for token_data in llm.infer_from_blocks_stream(
            existing_blocks=blocks, existing_token_count=count, new_tokens=new_tokens, sampling_params=params
        )
    )
    assert printed == result.text
