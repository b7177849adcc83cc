"""Measures what restore points cost: the prefill of a long prompt on a model with states, with points and without, in turn.

    python bench/point_bench.py [MODEL] [--prompt 8192] [--rounds 5]

With `prefix_cache=False` no state is kept but that of the running request. The bar: points take at most 2 % of the prefill.
The budget is small, so that after the first prompt all memory was written before: new pages would count as points.
"""
import argparse
import statistics
import time

import numpy as np

import quire


def seconds_of(llm, prompt):
    """Returns the seconds to the first token of a prompt that nothing knows."""
    start = time.perf_counter()
    llm.generate(prompt, {"temperature": 0, "max_tokens": 1})
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="preset:qwen3.5-0.8b@layers=8")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", default="256MiB")
    options = parser.parse_args()
    rng = np.random.default_rng(3)
    engines = {kept: quire.LLM(options.model, kv_budget=options.budget, prefix_cache=kept) for kept in (True, False)}
    times = {kept: [] for kept in engines}
    for turn in range(options.rounds + 1):
        prompt = rng.integers(10, 1500, options.prompt).tolist()
        for kept in (True, False) if turn % 2 else (False, True):
            seconds = seconds_of(engines[kept], prompt)
            if turn:  # the first round warms both up
                times[kept].append(seconds)
    shares = [with_points / without - 1 for with_points, without in zip(times[True], times[False])]
    points = engines[True].stats()["restore_points"]
    print(f"prompt of {options.prompt}: {statistics.median(times[True]):.3f} s with points ({points} kept), "
          f"{statistics.median(times[False]):.3f} s without: {100 * statistics.median(shares):.2f} % "
          f"({', '.join(f'{100 * share:.2f}' for share in sorted(shares))})")


if __name__ == "__main__":
    main()
