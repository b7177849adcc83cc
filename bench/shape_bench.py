"""Measures prefill and decode of GGUF files by `quire bench` and by the benchmarks of llama.cpp's family, in turn.

    python bench/shape_bench.py FILE... --quire PROGRAM --peer NAME=DIRECTORY [--peer ...] [--batch 8] [--rounds 5]

A peer's directory holds llama-bench and, for --batch, llama-batched-bench. A peer that cannot open a file is left out for it.
Prints tokens a second, medians of the rounds, and the median over the rounds of Quire beside the best peer of the round.
`bench/make_shape.py` writes files. Run it on an idle machine: decode reads all weights, so other programs cost it bandwidth.
"""
import argparse
import json
import pathlib
import statistics
import subprocess

PROMPT, GENERATE, BATCH_PROMPT = 512, 64, 16


def output_of(command, errors=subprocess.DEVNULL):
    """Returns what a program prints, or nothing where it fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=errors, text=True)
    return done.stdout if done.returncode == 0 else ""


class Quire:
    def __init__(self, program, options):
        self.program, self.options = program, options

    def rates(self, file):
        """Returns {row: tokens a second}."""
        command = [self.program, "bench", file, "--prompt", PROMPT, "--generate", GENERATE, "--repeat", 1,
                   "--threads", self.options.threads, "--kv-budget", "2GiB", "--format", "json"]
        command += ["--batch", self.options.batch] if self.options.batch else []
        names = {"prefill": "prefill", "decode": "decode", "batched_decode": f"decode x {self.options.batch}"}
        records = json.loads(output_of(command) or "[]")
        return {names[record["metric"]]: record["tokens_per_second"] for record in records if record["metric"] in names}


class Peer:
    def __init__(self, directory, options):
        self.directory, self.options = pathlib.Path(directory), options
        usage = subprocess.run([self.directory / "llama-bench", "--help"], capture_output=True, text=True)
        self.repacks = "-rtr" in usage.stdout + usage.stderr  # ik_llama.cpp is told so; others do it by themselves

    def rates(self, file):
        """Returns {row: tokens a second}."""
        alone = [self.directory / "llama-bench", "-m", file, "-t", self.options.threads, "-p", PROMPT, "-n", GENERATE, "-r", 1,
                 "-fa", 1, "-o", "json", *(["-rtr", 1] if self.repacks else [])]
        found = {"prefill" if record["n_prompt"] else "decode": record["avg_ts"] for record in json.loads(output_of(alone) or "[]")}
        if found and self.options.batch:
            found |= self.batched(file)
        return found

    def batched(self, file):
        command = [self.directory / "llama-batched-bench", "-m", file, "-t", self.options.threads, "-npp", BATCH_PROMPT,
                   "-ntg", GENERATE, "-npl", self.options.batch, "-c", 4096, "-fa", "on", *(["-rtr"] if self.repacks else [])]
        for line in output_of(command, subprocess.STDOUT).splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) > 8 and cells[1] == str(BATCH_PROMPT):
                return {f"decode x {self.options.batch}": float(cells[8])}
        return {}


def measure(engines, file, rounds):
    """Returns {row: {engine: rates of the rounds}}. Odd rounds run the engines the other way about."""
    rates = {}
    for turn in range(rounds):
        for name in list(engines)[:: -1 if turn % 2 else 1]:
            for row, rate in engines[name].rates(file).items():
                rates.setdefault(row, {}).setdefault(name, []).append(rate)
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--quire", default="quire")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=DIRECTORY")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    engines = {"quire": Quire(options.quire, options)}
    for peer in options.peer:
        name, directory = peer.split("=", 1)
        engines[name] = Peer(directory, options)
    print("| file | row |", " | ".join(engines), "| beside the best peer |")
    print("|---|---|" + "---|" * (len(engines) + 1))
    for file in options.files:
        for row, rates in measure(engines, file, options.rounds).items():
            cells = [f"{statistics.median(rates[name]):.1f}" if name in rates else "-" for name in engines]
            best = [max(turn) for turn in zip(*(rates[name] for name in engines if name != "quire" and name in rates))]
            ratio = statistics.median(own / peer for own, peer in zip(rates["quire"], best)) if best else float("nan")
            print(f"| {pathlib.Path(file).stem} | {row} |", " | ".join(cells), f"| {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
