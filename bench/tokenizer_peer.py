"""The peer's side of tokenizer_bench: Hugging Face `tokenizers`, one thread, on the same text.

    python bench/tokenizer_peer.py BENCH_PROGRAM TEXT_FILE... -- TOKENIZER_JSON...

Runs both sides in turn, TURNS times, and prints for each tokenizer and text the medians and their ratio
product / peer. Ids must agree in number. Truncation and padding are off on both sides.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer  # noqa: E402  (reads the variables above)
from tokenizers.decoders import DecodeStream  # noqa: E402

TURNS = 3
RATES = ("encode", "encode_lines", "decode", "stream")


def rate(size: int, work) -> float:
    start = time.perf_counter()
    work()
    return size / 1e6 / (time.perf_counter() - start)


def streamed(tokenizer: Tokenizer, ids: list[int]) -> None:
    stream = DecodeStream(skip_special_tokens=False)
    for id in ids:
        stream.step(tokenizer, id)


def peer(path: str, text: str) -> dict:
    start = time.perf_counter()
    tok = Tokenizer.from_file(path)
    load_ms = 1e3 * (time.perf_counter() - start)
    tok.no_truncation()
    tok.no_padding()
    size = len(text.encode())
    lines = text.split("\n")
    ids = tok.encode(text).ids
    return {
        "tokens": len(ids),
        "load_ms": load_ms,
        "encode_mb_s": rate(size, lambda: tok.encode(text)),
        "encode_lines_mb_s": rate(size, lambda: [tok.encode(line) for line in lines]),
        "decode_mb_s": rate(size, lambda: tok.decode(ids, skip_special_tokens=False)),
        "stream_mb_s": rate(size, lambda: streamed(tok, ids)),
    }


def product(program: str, path: str, text_path: str) -> dict:
    return json.loads(subprocess.run([program, path, text_path], check=True, capture_output=True).stdout)


def compare(program: str, path: str, text_path: str) -> None:
    text = pathlib.Path(text_path).read_text(encoding="utf-8")
    ours, theirs = [], []
    for _ in range(TURNS):
        theirs.append(peer(path, text))
        ours.append(product(program, path, text_path))
    assert ours[0]["tokens"] == theirs[0]["tokens"], (path, ours[0]["tokens"], theirs[0]["tokens"])

    def median(rows: list[dict], key: str) -> float:
        return statistics.median(row[key] for row in rows)

    cells = [f"{name} {median(ours, key):.1f} / {median(theirs, key):.1f} MB/s = "
             f"{median(ours, key) / median(theirs, key):.2f}"
             for name, key in ((name, name + "_mb_s") for name in RATES)]
    print(f"{pathlib.Path(path).stem}, {pathlib.Path(text_path).stem}: " + ", ".join(cells)
          + f", load {median(ours, 'load_ms'):.0f} / {median(theirs, 'load_ms'):.0f} ms", flush=True)


def main() -> None:
    program, *rest = sys.argv[1:]
    texts, tokenizers = rest[:rest.index("--")], rest[rest.index("--") + 1:]
    for path in tokenizers:
        for text in texts:
            compare(program, path, text)


if __name__ == "__main__":
    main()
