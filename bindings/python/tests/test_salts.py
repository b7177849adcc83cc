"""Salts of LLM: tenants share no cached prefix. What holds in the library: src/quire/api/salt_test.cc."""

import pytest

import quire
from conftest import MODEL, some_ids

ONE = {"temperature": 0, "max_tokens": 1}
PROMPT = some_ids(81, 4)


@pytest.fixture
def llm():
    with quire.LLM(MODEL, threads=2, block_tokens=8) as opened:
        yield opened


def cached(llm, salt, prompt=PROMPT):
    part = llm.explain(prompt, salt=salt)[0]
    return part.tokens if part.hit else 0


def test_a_prefix_is_reused_within_its_salt_and_not_beyond(llm):
    outputs = llm.generate([PROMPT, PROMPT], ONE, salt=["ada", "bob"])
    assert [output.usage.cached_tokens for output in outputs] == [0, 0]
    assert outputs[0].token_ids == outputs[1].token_ids
    assert llm.generate(PROMPT, ONE).usage.cached_tokens == 0
    assert llm.generate(PROMPT, ONE, salt="ada", session="s").usage.cached_tokens == 80
    assert llm.explain(PROMPT, salt="cleo")[0].reason == "never seen with this salt; another has it"


def test_every_call_takes_one(llm, tmp_path):
    list(llm.stream(PROMPT, ONE, salt="stream"))
    llm.forward(PROMPT, rows="last", salt="forward")
    sequence = llm.sequence(PROMPT, salt="sequence")
    sequence.save(tmp_path / "a.qkv")
    llm.load_sequence(tmp_path / "a.qkv", salt="loaded").close()
    blocks, count = sequence.blocks()
    assert llm.infer_from_blocks(blocks, count, [5] * 20, ONE, salt="sequence").usage.cached_tokens == 81
    list(llm.infer_from_blocks_stream(None, None, PROMPT, ONE, salt="infer"))
    for salt in ("stream", "forward", "sequence", "loaded", "infer"):
        assert cached(llm, salt) == 80, salt
    assert cached(llm, None) == 0
    question = [{"role": "user", "content": "Where does Ada live, and what does she trade in?"}]
    llm.chat(question, ONE, salt="chat")
    list(llm.stream_chat(question, ONE, salt="chat stream"))
    asked = llm.tokenizer.apply_chat_template(question, tokenize=True)
    assert cached(llm, "chat", asked) == cached(llm, "chat stream", asked) > 0 == cached(llm, None, asked)


def test_that_of_the_chunks_is_that_of_requests_without_one():
    with quire.ChunkedLLM(MODEL, threads=2, block_tokens=8, salt="ada") as chunked:
        chunked.generate(PROMPT, ONE)
        assert cached(chunked, "ada") == cached(chunked, None) == 80 and cached(chunked, "bob") == 0
        assert chunked.generate(PROMPT, ONE, salt="bob").usage.cached_tokens == 0
        chunked.sequence(PROMPT[:40], salt="cleo")
        assert cached(chunked, "cleo") == 32
        with pytest.raises(TypeError, match="chunks have the salt that the LLM was opened with"):
            chunked.explain(query_chunk_id="0" * 64, without_system=True, salt="bob")
        with pytest.raises(ValueError, match="chunks have the salt that the LLM was opened with"):
            chunked.generate(query=PROMPT, without_system=True, salt="bob")


def test_others_are_refused_by_name(llm):
    sequence = llm.sequence(PROMPT, salt="ada")
    with pytest.raises(ValueError, match="another salt"):
        llm.sequence([5], blocks=sequence.blocks()[0], salt="bob")
    for salt, error, message in (
        ("", ValueError, "salt must have 1 to 1024 bytes"),
        ("s" * 1025, ValueError, "salt must have at most 1024 bytes, not 1025"),
        (5, TypeError, "salt must be a str"),
    ):
        with pytest.raises(error, match=message):
            llm.generate(PROMPT, ONE, salt=salt)
    with pytest.raises(ValueError, match="2 sessions and 3 salts"):
        llm.generate([PROMPT] * 3, ONE, session=["a", "b"], salt=["a", "b", "c"])
