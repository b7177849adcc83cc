"""Measures what guessing tokens gains: tokens a second with each drafter beside none, in turn, and the share that was right.

    python bench/speculate_bench.py [MODEL] [--draft PATH] [--tokens 128] [--batches 1,4,16] [--rounds 3]
    python bench/speculate_bench.py [MODEL] [--draft PATH] --read 24 [--rounds 3]

Texts: "quote" asks for what stands in the prompt, "chat" answers questions over cards. Both are greedy, so "suffix" has seen
the answers in earlier rounds. "random" samples at temperature 1 behind random ids, with another seed in each round, so hardly
any guess can pay. The bar is 0.97 in every cell: guessing never costs more than 3 %.

With --read it asks so many questions "Read card 41.", one at a time, and always guesses. It prints the tokens of a step
behind the prefill (bar 2.5), and what share of the speed-up is there that steps and rows of these times allow (bar 0.85).
"""
import argparse
import statistics
import sys
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


def read_prompts(tokenizer, count):
    """Returns prompts that ask for a card."""
    sys.path.insert(0, str(CARDFILE))
    import cardfile

    prompts = []
    for context in cardfile.contexts(7, cardfile.Spec(mix={"read": 1}, questions=1)):
        prompts.append(tokenizer.encode(cardfile.prompt(context, context.questions[0]), add_special_tokens=False))
        if len(prompts) == count:
            return prompts


def decode_seconds(llm, prompts, clock, **params):
    """Returns the seconds to answer one prompt after the other, without the prompts, and the outputs."""
    llm.generate(prompts, temperature=0, max_tokens=1)
    start = clock()
    outputs = [llm.generate(ids, temperature=0, max_tokens=64, **params) for ids in prompts]
    return clock() - start, outputs


def step_seconds(llm, prompts, rows, clock):
    """Returns the seconds of a step of so many rows, each of a request of its own."""
    several = [prompts[number % len(prompts)] for number in range(rows)]
    seconds, _ = measure(llm, several, {"temperature": 0}, 33, clock)
    return seconds / 33


def read_rows(options, clock, width):
    """Prints what always guessing brings where answers copy a card."""
    how = {"method": "draft", "model": options.draft, "width": width, "adapt": False}
    with (quire.LLM(options.model, kv_budget="256MiB") as none, quire.LLM(options.draft, kv_budget="64MiB") as small,
          quire.LLM(options.model, kv_budget="256MiB", speculate=how) as guessing):
        prompts = read_prompts(none.tokenizer, options.read)
        decode_seconds(guessing, prompts, clock)
        ratios, allowed = [], []
        for _ in range(options.rounds):
            plain, want = decode_seconds(none, prompts, clock)
            before = guessing.stats()
            fast, got = decode_seconds(guessing, prompts, clock)
            after = guessing.stats()
            assert [out.token_ids for out in got] == [out.token_ids for out in want]
            tokens = sum(len(out.token_ids) - 1 for out in got)
            steps = after["steps"] - before["steps"] - len(prompts)  # one of each has its prompt's end
            drafted = (after["tokens_drafted"] - before["tokens_drafted"]) / steps
            levels = min(4, drafted)
            one, many = step_seconds(none, prompts, 1, clock), step_seconds(none, prompts, 1 + round(drafted), clock)
            draft = step_seconds(small, prompts, 1, clock)
            ratios.append(plain / fast)
            allowed.append(tokens / steps * one / (many + levels * draft))
        ratio, most = statistics.median(ratios), statistics.median(allowed)
        print(f"read, width {width}: {tokens / steps:.2f} tokens a step (bar 2.5), speed-up {ratio:.2f}, "
              f"allowed {most:.2f}, share {ratio / most:.2f} (bar 0.85)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(CARDFILE / "model"))
    parser.add_argument("--draft", default=str(CARDFILE / "draft"))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="CPU time, on a machine that others use")
    parser.add_argument("--read", type=int, default=0, help="answers that copy a card, and nothing else")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    if options.read:
        for width in (1, 2):
            read_rows(options, clock, width)
        return
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
