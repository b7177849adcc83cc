"""Compares the product with Hugging Face `tokenizers` on random texts.

    python fuzz_against_hf.py BENCH_PROGRAM TOKENIZER_JSON... [--examples N]

BENCH_PROGRAM is the built bench/tokenizer_bench. Needs `tokenizers` and `hypothesis`; texts use only
characters that Unicode 14 assigns (the version of utf8proc and PCRE2 here; the peer knows newer ones).
"""
import argparse
import json
import subprocess
import sys
import unicodedata

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from awkward_texts import AWKWARD


class Product:
    """A running `tokenizer_bench --answer`."""

    def __init__(self, program: str, path: str) -> None:
        self.process = subprocess.Popen([program, path, "--answer"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, text: str, add: bool, special: bool) -> dict:
        self.process.stdin.write(json.dumps({"text": text, "add": add, "special": special}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def texts(words: list[str]) -> st.SearchStrategy[str]:
    assigned = st.characters(exclude_categories=("Cs", "Cn"), max_codepoint=0x2FFFF)
    known = assigned.filter(lambda c: unicodedata.category(c) != "Cn")
    common = st.sampled_from(list(" \t\n'.,-_019aeinorstAZ\u2581\u00e9\u0301\u4f60\u2019\U0001f600"))
    piece = st.one_of(st.text(known, max_size=6), st.text(common, max_size=8),
                      st.sampled_from(words))
    return st.lists(piece, max_size=12).map("".join)


def check(product: Product, peer: Tokenizer, text: str, add: bool, special: bool) -> None:
    peer.encode_special_tokens = not special
    ids = peer.encode(text, add_special_tokens=add).ids
    specials = {id for id, token in peer.get_added_tokens_decoder().items() if token.special}
    if not special and specials & set(peer.encode(text, add_special_tokens=False).ids):
        return  # meant: Unigram and WordLevel match special tokens in plain text there, never here
    expected = {
        "ids": ids,
        "text": peer.decode(ids, skip_special_tokens=False),
        # by id: 0.23 does not skip tokens that are special and normalized
        "skipped": peer.decode([id for id in ids if id not in specials], skip_special_tokens=False),
    }
    got = product.ask(text, add, special)
    assert got.pop("streamed") == got["text"], (text, "streamed")
    assert got == expected, f"{text!r} add={add} special={special}\n got {got}\nwant {expected}"


def fuzz(program: str, path: str, examples: int) -> bool:
    peer = Tokenizer.from_file(path)
    product = Product(program, path)
    added = [token.content for token in peer.get_added_tokens_decoder().values()]
    words = sorted({w for t in AWKWARD for w in t.split(" ")} | set(added[:50]))
    failures = 0
    for text in AWKWARD:
        try:
            check(product, peer, text, True, True)
        except AssertionError as error:
            failures += 1
            print(f"{path}: {error}")

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink))
    @given(texts(words), st.booleans(), st.booleans())
    def property_(text: str, add: bool, special: bool) -> None:
        check(product, peer, text, add, special)

    try:
        property_()
    except AssertionError as error:
        failures += 1
        print(f"{path}: {error}")
    print(f"{path}: {'failed' if failures else 'equal'}")
    return failures == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("tokenizers", nargs="+")
    parser.add_argument("--examples", type=int, default=2000)
    arguments = parser.parse_args()
    results = [fuzz(arguments.program, path, arguments.examples) for path in arguments.tokenizers]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
