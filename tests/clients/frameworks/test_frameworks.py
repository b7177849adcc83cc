"""litellm, LangChain and LlamaIndex ask the server: answers, streams, usage, chunks by their ids, and errors."""
import json
import urllib.request

import openai
import pytest
from conftest import ADA, ANSWER, KEEPER, LARS, QUESTION, asked

WORDS = asked()


def post(server, path, body):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.fixture(scope="module")
def chunks(server):
    """Registers the system text and two cards, and returns their ids."""
    contents = [(KEEPER, "system_prompt"), (ADA, "context"), (LARS, "context")]
    return [post(server, "/v1/chunks", {"content": content, "type": kind})["chunk_id"] for content, kind in contents]


def test_litellm_answers_streams_and_keeps_usage(base_url):
    import litellm

    where = {"model": "openai/cardfile", "api_base": base_url, "api_key": "none", "temperature": 0, "max_tokens": 24}
    answer = litellm.completion(messages=WORDS, **where)
    assert answer.choices[0].message.content.strip() == ANSWER
    again = litellm.completion(messages=WORDS, **where)
    assert again.usage.prompt_tokens_details.cached_tokens > 0
    pieces = litellm.completion(messages=WORDS, stream=True, **where)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == answer.choices[0].message.content


def test_litellm_raises_what_is_wrong_once(base_url):
    import litellm

    with pytest.raises(litellm.BadRequestError) as refused:
        litellm.completion(model="openai/cardfile", api_base=base_url, api_key="none", messages=WORDS, temperature=3)
    assert "temperature" in str(refused.value)


def test_litellm_serves_as_a_hosted_vllm(base_url):
    import litellm

    answer = litellm.completion(model="hosted_vllm/cardfile", api_base=base_url, api_key="none", messages=WORDS,
                                temperature=0, max_tokens=24)
    assert answer.choices[0].message.content.strip() == ANSWER


@pytest.fixture(scope="module")
def langchain(base_url):
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(base_url=base_url, api_key="none", model="cardfile", temperature=0, max_tokens=24, stream_usage=True)


def test_langchain_answers_and_shows_what_was_cached(langchain):
    words = [(message["role"], message["content"]) for message in WORDS]
    answer, again = (langchain.invoke(words) for _ in range(2))
    assert answer.content.strip() == ANSWER
    assert again.usage_metadata["input_token_details"]["cache_read"] > 0
    assert again.response_metadata["finish_reason"] == "stop"


def test_langchain_streams_the_same_text(langchain):
    words = [(message["role"], message["content"]) for message in WORDS]
    pieces = list(langchain.stream(words))
    assert "".join(piece.text if isinstance(piece.text, str) else piece.text() for piece in pieces).strip() == ANSWER


def test_langchain_asks_over_chunks_by_their_ids(base_url, chunks):
    from langchain_openai import ChatOpenAI

    system, *cards = chunks
    for order in (cards, cards[::-1]):
        extra = {"quire": {"chunks": {"system": system, "contexts": order}}}
        asker = ChatOpenAI(base_url=base_url, api_key="none", model="cardfile", temperature=0, max_tokens=24, extra_body=extra)
        answer = asker.invoke(QUESTION)
        assert answer.content.strip() == ANSWER and answer.usage_metadata["input_token_details"]["cache_read"] > 0


def test_langchain_runs_a_batch(langchain):
    answers = langchain.batch([[(m["role"], m["content"]) for m in asked(q)] for q in (QUESTION, "What does Ada trade in?")])
    assert [answer.content.strip() for answer in answers] == [ANSWER, "apples."]


@pytest.fixture(scope="module")
def llama_index(base_url):
    from llama_index.llms.openai_like import OpenAILike

    return OpenAILike(model="cardfile", api_base=base_url, api_key="none", is_chat_model=True, context_window=2048,
                      temperature=0, max_tokens=24)


def test_llama_index_answers_and_streams(llama_index):
    from llama_index.core.llms import ChatMessage

    words = [ChatMessage(role=message["role"], content=message["content"]) for message in WORDS]
    answer = llama_index.chat(words)
    assert answer.message.content.strip() == ANSWER
    assert "".join(piece.delta for piece in llama_index.stream_chat(words)) == answer.message.content


def test_llama_index_completes_a_text(base_url):
    from llama_index.llms.openai_like import OpenAILike

    plain = OpenAILike(model="cardfile", api_base=base_url, api_key="none", is_chat_model=False, temperature=0, max_tokens=4)
    assert plain.complete("Card 7. Ada").text


def test_the_client_of_the_frameworks_raises_its_exceptions(base_url):
    with openai.OpenAI(base_url=base_url, api_key="none") as client, pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=WORDS)
