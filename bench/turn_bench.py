"""Measures first tokens of a conversation's next requests by `quire serve` and by servers of llama.cpp's family.

    python bench/turn_bench.py FILE --quire PROGRAM [--peer NAME=LLAMA_SERVER ...] [--history 8192] [--rounds 3]

One conversation of token ids: a history, an answer of 32 tokens that the server generates, and a message of 64. Rows, in this
order, each with seconds of a request for one token and the tokens that the server says it computed for it:

    first       the history, for the first time
    next        the history, the answer and a message
    regenerate  the same request once more
    edit        another message in its place
    early       an edit three quarters into the history
    other       another history
    back        the request "next" again, behind that other history

Every round starts each server anew, and only one at a time. Prints medians, and Quire beside the best peer of each round.
"""
import argparse
import pathlib
import socket
import statistics
import subprocess
import time

from serve_load import Served, post, some_ids, wait_until_ready

ROWS = ("first", "next", "regenerate", "edit", "early", "other", "back")
ANSWER, MESSAGE = 32, 64


class Quire(Served):
    def __init__(self, program, options, more=()):
        super().__init__([program, "serve", options.file, "--port", 0, "--access-log", "off", "--alias", "bench", "--threads",
                          options.threads, "--kv-budget", "4GiB", *more])

    def ask(self, ids, tokens):
        """Returns the ids of the answer and the tokens that were computed for the prompt."""
        body = {"model": "bench", "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        done = post(self, "/v1/completions", body)
        cached = (done["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return done["choices"][0]["token_ids"], len(ids) - cached


class LlamaServer(Served):
    def __init__(self, program, options, more=()):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        usage = subprocess.run([program, "--help"], capture_output=True, text=True)
        repacks = ["-rtr"] if "-rtr" in usage.stdout + usage.stderr else []
        command = [program, "-m", options.file, "--port", port, "-c", 2 * options.history + 4096, "-np", 1, "-fa", "on", "-t",
                   options.threads, *repacks, *more]
        self.process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until_ready(f"{self.url}/health", self.process)

    def ask(self, ids, tokens):
        body = {"prompt": ids, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": True, "return_tokens": True}
        done = post(self, "/completion", body)
        return done.get("tokens") or some_ids(tokens, 9), done["timings"]["prompt_n"]


def converse(server, length):
    """Returns {row: (seconds, tokens computed)}."""
    history, found = some_ids(length, 1), {}

    def take(row, ids):
        start = time.monotonic()
        _, computed = server.ask(ids, 1)
        found[row] = (time.monotonic() - start, computed)

    take("first", history)
    answer, _ = server.ask(history, ANSWER)
    following = history + answer + some_ids(MESSAGE, 2)
    take("next", following)
    take("regenerate", following)
    take("edit", history + answer + some_ids(MESSAGE, 3))
    take("early", history[: length * 3 // 4] + some_ids(MESSAGE, 4))
    take("other", some_ids(length, 5))
    take("back", following)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--quire", default="quire")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=LLAMA_SERVER")
    parser.add_argument("--history", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    engines = {"quire": (Quire, options.quire)} | {name: (LlamaServer, program) for name, program in (
        peer.split("=", 1) for peer in options.peer)}
    rounds = {name: [] for name in engines}
    for turn in range(options.rounds):
        for name in list(engines)[:: -1 if turn % 2 else 1]:
            kind, program = engines[name]
            with kind(program, options) as server:
                rounds[name].append(converse(server, options.history))
    print("| request |", " | ".join(f"{name}, s (tokens)" for name in engines), "| best peer by Quire |")
    print("|---|" + "---|" * (len(engines) + 1))
    for row in ROWS:
        cells = [f"{statistics.median(each[row][0] for each in rounds[name]):.3f} ({rounds[name][0][row][1]})" for name in engines]
        ratio = [min(rounds[name][turn][row][0] for name in engines if name != "quire") / rounds["quire"][turn][row][0]
                 for turn in range(options.rounds)] if len(engines) > 1 else [float("nan")]
        print(f"| {row} |", " | ".join(cells), f"| {statistics.median(ratio):.2f} |", flush=True)


if __name__ == "__main__":
    main()
