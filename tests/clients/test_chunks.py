"""Chunks over HTTP: registered once, asked in changing orders, kept over kill -9, apart by tenant."""
import signal
import subprocess

import httpx
import pytest
from conftest import ADA, ANSWER, GRETA, KEEPER, LARS, QUESTION
from serve import BINARY, MODEL, Server, eventually, serving

DIGESTS = {"foo": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
           "bar": "fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9"}


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def register(http, content, kind="context", status=None, **fields):
    response = http.post("/v1/chunks", json={"content": content, "type": kind, **fields})
    assert response.status_code in ((status,) if status else (200, 201)), response.text
    return response.json()


def part(chunk):
    return {"type": "chunk", "chunk_id": chunk["chunk_id"]}


def ask(http, system, cards, query, **fields):
    last = part(query) if isinstance(query, dict) else {"type": "text", "text": query}
    messages = [{"role": "system", "content": [part(system)]},
                {"role": "user", "content": [*map(part, cards), last]}]
    response = http.post("/v1/chat/completions",
                         json={"model": "cardfile", "messages": messages, "temperature": 0, "max_tokens": 24, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def pile(http):
    system = register(http, KEEPER, "system_prompt")
    return system, [register(http, card) for card in (ADA, LARS, GRETA)]


def test_three_documents_in_two_orders_are_reused_as_the_preview_says(http):
    system, cards = pile(http)
    query = register(http, QUESTION, "query")
    for order in (cards, cards[::-1]):
        preview = http.post("/v1/compositions", json={
            "system_chunk_id": system["chunk_id"], "context_chunk_ids": [card["chunk_id"] for card in order],
            "query_chunk_id": query["chunk_id"]})
        assert preview.status_code == 200, preview.text
        answer = ask(http, system, order, query)
        assert answer["choices"][0]["message"]["content"].strip() == ANSWER
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == preview.json()["tokens_reused"] == answer["quire"]["cached_tokens"]
        assert cached >= sum(card["num_tokens"] for card in cards)
        assert sum(source["tokens"] for source in answer["quire"]["sources"]) == cached


def test_a_text_asks_as_a_query_chunk_does(http):
    system, cards = pile(http)
    text = ask(http, system, cards, QUESTION)
    chunk = ask(http, system, cards, register(http, QUESTION, "query"))
    assert text["choices"][0]["message"]["content"] == chunk["choices"][0]["message"]["content"]
    assert text["quire"]["grade"] == "approximate"


def test_registering_again_computes_nothing(http):
    content = "Card 61. Ivo mends clocks. They live in Plumley."
    first = register(http, content, status=201, metadata={"shelf": "a"})
    again = register(http, content, status=200, metadata={"box": "b"})
    assert first["created"] and first["tokens_computed"] >= first["num_tokens"] > 0
    assert again["chunk_id"] == first["chunk_id"] and not again["created"] and again["tokens_computed"] == 0
    assert again["metadata"] == {"shelf": "a", "box": "b"}


def test_chunks_are_listed_changed_and_deleted(http):
    made = register(http, "Card 62. Juno paints signs. They live in Yewdale.", metadata={"topic": "signs"})
    path = f"/v1/chunks/{made['chunk_id']}"
    listed = http.get("/v1/chunks", params={"metadata": '{"topic":"signs"}'}).json()
    assert [chunk["chunk_id"] for chunk in listed["data"]] == [made["chunk_id"]] and not listed["has_more"]
    assert http.patch(path, json={"pinned": True}).json()["pinned"] is True
    assert http.patch(path, json={"pinned": False}).json()["pinned"] is False
    assert http.get(path, params={"include": "content"}).json()["content"].startswith("Card 62.")
    assert http.delete(path).json() == {"chunk_id": made["chunk_id"], "deleted": True}
    assert http.delete(path).status_code == http.get(path).status_code == 404
    assert http.get(path).json()["error"]["code"] == "chunk_not_found"


def test_a_chunk_at_a_wrong_place_is_refused_with_its_path(http):
    system, cards = pile(http)
    messages = [{"role": "user", "content": [part(cards[0]), {"type": "text", "text": QUESTION}]},
                {"role": "assistant", "content": "Foxley."},
                {"role": "user", "content": [part(cards[1])]}]
    response = http.post("/v1/chat/completions", json={"model": "cardfile", "messages": messages})
    assert response.status_code == 400 and response.json()["error"]["code"] == "invalid_composition"
    assert response.json()["error"]["param"].startswith("messages[")


def test_a_saved_chunk_survives_kill_9_and_costs_no_prefill(tmp_path):
    store = tmp_path / "store"
    server = Server(tmp_path, "--store", store)
    try:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            made = register(http, ADA, status=201)
            path = f"/v1/chunks/{made['chunk_id']}"
            if not made["saved"]:
                assert http.post("/v1/chunks/flush").status_code == 200
                eventually(lambda: http.get(path).json()["saved"])
    finally:
        server.process.send_signal(signal.SIGKILL)
        server.process.communicate(timeout=30)
    with serving(tmp_path, "--store", store) as restarted, httpx.Client(base_url=restarted.url, timeout=60) as http:
        assert http.get(path).json()["saved"] is True
        again = register(http, ADA, status=200)
        assert again["chunk_id"] == made["chunk_id"] and again["tokens_computed"] == 0


def test_a_second_server_on_a_store_works_or_is_refused_by_name(tmp_path):
    store = tmp_path / "store"
    with serving(tmp_path, "--store", store) as first:
        command = [BINARY, "serve", MODEL, "--port", "0", "--store", store]
        second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            url = second.stdout.readline().removeprefix("listening on ").strip()
            answers = lambda: second.poll() is not None or httpx.get(f"{url}/ready").status_code == 200
            eventually(lambda: ready_or_gone(second, answers))
            if second.poll() is None:
                with httpx.Client(base_url=url, timeout=60) as http:
                    assert register(http, LARS)["num_tokens"] > 0
                second.terminate()
                assert second.wait(timeout=30) == 0
            else:
                last = second.stderr.read().strip().splitlines()[-1]
                assert second.returncode == 1 and last.startswith("error: ") and str(store) in last
        finally:
            second.kill()
            second.communicate()
        with httpx.Client(base_url=first.url, timeout=60) as http:
            assert register(http, ADA)["num_tokens"] > 0


def ready_or_gone(process, answers):
    try:
        return answers()
    except httpx.TransportError:
        return process.poll() is not None


def test_tenants_do_not_see_each_others_chunks(tmp_path):
    keys = [{"sha256": digest, "tenant": key, "role": "user"} for key, digest in DIGESTS.items()]
    with serving(tmp_path, keys=keys) as server:
        mine, yours = (httpx.Client(base_url=server.url, timeout=60, headers={"authorization": f"Bearer {key}"}) for key in DIGESTS)
        with mine, yours:
            made = register(mine, ADA, status=201)
            other = register(yours, ADA, status=201)
            assert made["chunk_id"] != other["chunk_id"] and other["tokens_computed"] > 0
            path = f"/v1/chunks/{made['chunk_id']}"
            never = f"/v1/chunks/{'0' * 64}"
            hidden, absent = yours.get(path), yours.get(never)
            assert hidden.status_code == absent.status_code == 404
            assert hidden.text.replace(made["chunk_id"][:12], "0" * 12).replace(made["chunk_id"][12:], "0" * 52) == absent.text
            assert [chunk["chunk_id"] for chunk in yours.get("/v1/chunks").json()["data"]] == [other["chunk_id"]]
            assert yours.get("/metrics").json()["error"]["code"] == "permission_denied"
            assert httpx.get(f"{server.url}/v1/chunks").status_code == 401
