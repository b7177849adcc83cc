"""Measures gaps between tokens while a long prompt is computed, with and without a bound on them, in turn.

    python bench/gap_bench.py [MODEL] [--prompt 32768] [--streams 4] [--bounds 200,50] [--rounds 1]

Some streams generate. Then a long prompt comes. Until its first token is there, every gap of every stream counts, and so do all
tokens of prompt and streams. The bars: a p99 gap of at most the bound and one plain step, and 0.9 of the throughput without a
bound.
"""
import argparse
import statistics
import threading
import time

import numpy as np

import quire


def follow(stream, times):
    """Notes the time of each token of a stream."""
    for _ in stream:
        times.append(time.perf_counter())


def measure(llm, prompt, streams, seed):
    """Returns the gaps in seconds, the tokens a second, and the seconds of a plain step."""
    rng = np.random.default_rng(seed)
    endless = {"temperature": 0, "max_tokens": 30_000, "ignore_eos": True}
    running = [llm.stream(rng.integers(10, 1500, 32).tolist(), endless) for _ in range(streams)]
    times = [[] for _ in running]
    threads = [threading.Thread(target=follow, args=pair) for pair in zip(running, times)]
    for thread in threads:
        thread.start()
    while min(map(len, times)) < 40:
        time.sleep(0.01)
    plain = statistics.median(np.diff(times[0][8:]))
    start = time.perf_counter()
    llm.generate(rng.integers(10, 1500, prompt).tolist(), {"temperature": 0, "max_tokens": 1})
    end = time.perf_counter()
    for stream in running:
        llm.abort(stream.request_id)
    for thread in threads:
        thread.join()
    gaps, tokens = [], prompt
    for each in times:
        within = [at for at in each if start <= at <= end]
        tokens += len(within)
        gaps += np.diff([start, *within, end]).tolist()
    return gaps, tokens / (end - start), plain


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default="preset:smollm2-135m@layers=4")
    parser.add_argument("--prompt", type=int, default=32768)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--bounds", default="200,50")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    bounds = [None, *map(float, options.bounds.split(","))]
    print(f"{'bound ms':>9}{'p50 ms':>9}{'p99 ms':>9}{'most ms':>9}{'plain ms':>9}{'tokens/s':>10}{'ratio':>7}")
    for number in range(options.rounds):
        base = None
        for bound in bounds:
            with quire.LLM(options.model, kv_budget="2GiB", prefix_cache=False, max_decode_gap_ms=bound) as llm:
                llm.generate([5] * 600, {"max_tokens": 8, "ignore_eos": True})  # the pace of steps is known then
                gaps, rate, plain = measure(llm, options.prompt, options.streams, number)
            base = base or rate
            p50, p99 = np.percentile(gaps, [50, 99]) * 1e3
            row = f"{bound or '-':>9}{p50:9.1f}{p99:9.1f}{max(gaps) * 1e3:9.1f}{plain * 1e3:9.1f}{rate:10.0f}{rate / base:7.2f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
