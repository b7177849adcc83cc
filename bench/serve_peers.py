"""Workloads of documents and of chats for `quire serve` and a llama-server with the same GGUF (bench/serve_bench.py)."""
import asyncio
import random
import time

from serve_load import Served, percentile, post, some_ids, stream, wait_until_ready

DOCUMENTS, DOCUMENT_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 8, 512, 32, 8
MOST_FIRST_SECONDS = 2
LEAST_RATE, LEAST_REQUESTS, MOST_REQUESTS, RATE_SECONDS = 0.25, 8, 128, 20  # of the search for the highest rate
USERS, TURNS, SYSTEM_TOKENS, TURN_TOKENS, TURN_ANSWER_TOKENS = 32, 4, 256, 48, 32


class Llama(Served):
    """A llama-server, which does not say where it listens: the port is free when it starts."""

    def __init__(self, options, slots):
        import socket
        import subprocess

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.host, self.url = "127.0.0.1", f"http://127.0.0.1:{self.port}"
        command = [options.llama_server, "-m", options.gguf, "--port", str(self.port), "-c", str(options.context * slots),
                   "-np", str(slots), "--cache-reuse", "256", "-fa", "on"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until_ready(f"{self.url}/health", self.process)


def text_of(server, ids):
    return post(server, "/detokenize", {"tokens": ids})["content"]


def need_peer(options):
    if not options.llama_server or not options.gguf:
        raise options.not_run("no llama-server; --llama-server PROGRAM --gguf FILE")
    options.model = options.gguf


async def poisson(server, bodies, rate):
    """Sends requests at this mean rate. Returns whether the 99th percentile of the first token is in time.

    Ends as soon as it cannot be.
    """
    rng = random.Random(1)
    running, late = [], 0

    async def ask(path, body):
        nonlocal late
        late += (await stream(server, path, body)).first_seconds > MOST_FIRST_SECONDS

    bodies = list(bodies)
    allowed = len(bodies) // 100
    for path, body in bodies:
        running.append(asyncio.ensure_future(ask(path, body)))
        await asyncio.sleep(rng.expovariate(rate))
        if late > allowed:
            break
    while late <= allowed and not all(each.done() for each in running):
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED, timeout=0.1)
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    return late <= allowed


def highest_rate(server, bodies_of):
    """Returns the highest rate at which the first token comes in time: doubled from LEAST_RATE, then in steps of a quarter."""
    best = 0
    for factor in (2, 1.25):
        rate = best * factor or LEAST_RATE
        while rate < 1000 and asyncio.run(poisson(server, bodies_of(rate), rate)):
            best, rate = rate, rate * factor
        if not best:
            break
    return best


def orders(rng, values):
    return rng.sample(values, len(values))


def documents(options):
    """Measures requests a second over documents in changing order, Quire's over llama-server's."""
    need_peer(options)
    ids = [some_ids(DOCUMENT_TOKENS, seed) for seed in range(DOCUMENTS)]

    def requests_at(rate):
        return LEAST_REQUESTS if options.quick else round(min(max(rate * RATE_SECONDS, LEAST_REQUESTS), MOST_REQUESTS))

    def of_quire(server):
        chunks = [post(server, "/v1/chunks", {"content": each})["chunk_id"] for each in ids]

        def bodies(rate):
            rng = random.Random(rate)
            for number in range(requests_at(rate)):
                parts = [{"type": "chunk", "chunk_id": each} for each in orders(rng, chunks)]
                question = {"type": "text", "text": text_of(server, some_ids(QUESTION_TOKENS, 9000 + number))}
                yield "/v1/chat/completions", {"messages": [{"role": "user", "content": [*parts, question]}], "temperature": 0,
                                               "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
        return bodies

    def of_llama(server):
        texts = [text_of(server, each) for each in ids]

        def bodies(rate):
            rng = random.Random(rate)
            for number in range(requests_at(rate)):
                content = " ".join([*orders(rng, texts), text_of(server, some_ids(QUESTION_TOKENS, 9000 + number))])
                yield "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "temperature": 0,
                                               "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
        return bodies

    rounds = []
    for _ in range(options.rounds):
        with options.quire(options) as ours:
            own = highest_rate(ours, of_quire(ours))
        with Llama(options, 4) as theirs:
            rounds.append(own / (highest_rate(theirs, of_llama(theirs)) or LEAST_RATE))
    return rounds


async def trace(server, system, says):
    """Lets every user talk in turn. Returns tokens a second and the 99th percentile of the first token."""
    firsts, tokens = [], 0

    async def talk(user):
        nonlocal tokens
        messages = [{"role": "system", "content": system}]
        for turn in range(TURNS):
            messages.append({"role": "user", "content": says[user][turn]})
            done = await stream(server, "/v1/chat/completions", {"messages": messages, "temperature": 0, "ignore_eos": True,
                                                                 "max_tokens": TURN_ANSWER_TOKENS})
            firsts.append(done.first_seconds)
            tokens += TURN_ANSWER_TOKENS
            messages.append({"role": "assistant", "content": says[user][turn]})

    start = time.monotonic()
    await asyncio.gather(*(talk(user) for user in range(len(says))))
    return tokens / (time.monotonic() - start), percentile(firsts, 0.99)


def chats(options):
    """Measures tokens a second, and the 99th percentile of the first token, Quire's over llama-server's."""
    need_peer(options)
    users = 4 if options.quick else USERS

    def run(server):
        system = text_of(server, some_ids(SYSTEM_TOKENS, 1))
        says = [[text_of(server, some_ids(TURN_TOKENS, 100 + user * TURNS + turn)) for turn in range(TURNS)] for user in range(users)]
        return asyncio.run(trace(server, system, says))

    rounds = []
    for _ in range(options.rounds):
        with options.quire(options) as ours:
            own = run(ours)
        with Llama(options, 8) as theirs:
            peer = run(theirs)
        rounds.append([own[0] / peer[0], own[1] / peer[1]])
    return rounds
