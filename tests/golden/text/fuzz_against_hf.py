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

    def ask(self, **query) -> dict:
        self.process.stdin.write(json.dumps(query) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def texts(words: list[str]) -> st.SearchStrategy[str]:
    assigned = st.characters(exclude_categories=("Cs", "Cn"), max_codepoint=0x2FFFF)
    known = assigned.filter(lambda c: unicodedata.category(c) != "Cn")
    common = st.sampled_from(list(" \t\n'.,-_019aeinorstAZ\u2581\u00e9\u0301\u4f60\u2019\U0001f600"))
    run = st.builds(lambda c, n: c * n, st.sampled_from(["\r\n", *" \t\n\ra1.\u00a0\u3000\u2581\u0301\u200d"]),
                    st.integers(1, 200))
    fragment = st.builds(lambda word, begin, end: word[min(begin, end):max(begin, end)], st.sampled_from(words),
                         st.integers(0, 16), st.integers(0, 16))
    piece = st.one_of(st.text(known, max_size=6), st.text(common, max_size=8), st.sampled_from(words), fragment, run)
    return st.lists(piece, max_size=12).map("".join)


def decoded(peer: Tokenizer, ids: list[int], specials: set[int]) -> dict:
    return {
        "ids": ids,
        "text": peer.decode(ids, skip_special_tokens=False),
        # by id: 0.23 does not skip tokens that are special and spelled otherwise after normalization
        "skipped": peer.decode([id for id in ids if id not in specials], skip_special_tokens=False),
    }


def compare(got: dict, expected: dict, what: object) -> None:
    assert got.pop("streamed") == got["text"], (what, "streamed")
    assert got == expected, f"{what!r}\n got {got}\nwant {expected}"


def special_tokens(peer: Tokenizer) -> dict[int, str]:
    return {id: token.content for id, token in peer.get_added_tokens_decoder().items() if token.special}


def check(product: Product, peer: Tokenizer, text: str, add: bool, special: bool) -> None:
    specials = special_tokens(peer)
    if not special and type(peer.model).__name__ in ("Unigram", "WordLevel") and any(
            content in text for content in specials.values()):
        return  # meant: these models match special tokens in plain text there, never here
    peer.encode_special_tokens = not special
    ids = peer.encode(text, add_special_tokens=add).ids
    compare(product.ask(text=text, add=add, special=special), decoded(peer, ids, set(specials)), (text, add, special))


def fuzz(program: str, path: str, examples: int) -> bool:
    peer = Tokenizer.from_file(path)
    peer.no_truncation()  # as in transformers
    peer.no_padding()
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

    common = settings(max_examples=examples, deadline=None, database=None, derandomize=True,
                      suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink))

    @common
    @given(texts(words), st.booleans(), st.booleans())
    def property_(text: str, add: bool, special: bool) -> None:
        check(product, peer, text, add, special)

    specials = set(special_tokens(peer))

    @settings(parent=common, max_examples=examples // 4)
    @given(st.lists(st.sampled_from(sorted(peer.get_vocab().values())), max_size=30))
    def decodes(ids: list[int]) -> None:
        compare(product.ask(ids=ids), decoded(peer, ids, specials), ids)

    for run in (property_, decodes):
        try:
            run()
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
