"""The peer's side of tokenizer_bench: Hugging Face `tokenizers`, one thread, on the same text.

    python bench/tokenizer_peer.py BENCH_PROGRAM TEXT_FILE TOKENIZER_JSON...

Runs both sides in turn, twice, keeps the better round of each (other work on the machine only ever slows
a round down) and prints one line per tokenizer with the ratios product / peer.
"""
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer  # noqa: E402  (reads the variables above)

ROUNDS = 5


def best(size: int, work) -> float:
    rates = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        rates.append(size / 1e6 / (time.perf_counter() - start))
    return max(rates)


def peer(path: str, text: str) -> dict:
    tok = Tokenizer.from_file(path)
    size = len(text.encode())
    lines = text.split("\n")
    ids = tok.encode(text).ids
    return {
        "tokens": len(ids),
        "encode_mb_s": best(size, lambda: tok.encode(text)),
        "encode_lines_mb_s": best(size, lambda: [tok.encode(line) for line in lines]),
        "decode_mb_s": best(size, lambda: tok.decode(ids, skip_special_tokens=False)),
    }


def product(program: str, path: str, text_path: str) -> dict:
    return json.loads(subprocess.run([program, path, text_path], check=True, capture_output=True).stdout)


def main() -> None:
    program, text_path, *tokenizers = sys.argv[1:]
    text = pathlib.Path(text_path).read_text(encoding="utf-8")
    for path in tokenizers:
        ours, theirs = {}, {}
        for _ in range(2):
            for side, new in ((theirs, peer(path, text)), (ours, product(program, path, text_path))):
                for key, value in new.items():
                    side[key] = max(side.get(key, 0), value)
        assert ours["tokens"] == theirs["tokens"], (path, ours["tokens"], theirs["tokens"])
        parts = [f"{key.removesuffix('_mb_s')} {ours[key]:.1f} / {theirs[key]:.1f} MB/s = {ours[key] / theirs[key]:.2f}"
                 for key in ("encode_mb_s", "encode_lines_mb_s", "decode_mb_s")]
        print(f"{pathlib.Path(path).name}: " + ", ".join(parts), flush=True)


if __name__ == "__main__":
    main()
