"""Every Python block of the document that asked for direct inference (data/document_003.md) runs as it is written.

The test fills in what the document leaves open: its package is `quire`, and `(...)` stands for the arguments of the
call before it.
"""
import pathlib

import pytest
import quire
from documents import python_blocks

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = pathlib.Path(__file__).parent / "data" / "document_003.md"
SYSTEM = "You are the keeper of a card file. Answer from the cards."
CARD = "Card 7. Ada trades in apples."
QUESTION, ANSWER = "<q> What does Ada trade in?<a>", " apples."
ARGUMENTS = "existing_blocks=blocks, existing_token_count=token_count, new_tokens=new_tokens, sampling_params=params"
VIRTUAL_SEQUENCE, CALLS, HELPERS, *EXAMPLES = python_blocks(
    DOCUMENT, [(r"from nanovllm[.\w]* import", "from quire import"), (r"\(\.\.\.\)", f"({ARGUMENTS})")]
)


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
    going_on, new_input, by_hand = EXAMPLES
    llm, tokenizer = names["llm"], names["tokenizer"]

    exec(going_on, names)
    conversation = names["result"].prompt_token_ids
    assert tokenizer.decode(conversation, skip_special_tokens=False).startswith(QUESTION + ANSWER)
    assert len(conversation) == names["token_count"] == names["result"].usage.cached_tokens + 1

    exec(new_input, names)
    assert names["result"].prompt_token_ids == conversation + tokenizer.encode("Continue this thought: ")
    assert names["result"].usage.cached_tokens == len(conversation)

    exec(by_hand, names)
    assert names["result"].prompt_token_ids == names["tokens"] and len(names["result"].token_ids) > 0
    assert "".join(names["prompt_parts"]) == tokenizer.decode(names["tokens"], skip_special_tokens=False)
    assert llm.stats()["requests_running"] == 0


def test_the_calls_of_its_interface_mean_what_it_says(names, capsys):
    exec(HELPERS, names)  # ends with all active blocks
    names |= {"block_list": names["blocks"], "token_count": names["count"], "new_tokens": names["tokenizer"].encode(QUESTION)}
    exec(VIRTUAL_SEQUENCE, names)
    exec(CALLS, names)
    assert names["result"]["text"] == ANSWER == capsys.readouterr().out
    assert names["llm"].infer(names["seq"]).token_ids == names["result"].token_ids
