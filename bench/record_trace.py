"""Records a trace: runs the server with the demo model, lets clients chat or act as agents, and writes who asked when.

    python bench/record_trace.py chats|agents OUT [--seconds 60] [--sessions 40] [--quire build/release/apps/cli/quire]

The clients are programs: what they say, how long their answers are and how long they pause is drawn from a seed. Prompt lengths, shared beginnings
and moments are those of the server that ran. A line has the seconds since the start, the session, its turn from 0, the tokens that
the prompt shares with the one before it (of a first turn: with those of all sessions), the others, and those of the answer.
"""
import argparse
import json
import os
import pathlib
import random
import threading
import time
import urllib.error
import urllib.request

from serve_load import Served

ROOT = pathlib.Path(__file__).parent.parent
WORDS = "harbour ledger copper river meadow signal garden winter engine letter market bridge lantern forest window valley".split()
TOOLS = ("read_file", "list_files", "search", "run_tests", "write_file", "ask_user")
CHAT_SYSTEM = "You are a helpful clerk. Answer in a sentence or two, from what you know about the cards. " * 4
AGENT_SYSTEM = "You are an agent. Use one tool in each turn. " + " ".join(
    f"The tool {tool} takes a path and returns text; call it with care, and say why before you do." for tool in TOOLS
) * 2


def words(rng, count):
    return " ".join(rng.choice(WORDS) for _ in range(count))


def pause_of(kind, rng):
    """Returns the seconds that a person reads and types, or that a tool runs."""
    return rng.lognormvariate(0.9, 0.7) if kind == "chats" else rng.lognormvariate(-0.7, 0.9)


def turns_of(kind, rng):
    return min(1 + int(rng.expovariate(0.4)), 9) if kind == "chats" else rng.randint(4, 12)


def says(kind, turn, rng):
    """Returns the next message: a question, or a task and then what a tool gave back."""
    if kind == "chats":
        return f"What do you know about the {words(rng, rng.randint(2, 20))}?"
    if turn == 0:
        return f"Your task: find out why the {words(rng, rng.randint(20, 60))} fails."
    return f"{rng.choice(TOOLS)} returned: {words(rng, rng.randint(10, 70))}"


def ask(url, messages, output):
    """Returns the answer, and the ids of the prompt and the length of the answer; None if it was refused."""
    body = {"model": "model", "messages": messages, "max_tokens": output, "temperature": 0.8, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError:  # the conversation is too long for the model
        return None
    text = found["choices"][0]["message"]["content"] or ""
    return text, found["prompt_token_ids"], found["usage"]["completion_tokens"]


class Session(threading.Thread):
    def __init__(self, kind, number, url, start, begin):
        super().__init__()
        self.kind, self.url, self.start_at, self.begin = kind, url, start, begin
        self.rng = random.Random(f"{kind} {number}")
        self.asked = []  # (seconds, prompt ids, answer's tokens)

    def run(self):
        time.sleep(max(self.start_at + self.begin - time.monotonic(), 0))
        messages = [{"role": "system", "content": CHAT_SYSTEM if self.kind == "chats" else AGENT_SYSTEM}]
        for turn in range(turns_of(self.kind, self.rng)):
            messages.append({"role": "user", "content": says(self.kind, turn, self.rng)})
            moment = time.monotonic() - self.start_at
            answer = ask(self.url, messages, self.rng.randint(8, 60))
            if answer is None:
                return
            text, ids, tokens = answer
            self.asked.append((moment, ids, tokens))
            messages.append({"role": "assistant", "content": text})
            time.sleep(pause_of(self.kind, self.rng))


def shared(a, b):
    """Counts the tokens with which both begin."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def lines_of(sessions):
    firsts = [session.asked[0][1] for session in sessions if session.asked]
    root = min(shared(firsts[0], each) for each in firsts[1:])
    lines = []
    for number, session in enumerate(session for session in sessions if session.asked):
        before = None
        for turn, (moment, ids, tokens) in enumerate(session.asked):
            kept = root if before is None else shared(before, ids)
            lines.append((moment, number, turn, kept, len(ids) - kept, tokens))
            before = ids
    return sorted(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=("chats", "agents"))
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--quire", default=ROOT / "build/release/apps/cli/quire")
    options = parser.parse_args()
    rng = random.Random(options.kind)
    command = [options.quire, "serve", ROOT / "models/cardfile/model", "--port", "0", "--threads", "1"]
    with Served(command) as server:
        start = time.monotonic() + 0.5
        begins = sorted(rng.uniform(0, options.seconds) for _ in range(options.sessions))
        sessions = [Session(options.kind, i, server.url, start, begin) for i, begin in enumerate(begins)]
        for session in sessions:
            session.start()
        for session in sessions:
            session.join()
    lines = lines_of(sessions)
    head = (
        f"# {options.kind}: {len(lines)} requests of {options.sessions} programmed clients to `quire serve` with the demo model,"
        f" recorded by bench/record_trace.py on {time.strftime('%Y-%m-%d')}.",
        "# seconds session turn kept fresh output",
    )
    options.out.write_text("\n".join([*head, *(f"{m:.3f} {s} {t} {k} {f} {o}" for m, s, t, k, f, o in lines)]) + "\n")
    print(f"{options.out}: {len(lines)} requests, {os.path.getsize(options.out)} bytes")


if __name__ == "__main__":
    main()
