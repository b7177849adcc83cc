"""Bytes on the wire, seen by httpx: server-sent events, aborts, many streams, methods and media types."""
import concurrent.futures
import json

import httpx
import pytest
from conftest import ANSWER, QUESTION, asked
from serve import eventually

STREAM = {"model": "cardfile", "messages": asked(), "temperature": 0, "max_tokens": 24, "stream": True}
LONG = {**STREAM, "max_tokens": 1500, "ignore_eos": True}


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def gauge(http, name):
    for line in http.get("/metrics").text.splitlines():
        if line.startswith(name) and line[len(name)] in "{ ":
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no {name}")


def aborted(http):
    return gauge(http, 'quire_requests_aborted_total{reason="client_gone"}')


def quiet(http):
    return gauge(http, "vllm:num_requests_running") + gauge(http, "vllm:num_requests_waiting") == 0


def test_events_are_framed_and_end_with_done(http):
    with http.stream("POST", "/v1/chat/completions", json=STREAM) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no" and response.headers["cache-control"] == "no-store"
        body = response.read().decode()
    events = body.split("\n\n")
    assert events.pop() == "" and events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])
    assert text.strip() == ANSWER and "quire" in chunks[-1]


def test_a_request_that_is_refused_keeps_its_status_although_it_wants_a_stream(http):
    response = http.post("/v1/chat/completions", json={**STREAM, "model": "another"})
    assert response.status_code == 404 and response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"} and error["code"] == "model_not_found"


def test_a_client_that_goes_ends_its_request(http):
    before = aborted(http)
    with http.stream("POST", "/v1/chat/completions", json=LONG) as response:
        next(response.iter_lines())
    eventually(lambda: aborted(http) == before + 1)
    eventually(lambda: quiet(http))


def test_a_client_that_goes_without_a_stream_ends_its_request(server, http):
    before = aborted(http)
    with httpx.Client(base_url=server.url) as leaving, pytest.raises(httpx.ReadTimeout):
        leaving.post("/v1/chat/completions", json={**LONG, "stream": False, "n": 8}, timeout=0.2)
    eventually(lambda: aborted(http) == before + 1)
    eventually(lambda: quiet(http))


def test_thirty_two_streams_give_what_each_gives_alone(server, http):
    def ask(client, seed):
        body = {"model": "cardfile", "prompt": "Card 7. Ada", "temperature": 1.5, "seed": seed % 8, "max_tokens": 40,
                "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = [line for line in response.iter_lines() if line.startswith("data: {")]
        return "".join(choice["text"] for line in lines for choice in json.loads(line[6:])["choices"])

    alone = [ask(http, seed) for seed in range(8)]
    assert len(set(alone)) > 1
    with (httpx.Client(base_url=server.url, timeout=60) as many,
          concurrent.futures.ThreadPoolExecutor(32) as pool):
        together = list(pool.map(lambda seed: ask(many, seed), range(32)))
    assert together == alone * 4
    eventually(lambda: quiet(http))


def test_requests_of_one_connection_leave_nothing_behind(server, http):
    http.post("/v1/chat/completions", json={**STREAM, "stream": False})
    eventually(lambda: quiet(http))
    files, threads = server.open_files(), server.threads()
    for _ in range(20):
        with httpx.Client(base_url=server.url) as client:
            assert client.get("/health").json() == {"status": "ok"}
    eventually(lambda: server.open_files() <= files)
    assert server.threads() == threads


def test_methods_paths_and_media_types_are_refused_by_name(http):
    wrong = http.get("/v1/chat/completions")
    assert wrong.status_code == 405 and "POST" in wrong.headers["allow"] and wrong.json()["error"]["code"] == "method_not_allowed"
    assert http.get("/v1/nothing").json()["error"]["code"] == "not_found"
    assert http.post("/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    assert http.head("/v1/models").status_code == 200 and http.head("/v1/models").content == b""
    twice = http.post("/v1/chat/completions", content=b'{"model":"a","model":"b"}', headers={"content-type": "application/json"})
    assert (twice.status_code, twice.json()["error"]["code"], twice.json()["error"]["param"]) == (400, "invalid_json", "model")


def test_foreign_hosts_and_origins_are_refused_on_loopback(http):
    assert http.get("/v1/models", headers={"host": "evil.example"}).json()["error"]["code"] == "host_not_allowed"
    foreign = http.post("/v1/chat/completions", json=STREAM, headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403 and foreign.json()["error"]["code"] == "origin_not_allowed"
    assert not [name for name in foreign.headers if name.startswith("access-control")]


def test_counts_agree_over_the_endpoints_that_count(http):
    messages = asked()
    chat = http.post("/v1/chat/completions", json={**STREAM, "stream": False, "return_token_ids": True}).json()
    tokens = http.post("/tokenize", json={"messages": messages}).json()
    assert tokens["tokens"] == chat["prompt_token_ids"] and tokens["count"] == chat["usage"]["prompt_tokens"]
    explained = http.post("/v1/explain", json={"messages": messages}).json()
    assert explained["tokens"] == tokens["count"]
    native = http.post("/v1/generate", json={"messages": messages, "sampling": {"temperature": 0, "max_tokens": 24}}).json()
    assert native["token_ids"] == chat["choices"][0]["token_ids"] and native["text"] == chat["choices"][0]["message"]["content"]
    assert http.post("/detokenize", json={"tokens": native["prompt_token_ids"]}).json()["content"].count(QUESTION) == 1
