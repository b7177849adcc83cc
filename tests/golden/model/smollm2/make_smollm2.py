"""Greedy answers of SmolLM2-135M-Instruct to 20 prompts, by transformers on the dequantised weights in float32.

    python make_smollm2.py PATH/SmolLM2-135M-Instruct.Q4_1.gguf   # torch 2.15.0, transformers 5.23.0, accelerate

Writes golden.json: per prompt its ids, the next ids (greedy, cut after the end of the turn) and the smallest
distance between the best two logits on the way; std of the logits. One more prompt, "deep", asks about a document of
some 2,000 tokens; of the row after it every 512th logit is kept. Only ids are kept, no text and no weights.
"""

import json
import pathlib
import sys

import torch
import transformers

STEPS = 48
LOGIT_STRIDE = 512
LONG_DOCUMENT = pathlib.Path(__file__).parents[4] / "docs" / "samples" / "lighthouse.md"
END_OF_TURN = 2
QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "Write one sentence about the sea.",
    "How many legs does a spider have?",
    "Explain photosynthesis to a child.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "List the days of the week.",
    "What is 12 plus 7?",
    "Give me a short recipe for pancakes.",
    "Why is the sky blue?",
    "What does a librarian do?",
    "Describe a cat in ten words.",
    "What is the largest planet of the solar system?",
    "Finish the sentence: Once upon a time,",
    "What is the opposite of hot?",
    "How do bees make honey?",
    "Name a famous painter and one of his works.",
    "What is a computer?",
]
DOCUMENT = (
    "The lighthouse of Arden was built in 1842 from grey granite. Its keeper, Tomas Hale, lit the lamp every evening "
    "for thirty-one years. In the winter of 1871 a storm broke the lantern glass, and Hale held a sail cloth over the "
    "lamp until the fleet was safe in the harbour. The town gave him a silver watch. "
) * 6


@torch.no_grad()
def answer(model, ids):
    """Returns the golden entry of a prompt, and the logits of its last row."""
    out, gap, first, cache, step = [], float("inf"), None, None, torch.tensor([ids])
    while len(out) < STEPS and END_OF_TURN not in out:
        result = model(step, past_key_values=cache, use_cache=True)
        cache, logits = result.past_key_values, result.logits[0, -1]
        first = logits if first is None else first
        best = logits.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        out.append(int(best.indices[0]))
        step = torch.tensor([[out[-1]]])
    return dict(ids=ids, greedy=out, gap=round(gap, 5), std=round(float(logits.std()), 3)), first


def main():
    path = pathlib.Path(sys.argv[1])
    source = dict(gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **source).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **source)

    def entry_of(messages):
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        entry, logits = answer(model, tokenizer(text, add_special_tokens=False)["input_ids"])
        print(f"{entry['gap']:.4f} {len(entry['ids'])} {tokenizer.decode(entry['greedy'])!r}", flush=True)
        return entry, logits

    questions = QUESTIONS + [DOCUMENT + "\n\nWhat did the town give the keeper?"]
    prompts = [entry_of([dict(role="user", content=question)])[0] for question in questions]
    system = "Answer briefly from this text.\n\n" + LONG_DOCUMENT.read_text(encoding="utf-8")
    question = "When was the light lit for the first time?"
    deep, logits = entry_of([dict(role="system", content=system), dict(role="user", content=question)])
    deep.update(logit_stride=LOGIT_STRIDE, logits=logits[::LOGIT_STRIDE].tolist(), logits_std=float(logits.std()))
    golden = dict(torch=torch.__version__, transformers=transformers.__version__, prompts=prompts, deep=deep)
    (pathlib.Path(__file__).parent / "golden.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
