"""Measures what guessing gains where an answer copies: `quire serve` and servers of llama.cpp's family, each with and without.

    python bench/copy_bench.py FILE --quire PROGRAM [--peer NAME=LLAMA_SERVER ...] [--tokens 256] [--rounds 3]

FILE is a model whose greedy answers run in a circle (`bench/make_shape.py PRESET LAYERS FILE circle`). The prompt holds that
circle several times, so that each token stands in it. Prints tokens a second behind the prompt, medians of the rounds, the
speed-up, and Quire with guesses beside the best peer with guesses.
"""
import argparse
import pathlib
import statistics
import time

import turn_bench
from serve_load import post

GUESSES = {"quire": ["--speculate", "ngram"], "peer": ["--spec-type", "ngram-simple"]}
PROMPT = 600


def circle_of(quire, options):
    """Returns a prompt that an answer goes on copying."""
    with quire([]) as server:
        ids, _ = server.ask([5, 300, 400], PROMPT)
        return [5, 300, 400, *ids]


def rate(server, prompt, tokens):
    """Returns tokens a second behind a prompt that was computed before, and the answer."""
    server.ask(prompt, 1)
    start = time.monotonic()
    ids, _ = server.ask(prompt, tokens)
    return tokens / (time.monotonic() - start), ids


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--quire", default="quire")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=LLAMA_SERVER")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--guess", default="ngram", help="of Quire: ngram, suffix or a JSON object")
    options = parser.parse_args()
    options.history = PROMPT
    GUESSES["quire"][1] = options.guess
    ways = {"quire": lambda more: turn_bench.Quire(options.quire, options, more)}
    for peer in options.peer:
        name, program = peer.split("=", 1)
        ways[name] = lambda more, program=program: turn_bench.LlamaServer(program, options, more)
    prompt = circle_of(ways["quire"], options)
    rates = {(name, guesses): [] for name in ways for guesses in (False, True)}
    for turn in range(options.rounds):
        for name, guesses in list(rates)[:: -1 if turn % 2 else 1]:
            more = GUESSES["quire" if name == "quire" else "peer"] if guesses else []
            with ways[name](more) as server:
                rates[name, guesses].append(rate(server, prompt, options.tokens)[0])
    print("| engine | alone, tokens/s | guessing, tokens/s | speed-up |")
    print("|---|---|---|---|")
    for name in ways:
        alone, guessing = (statistics.median(rates[name, guesses]) for guesses in (False, True))
        print(f"| {name} | {alone:.1f} | {guessing:.1f} | {guessing / alone:.2f} |")
    best = [max(rates[name, True][turn] for name in ways if name != "quire") for turn in range(options.rounds)] if options.peer else []
    if best:
        print(f"quire beside the best peer: {statistics.median(own / peer for own, peer in zip(rates['quire', True], best)):.2f}")


if __name__ == "__main__":
    main()
