"""Measures what guessing tokens gains: tokens a second with each drafter beside none, in turn, and the share that was right.

    python bench/speculate_bench.py [MODEL] [--draft PATH] [--tokens 128] [--batches 1,4,16] [--rounds 3]

Texts: "quote" asks for what stands in the prompt, "chat" answers questions over cards. Both are greedy, so "suffix" has seen
the answers in earlier rounds. "random" samples at temperature 1 behind random ids, with another seed in each round, so hardly
any guess can pay. The bar is 0.97 in every cell: guessing never costs more than 3 %.
"""
import argparse
import statistics
import time

import numpy as np
from reuse_noise import CARDFILE

import quire


def prompts_of(kind, tokenizer, count):
    """Returns prompts and sampling parameters of one kind of text."""
    rng = np.random.default_rng(1)
    if kind == "random":
        return [rng.integers(10, 1500, 64).tolist() for _ in range(count)], {"temperature": 1.0}
    people = ["Ada", "Lars", "Mina", "Otto", "Ida", "Emil", "Vera", "Hugo"]
    cards = [f"Card {n}. {people[n % 8]} trades in apples. They live in Foxley." for n in range(1, 13)]
    texts = []
    for number in range(count):
        rng.shuffle(cards)
        ending = " ".join(cards[:3]) if kind == "quote" else f"Where does {people[number % 8]} live?"
        texts.append(tokenizer.encode(" ".join(cards) + " " + ending))
    return texts, {"temperature": 0}


def measure(llm, prompts, params, tokens, clock):
    """Returns the seconds to generate by `clock`, without the prompts, and the outputs."""
    llm.generate(prompts, params, max_tokens=1)
    start = clock()
    outputs = llm.generate(prompts, params, max_tokens=tokens, ignore_eos=True)
    return clock() - start, outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(CARDFILE / "model"))
    parser.add_argument("--draft", default=str(CARDFILE / "draft"))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="CPU time, on a machine that others use")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    ways = {"none": None, "ngram": "ngram", "suffix": "suffix", "draft": {"method": "draft", "model": options.draft}}
    engines = {name: quire.LLM(options.model, kv_budget="256MiB", speculate=way) for name, way in ways.items()}
    print(f"{'text':8}{'batch':>6}{'drafter':>10}{'tokens/s':>10}{'ratio':>8}{'right':>8}{'drafted':>9}")
    for kind in ("quote", "chat", "random"):
        for batch in map(int, options.batches.split(",")):
            prompts, params = prompts_of(kind, engines["none"].tokenizer, batch)
            times = {name: [] for name in ways}
            last = {}
            for number in range(options.rounds):
                seeded = params | {"seed": number}
                for name, llm in engines.items():  # in turn, so that a slow moment of the machine meets all
                    seconds, last[name] = measure(llm, prompts, seeded, options.tokens, clock)
                    times[name].append(seconds)
            none = statistics.median(times["none"])
            for name in ways:
                assert [out.token_ids for out in last[name]] == [out.token_ids for out in last["none"]], name
                seconds = statistics.median(times[name])
                drafted = sum(out.usage.drafted_tokens for out in last[name])
                right = sum(out.usage.accepted_tokens for out in last[name])
                share = f"{right / drafted:8.2f}" if drafted else f"{'-':>8}"
                rate = sum(len(out.token_ids) for out in last[name]) / seconds
                print(f"{kind:8}{batch:6}{name:>10}{rate:10.0f}{none / seconds:8.2f}{share}{drafted:9}", flush=True)


if __name__ == "__main__":
    main()
