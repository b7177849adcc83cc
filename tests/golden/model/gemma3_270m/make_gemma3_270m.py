"""Greedy continuations of Gemma-3-270M by transformers on the dequantised weights of its Q4_K_M file in float32.

    python make_gemma3_270m.py PATH/gemma-3-270m-q4_k_m.gguf   # torch 2.15.0, transformers 5.23.0, gguf

Writes golden.json: per text its ids, the next ids, and the distance between the best two logits at each of them; std of the
logits. The last text is longer than the windows of 512 tokens. Only ids are kept, no text and no weights.
"""

import json
import pathlib
import sys

import torch
import transformers

STEPS = 32
DOCUMENT = pathlib.Path(__file__).parents[4] / "docs" / "samples" / "lighthouse.md"
TEXTS = [
    "The capital of France is",
    "Three primary colours are red,",
    "A spider has eight legs, and an insect has",
    "Once upon a time, in a village by the sea,",
    "def factorial(n):\n    ",
    "Die Hauptstadt von Deutschland ist",
    "1 + 1 = 2\n2 + 2 = 4\n3 + 3 =",
]


@torch.no_grad()
def continuation(model, ids):
    """Returns the golden entry of a text."""
    out, gaps, std, cache, step = [], [], 0.0, None, torch.tensor([ids])
    for _ in range(STEPS):
        result = model(step, past_key_values=cache, use_cache=True)
        cache, logits = result.past_key_values, result.logits[0, -1]
        std = std or float(logits.std())
        best = logits.topk(2)
        gaps.append(round(float(best.values[0] - best.values[1]), 4))
        out.append(int(best.indices[0]))
        step = torch.tensor([[out[-1]]])
    return dict(ids=ids, greedy=out, gaps=gaps, std=round(std, 3))


def main():
    path = pathlib.Path(sys.argv[1])
    source = dict(gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **source).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **source)
    texts = []
    for text in TEXTS + [DOCUMENT.read_text(encoding="utf-8")]:
        texts.append(continuation(model, tokenizer(text)["input_ids"]))
        print(len(texts[-1]["ids"]), min(texts[-1]["gaps"]), tokenizer.decode(texts[-1]["greedy"]), flush=True)
    target = pathlib.Path(__file__).with_name("golden.json")
    target.write_text(json.dumps(dict(texts=texts)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
