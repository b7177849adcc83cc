"""Greedy answers of SmolLM2-135M-Instruct to 20 prompts, by transformers on the dequantised weights in float32.

    python make_smollm2.py PATH/SmolLM2-135M-Instruct.Q4_1.gguf   # torch 2.15.0, transformers 5.23.0, accelerate

Writes golden.json: per prompt its ids, the next ids (greedy, cut after the end of the turn) and the smallest
distance between the best two logits on the way; std of the logits. Only ids are kept, no text and no weights.
"""

import json
import pathlib
import sys

import torch
import transformers

STEPS = 48
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
def greedy(model, ids):
    out, gap, cache, step = [], float("inf"), None, torch.tensor([ids])
    while len(out) < STEPS and END_OF_TURN not in out:
        result = model(step, past_key_values=cache, use_cache=True)
        cache, logits = result.past_key_values, result.logits[0, -1]
        best = logits.topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        out.append(int(best.indices[0]))
        step = torch.tensor([[out[-1]]])
    return out, gap, float(logits.std())


def main():
    path = pathlib.Path(sys.argv[1])
    source = dict(gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **source).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **source)
    questions = QUESTIONS + [DOCUMENT + "\n\nWhat did the town give the keeper?"]
    prompts = []
    for question in questions:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        path, gap, std = greedy(model, ids)
        prompts.append(dict(ids=ids, greedy=path, gap=round(gap, 5), std=round(std, 3)))
        print(f"{gap:.4f} {len(ids)} {tokenizer.decode(path)!r}", flush=True)
    golden = dict(torch=torch.__version__, transformers=transformers.__version__, prompts=prompts)
    (pathlib.Path(__file__).parent / "golden.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
