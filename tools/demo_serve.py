"""The end of `make demo`: starts the server, registers three documents by HTTP and asks about them in two orders.

    python3 tools/demo_serve.py build/release/apps/cli/quire MODEL CONTEXT.jsonl

The first line of CONTEXT.jsonl has the texts (models/cardfile/cardfile.py). Standard library only.
"""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

LOAD_SECONDS = 60
QUESTIONS = 2


class Failed(Exception):
    """Says what did not work."""


def post(url, path, body):
    """Returns the answer to a POST, and how many milliseconds it took."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    start = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=LOAD_SECONDS) as response:
            return json.load(response), (time.monotonic() - start) * 1e3
    except urllib.error.HTTPError as refusal:
        raise Failed(f"{path}: {refusal.read().decode()}") from refusal


def wait_until_ready(url, server):
    end = time.monotonic() + LOAD_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/ready", timeout=LOAD_SECONDS).close()
            return
        except urllib.error.HTTPError:  # 503: the model loads
            time.sleep(0.02)
    raise Failed("the server did not load its model")


def three_documents(context):
    """Returns the cards as three documents, and questions that one place answers: their order does not matter."""
    cards = [chunk["text"] for chunk in context["chunks"]]
    third = (len(cards) + 2) // 3
    documents = [" ".join(cards[i * third:(i + 1) * third]) for i in range(3)]
    questions = [each for each in context["questions"] if each["type"] in ("one_hop", "two_hop")]
    return documents, questions[:QUESTIONS]


def register(url, context):
    """Registers system text and documents; returns their ids."""
    documents, _ = three_documents(context)
    system, _ = post(url, "/v1/chunks", {"content": context["system"], "type": "system_prompt"})
    ids = []
    for number, text in enumerate(documents, 1):
        chunk, ms = post(url, "/v1/chunks", {"content": text, "metadata": {"name": f"document {number}"}})
        print(f"POST /v1/chunks           document {number}: {chunk['num_tokens']} tokens, "
              f"{chunk['tokens_computed']} computed in {ms:.0f} ms   {chunk['chunk_id'][:8]}...")
        ids.append(chunk["chunk_id"])
    return system["chunk_id"], ids


def ask(url, system, order, question):
    """Asks over documents in this order; returns the answer, and the milliseconds."""
    parts = [{"type": "chunk", "chunk_id": each} for each in order]
    messages = [{"role": "system", "content": [{"type": "chunk", "chunk_id": system}]},
                {"role": "user", "content": [*parts, {"type": "text", "text": question}]}]
    return post(url, "/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 48})


def ask_in_two_orders(url, system, ids, questions):
    print(f"\n{'POST /v1/chat/completions':52} {'documents':10} {'cached_tokens':>13} {'prompt':>7} {'ms':>7}  answer")
    right = True
    for each in questions:
        for name, order in (("1 2 3", ids), ("3 1 2", [ids[2], *ids[:2]])):
            answer, ms = ask(url, system, order, each["question"])
            text, usage = answer["choices"][0]["message"]["content"].strip(), answer["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            good = text == each["answer"]
            right = right and good
            print(f"{each['question']:52} {name:10} {cached:13} {usage['prompt_tokens']:7} {ms:7.1f}  "
                  f"{text}{'' if good else ' (wrong: ' + each['answer'] + ')'}")
    return right


def show(server, url, context):
    wait_until_ready(url, server)
    system, ids = register(url, context)
    return ask_in_two_orders(url, system, ids, three_documents(context)[1])


def main(binary, model, path):
    with open(path) as file:
        context = json.loads(file.readline())
    command = [binary, "serve", model, "--port", "0"]
    print(f"\n$ {' '.join(command)}")
    server = subprocess.Popen([*command, "--access-log", "off", "--log-level", "error"], stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline().strip()
        if not line.startswith("listening on "):
            raise Failed("the server did not start")
        print(line)
        right = show(server, line.removeprefix("listening on "), context)
        server.send_signal(signal.SIGTERM)
        if server.wait(timeout=LOAD_SECONDS) != 0:
            raise Failed(f"the server ended with status {server.returncode}")
    except Failed as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    finally:
        server.kill()
        server.wait()
    print(f"\nGo on: {binary} serve {model}, then point any OpenAI client to http://127.0.0.1:8000/v1.\n"
          "docs/serving.md shows clients and chunks, docs/serve.md keys, limits and metrics.")
    return 0 if right else 1


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: demo_serve.py QUIRE MODEL CONTEXT.jsonl")
    sys.exit(main(*sys.argv[1:]))
