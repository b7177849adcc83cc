"""Writes sentencepiece/*.model (small BPE and Unigram models) and cases.json: what the sentencepiece
library makes of awkward texts with them.

    pip install sentencepiece==0.2.3
    python make_sentencepiece.py
"""
import io
import json
import pathlib
import random

import sentencepiece

from awkward_texts import AWKWARD

assert sentencepiece.__version__ == "0.2.3", sentencepiece.__version__
FOLDER = pathlib.Path(__file__).parent / "sentencepiece"

MODELS = {
    "bpe": {"model_type": "bpe", "vocab_size": 420, "byte_fallback": True, "split_digits": True,
            "remove_extra_whitespaces": False, "normalization_rule_name": "identity"},
    "unigram": {"model_type": "unigram", "vocab_size": 160, "normalization_rule_name": "identity",
                "user_defined_symbols": ["<sep>", "\u2581\u2581"]},
    "no_prefix": {"model_type": "bpe", "vocab_size": 150, "add_dummy_prefix": False,
                  "normalization_rule_name": "identity", "control_symbols": ["<mask>"]},
}


def train(options: dict) -> bytes:
    from make_goldens import LINES
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, character_coverage=0.98, minloglevel=2,
        num_threads=1, hard_vocab_limit=False, **options)
    return model.getvalue()


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    rng = random.Random(0)
    cases = {}
    for name, options in MODELS.items():
        blob = train(options)
        (FOLDER / f"{name}.model").write_bytes(blob)
        model = sentencepiece.SentencePieceProcessor(model_proto=blob)
        rows = []
        for text in AWKWARD:
            if any(special in text for special in ("<s>", "</s>", "<unk>", "<mask>")):
                continue  # the library reads these as text
            ids = model.encode(text)
            rows.append([text, ids, model.decode(ids)])
        for _ in range(20):
            ids = [rng.randrange(1, model.get_piece_size()) for _ in range(rng.randrange(1, 16))]
            rows.append([None, ids, model.decode(ids)])
        cases[name] = rows
    text = json.dumps(cases, ensure_ascii=True, separators=(",", ":"))
    (FOLDER / "cases.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
