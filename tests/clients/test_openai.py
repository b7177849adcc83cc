"""The `openai` client against the server: chats, completions, models, streams, errors and what is retried."""
import asyncio

import httpx
import openai
import pytest
from conftest import ANSWER, GRETA, KEEPER, QUESTION, asked
from serve import serving

GREEDY = {"model": "cardfile", "temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def client(base_url):
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=2) as made:
        yield made


@pytest.fixture
def counting(base_url):
    """Yields a client that retries, and the list of the requests that it has sent."""
    sent = []
    transport = httpx.Client(event_hooks={"request": [sent.append]})
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=2, http_client=transport) as made:
        yield made, sent


def text_of(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_a_chat_is_answered_from_the_cards(client):
    answer = client.chat.completions.create(messages=asked(), **GREEDY)
    choice = answer.choices[0]
    assert choice.message.content.strip() == ANSWER
    assert (choice.message.role, choice.message.refusal, choice.finish_reason) == ("assistant", None, "stop")
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-") and answer.model == "cardfile"
    assert answer.system_fingerprint.startswith("bq-") and answer.service_tier == "default"


def test_usage_adds_up_and_a_second_call_finds_its_prompt(client):
    messages = asked(cards=[f"Card {n}. Harah lives in Eastmarch." for n in range(20, 40)])
    usages = [client.chat.completions.create(messages=messages, **GREEDY).usage for _ in range(2)]
    for usage in usages:
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usages[0].prompt_tokens == usages[1].prompt_tokens
    assert usages[1].prompt_tokens_details.cached_tokens > usages[0].prompt_tokens_details.cached_tokens
    assert usages[1].prompt_tokens_details.cached_tokens >= usages[1].prompt_tokens - 64


def test_quire_tells_where_the_prompt_came_from(client):
    answer = client.chat.completions.create(messages=asked(), extra_body={"quire": {"explain": True}}, **GREEDY)
    told = answer.model_extra["quire"]
    assert told["grade"] == "exact" and told["cached_tokens"] == answer.usage.prompt_tokens_details.cached_tokens
    assert sum(part["tokens"] for part in told["parts"]) == answer.usage.prompt_tokens
    assert told["cached_tokens"] + told["computed_tokens"] == answer.usage.prompt_tokens
    assert answer.model_extra["timings"]["predicted_n"] == answer.usage.completion_tokens


def test_a_stream_gives_the_text_of_the_whole_answer(client):
    whole = client.chat.completions.create(messages=asked(), **GREEDY)
    chunks = list(client.chat.completions.create(messages=asked(), stream=True, stream_options={"include_usage": True}, **GREEDY))
    assert text_of(chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].model_extra["quire"]["grade"] == "exact"


def test_the_stream_helper_of_the_client_builds_the_completion(client):
    with client.chat.completions.stream(messages=asked(), **GREEDY) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("content.done") == 1 and final.choices[0].message.content.strip() == ANSWER


def test_logprobs_spell_the_text(client):
    answer = client.chat.completions.create(messages=asked(), logprobs=True, top_logprobs=3, **GREEDY)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert bytes(byte for entry in entries for byte in entry.bytes).decode() == answer.choices[0].message.content
    for entry in entries:
        tops = [top.logprob for top in entry.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True)
        assert entry.logprob == tops[0] <= 0  # greedy takes the likeliest


def test_a_stop_string_ends_the_text_before_it(client):
    answer = client.chat.completions.create(messages=asked(), stop=["ley"], **GREEDY)
    choice = answer.choices[0]
    assert choice.message.content.strip() == "Fox" and choice.finish_reason == "stop"
    assert choice.model_extra["stop_reason"] == "ley"


def test_a_limit_ends_the_text_and_says_so(client):
    answer = client.chat.completions.create(messages=asked(), model="cardfile", max_completion_tokens=1)
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 1


def test_a_seed_decides_each_of_n_choices(client):
    sampled = {"model": "cardfile", "messages": asked("Read card 7."), "temperature": 1.5, "max_tokens": 12}
    together = client.chat.completions.create(n=3, seed=40, **sampled)
    assert [choice.index for choice in together.choices] == [0, 1, 2]
    alone = [client.chat.completions.create(seed=40 + i, **sampled).choices[0].message.content for i in range(3)]
    assert [choice.message.content for choice in together.choices] == alone
    assert together.usage.prompt_tokens < 3 * 20 + 100  # counted once


def test_fields_beyond_openai_go_through_extra_body(client):
    sampled = client.chat.completions.create(messages=asked(), model="cardfile", max_tokens=24, temperature=2,
                                             extra_body={"top_k": 1, "min_p": 0.0, "return_token_ids": True})
    greedy = client.chat.completions.create(messages=asked(), extra_body={"return_token_ids": True}, **GREEDY)
    ids = [answer.choices[0].model_extra["token_ids"] for answer in (sampled, greedy)]
    assert ids[0] == ids[1] and len(ids[1]) == greedy.usage.completion_tokens
    assert len(greedy.model_extra["prompt_token_ids"]) == greedy.usage.prompt_tokens


def test_completions_take_texts_ids_and_many_at_once(client):
    ask = {"model": "cardfile", "temperature": 0, "max_tokens": 4}
    one = client.completions.create(prompt="Card 7. Ada", **ask)
    assert one.object == "text_completion" and one.choices[0].text
    many = client.completions.create(prompt=["Card 7. Ada", "Card 9. Lars"], n=2, **ask)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == many.choices[1].text == one.choices[0].text
    ids = client.completions.create(prompt=[20, 30, 40], logprobs=2, **ask)
    logprobs = ids.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == ids.usage.completion_tokens
    assert ids.usage.prompt_tokens == 3
    streamed = client.completions.create(prompt="Card 7. Ada", stream=True, **ask)
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == one.choices[0].text


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["cardfile"]
    model = client.models.retrieve("cardfile")
    assert model.owned_by == "quire" and model.model_extra["max_model_len"] == 2048
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("another")
    assert missing.value.code == "model_not_found"


def test_raw_responses_have_an_id_and_grades_in_headers(client):
    raw = client.chat.completions.with_raw_response.create(
        messages=asked(), extra_headers={"x-request-id": "mine.1"}, **GREEDY)
    assert raw.headers["x-request-id"] == raw.headers["request-id"] == "mine.1"
    assert raw.headers["x-quire-grade"] == "exact" and int(raw.headers["x-quire-cached-tokens"]) >= 0
    assert raw.parse()._request_id == "mine.1"


@pytest.mark.parametrize(("fields", "code", "param"), [
    ({"extra_body": {"nonsense": 1}}, "unknown_parameter", "nonsense"),
    ({"extra_body": {"best_of": 4}}, "unsupported_parameter", "best_of"),
    ({"temperature": 3}, "invalid_value", "temperature"),
    ({"stop": [""]}, "invalid_value", "stop[0]"),
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
     "unsupported_parameter", "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": "apples " * 3000}]}, "context_length_exceeded", "messages"),
])
def test_wrong_requests_are_refused_once_and_by_name(counting, fields, code, param):
    client, sent = counting
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"messages": asked(), **GREEDY, **fields})
    assert (refused.value.code, refused.value.param, refused.value.type) == (code, param, "invalid_request_error")
    assert len(sent) == 1
    if code == "context_length_exceeded":
        assert "maximum context length is 2048 tokens" in str(refused.value)
        assert refused.value.body["n_prompt_tokens"] > refused.value.body["n_ctx"] == 2048


def test_an_endpoint_that_is_not_there_is_tried_once(counting):
    client, sent = counting
    with pytest.raises(openai.APIStatusError) as refused:
        client.embeddings.create(model="cardfile", input="apples")
    assert refused.value.status_code == 501 and len(sent) == 1


def test_keys_and_limits_raise_the_exceptions_of_the_client(tmp_path):
    digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"  # of "foo"
    keys = [{"sha256": digest, "tenant": "ada", "role": "user", "limits": {"rpm": 1}}]
    with serving(tmp_path, keys=keys) as server:
        ask = {"base_url": f"{server.url}/v1", "max_retries": 0}
        with openai.OpenAI(api_key="bar", **ask) as stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with openai.OpenAI(api_key="foo", **ask) as known:
            assert known.chat.completions.create(messages=asked(), **GREEDY).choices
            with pytest.raises(openai.RateLimitError) as limited:
                known.chat.completions.create(messages=asked(), **GREEDY)
            assert limited.value.code == "rate_limited"
            assert 1 <= int(limited.value.response.headers["retry-after"]) <= 60


def test_async_streams_run_beside_each_other(base_url):
    async def ask(client, question):
        stream = await client.chat.completions.create(messages=asked(question, [GRETA]), stream=True, **GREEDY)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
            questions = ["Where does Greta live?", "What does Greta keep?"] * 4
            return await asyncio.gather(*(ask(client, question) for question in questions))

    answers = [answer.strip() for answer in asyncio.run(ask_all())]
    assert answers[0] == "Elmford." and answers == answers[:2] * 4


def test_a_conversation_reuses_its_own_answer(client):
    messages = asked()
    first = client.chat.completions.create(messages=messages, **GREEDY)
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": QUESTION}]
    again = client.chat.completions.create(messages=messages, **GREEDY)
    assert again.usage.prompt_tokens > first.usage.prompt_tokens and KEEPER
