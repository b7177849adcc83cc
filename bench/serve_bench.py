"""Measures `quire serve` beside the engine alone and beside limits: one row for each bar.

    python bench/serve_bench.py [--rows throughput cpu ...] [--rounds 5] [--model MODEL] [--quick] [--out FILE]

Each row prints its median and its bar; `--out` writes all rounds as JSON (bench/results). Every row starts what it
compares in the same run. `first_token` needs the Python package (PYTHONPATH=build/release/python), `streams` the program
build/release/bench/null_serve, and `documents` and `chats` a llama-server: `--llama-server PROGRAM --gguf FILE`.
`--quick` makes everything small, to see that it runs.
"""
import argparse
import asyncio
import contextlib
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import time

from serve_load import Served, connect, get, get_times, head, percentile, post, some_ids, stream
from serve_peers import chats, documents

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILT = ROOT / "build" / "release"
POOL = "64MiB"  # of KV, where memory is looked at
SLICE = 256  # tokens of a prompt that a step computes at most (`--max-batch-tokens` of the server)


class NotRun(Exception):
    """Says why a row cannot be measured here."""


def quire(options, *more):
    return Served([BUILT / "apps/cli/quire", "serve", options.model, "--port", "0", "--access-log", "off", "--alias", "bench", *more])


def endless(ids, tokens):
    """Returns a completion of `tokens` tokens behind these ids."""
    return {"model": "bench", "prompt": ids, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}


def long_prompts(options):
    """Returns prompts of 8,192 tokens together, as long as the context allows."""
    length = min(options.prefill, options.context - 64)
    return [some_ids(length, 1000 + i) for i in range(max(1, round(options.prefill / length)))]


async def eight_streams(server, tokens):
    """Measures tokens a second of all eight together, and the CPU seconds of input and output for each token."""
    start = server.main_thread_seconds()
    bodies = [endless(some_ids(64, seed), tokens) for seed in range(8)]
    streams = await asyncio.gather(*(stream(server, "/v1/completions", body) for body in bodies))
    cpu = server.main_thread_seconds() - start
    # An event may have several tokens, but each stream has all of them.
    rate = sum((tokens - 1) / (each.moments[-1] - each.moments[0]) for each in streams)
    return rate, cpu / (tokens * len(streams))


def bench_tokens_per_second(options, tokens):
    """Asks `quire bench` for the speed of the same batch: eight requests at the same depth."""
    command = [BUILT / "apps/cli/quire", "bench", options.model, "--prompt", "64", "--depth", "64", "--batch", "8", "--generate", tokens,
               "--repeat", 1, "--format", "json"]
    records = json.loads(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout)
    return next(each["tokens_per_second"] for each in records if each["metric"] == "batched_decode")


def throughput(options):
    tokens = 32 if options.quick else 512
    with quire(options) as server:
        asyncio.run(eight_streams(server, 8))
        return [asyncio.run(eight_streams(server, tokens))[0] / bench_tokens_per_second(options, tokens) for _ in range(options.rounds)]


def cpu(options):
    tokens = 32 if options.quick else 512
    with quire(options) as server:
        asyncio.run(eight_streams(server, 8))
        return [asyncio.run(eight_streams(server, tokens))[1] * 1e6 for _ in range(options.rounds)]


def first_token(options):
    """Measures milliseconds of the first token of a cached prompt by HTTP, less those of the same call in this process."""
    try:
        import quire as package
    except ImportError as missing:
        raise NotRun("the Python package is not on PYTHONPATH") from missing
    count, ids = (5 if options.quick else 50), some_ids(512, 7)
    rounds = []
    with quire(options) as server, package.LLM(options.model) as llm:
        for _ in range(options.rounds):
            over_http = [asyncio.run(stream(server, "/v1/completions", endless(ids, 1))).first_seconds for _ in range(count)]
            within = []
            for _ in range(count):
                start = time.monotonic()
                with llm.stream(ids, temperature=0, max_tokens=1, ignore_eos=True) as deltas:
                    next(iter(deltas))
                    within.append(time.monotonic() - start)
            rounds.append((statistics.median(over_http) - statistics.median(within)) * 1e3)
    return rounds


async def beside_prefill(server, options, beside):
    """Runs `beside(done)` while the long prompts are computed one after the other."""
    done = asyncio.Event()

    async def prefill():
        for ids in long_prompts(options):
            await stream(server, "/v1/completions", endless(ids, 1))
        done.set()

    return (await asyncio.gather(prefill(), beside(done)))[1]


def health(options):
    async def ask(server):
        async def poll(done):
            reader, writer = await connect(server)
            times = []
            while not done.is_set():
                times.append(await get(reader, writer, server, "/health"))
                await asyncio.sleep(0.001)
            writer.close()
            return times
        return percentile(await beside_prefill(server, options, poll), 0.99) * 1e3

    rounds = []
    for _ in range(options.rounds):
        with quire(options) as server:  # anew, so that no prompt is cached
            rounds.append(asyncio.run(ask(server)))
    return rounds


def gap(options):
    """Measures the longest gap of a running stream beside a prefill, less one slice of that prefill, over its usual gap."""
    async def ask(server):
        started = asyncio.Event()

        async def prefill_beside():
            await started.wait()
            await asyncio.sleep(0.2)
            begin = time.monotonic()
            await stream(server, "/v1/completions", endless(long_prompts(options)[0], 1))
            return begin, time.monotonic()

        async def slice_seconds():
            """Measures the last slice of the same prompt, computed alone: all before it is cached."""
            ids = long_prompts(options)[0]
            return (await stream(server, "/v1/completions", endless(ids[:-SLICE] + some_ids(SLICE, 77), 1))).first_seconds

        endless_stream = stream(server, "/v1/completions", endless(some_ids(32, 1), min(options.context - 100, 2000)), wake=started.set)
        running, (begin, end) = await asyncio.gather(endless_stream, prefill_beside())
        pairs = list(zip(running.moments, running.moments[1:]))
        inside = [later - earlier for earlier, later in pairs if begin <= later and earlier <= end]
        outside = [later - earlier for earlier, later in pairs if later < begin or earlier > end]
        if not inside or not outside:
            raise NotRun("the running stream ended before the prefill")
        return (max(inside) - await slice_seconds()) / statistics.median(outside)

    rounds = []
    for _ in range(options.rounds):
        with quire(options) as server:
            rounds.append(asyncio.run(ask(server)))
    return rounds


def streams(options):
    program = BUILT / "bench" / "null_serve"
    if not program.exists():
        raise NotRun("build/release/bench/null_serve is not built (make benches)")
    count = 50 if options.quick else 1000

    async def ask(server):
        bodies = [endless(some_ids(16, seed), 32) | {"model": "model"} for seed in range(count)]
        results = await asyncio.gather(*(stream(server, "/v1/completions", body) for body in bodies))
        return percentile([each.first_seconds for each in results], 0.99) * 1e3

    with Served([program, ROOT / "models/cardfile/model", 0]) as server:
        return [asyncio.run(ask(server)) for _ in range(options.rounds)]


def idle(options):
    """Measures MiB that idle connections take, and milliseconds that they add to the 99th percentile of a request."""
    count = 200 if options.quick else 10_000

    async def ask(server):
        alone = percentile(await get_times(server, "/health", 500), 0.99)
        before = server.resident_mib()
        connections = [await connect(server) for _ in range(count)]
        for reader, writer in connections:
            await get(reader, writer, server, "/live")
        beside = percentile(await get_times(server, "/health", 500), 0.99)
        cost = server.resident_mib() - before
        for _, writer in connections:
            writer.close()
        return [cost, (beside - alone) * 1e3]

    with quire(options) as server:
        return [asyncio.run(ask(server)) for _ in range(options.rounds)]


async def abuse(server, count):
    """Sends requests that end well, are cut, are refused, or are not read, 32 at a time."""
    body = endless(some_ids(24, 5), 4)

    async def slow_reader():
        reader, writer = await connect(server)
        text = json.dumps({**body, "max_tokens": 64, "stream": True}).encode()
        writer.write(head("POST", "/v1/completions", server, text))
        await reader.readline()
        await asyncio.sleep(0.01)
        writer.close()

    async def one(number):
        with contextlib.suppress(ConnectionError, IndexError, asyncio.IncompleteReadError):
            kind = number % 8
            if kind == 0:
                await stream(server, "/v1/completions", {**body, "max_tokens": 64}, tokens=1)
            elif kind == 1:
                await stream(server, "/v1/completions", {**body, "temperature": 9})
            elif kind == 2:
                await slow_reader()
            else:
                await stream(server, "/v1/completions", body)

    turns = asyncio.Semaphore(32)

    async def in_turn(number):
        async with turns:
            await one(number)

    await asyncio.gather(*(in_turn(number) for number in range(count)))


async def touch_all_blocks(server, options):
    """Fills a pool of POOL once, since its pages count as memory from their first use on."""
    for seed in range(24):
        await stream(server, "/v1/completions", endless(some_ids(min(1500, options.context - 64), seed), 1))


def memory(options):
    """Measures the percent by which memory has grown after the requests, once a tenth of them has warmed the process; files
    and threads."""
    count = 200 if options.quick else 10_000
    rounds = []
    for _ in range(min(options.rounds, 2)):
        with quire(options, "--kv-budget", POOL) as server:
            asyncio.run(touch_all_blocks(server, options))
            asyncio.run(abuse(server, count // 10))
            time.sleep(1)
            resident, counts = server.resident_mib(), server.counts()
            asyncio.run(abuse(server, count))
            time.sleep(1)
            if server.counts() != counts:
                raise NotRun(f"files and threads were {counts} and are {server.counts()}")
            rounds.append((server.resident_mib() / resident - 1) * 100)
    return rounds


# Name: function, what it gives, must, aim, and whether more is better.
ROWS = {
    "throughput": (throughput, "tokens/s of 8 streams over HTTP against quire bench", 0.99, 0.997, True),
    "cpu": (cpu, "us of the input/output thread for a streamed token", 50, 10, False),
    "first_token": (first_token, "ms of a cached prompt's first token over HTTP above the call in process, p50", 2, 0.5, False),
    "health": (health, "ms of /health while 8k tokens are prefilled, p99", 20, 5, False),
    "streams": (streams, "ms of the first event of 1,000 streams beside a null engine, p99", 250, 100, False),
    "idle": (idle, "MiB of 10,000 idle connections; ms that they add to p99", (200, 2), (100, 2), False),
    "gap": (gap, "longest gap of a stream beside a prefill less one slice of it, in usual gaps", 3, 2, False),
    "memory": (memory, "percent of memory more after 10,000 requests", 5, 5, False),
    "documents": (documents, "requests/s over documents in changing order against llama-server", 5, 10, True),
    "chats": (chats, "tokens/s and p99 of the first token of a chat trace against llama-server", (1.5, 0.5), (2.5, 0.3), True),
}


def measured(name, options):
    run, says, must, aim, more = ROWS[name]
    row = {"row": name, "says": says, "must": must, "aim": aim, "better": "more" if more else "less"}
    try:
        rounds = run(options)
    except NotRun as reason:
        return {**row, "not_run": str(reason)}
    median = [statistics.median(column) for column in zip(*rounds)] if isinstance(rounds[0], (list, tuple)) else statistics.median(rounds)
    return {**row, "rounds": rounds, "median": median}


def shown(value):
    return "; ".join(f"{each:.4g}" for each in (value if isinstance(value, (list, tuple)) else [value]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default=str(ROOT / "models/cardfile/model"))
    parser.add_argument("--context", type=int, default=2048, help="tokens of the model's context")
    parser.add_argument("--prefill", type=int, default=8192, help="tokens to prefill beside other work")
    parser.add_argument("--llama-server")
    parser.add_argument("--gguf")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    options.not_run, options.quire = NotRun, quire
    if options.quick:
        options.rounds, options.prefill = 1, 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    rows = []
    for name in options.rows:
        row = measured(name, options)
        rows.append(row)
        said = f"not run: {row['not_run']}" if "not_run" in row else shown(row["median"])
        print(f"{name:12} {said:>20}  must {shown(row['must'])}, aim {shown(row['aim'])}: {row['says']}", flush=True)
    if options.out:
        options.out.write_text(json.dumps({"model": options.model, "rounds": options.rounds, "quick": options.quick, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
