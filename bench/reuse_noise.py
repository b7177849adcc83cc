"""Measures how far reuse moves log probabilities and greedy tokens.

    python bench/reuse_noise.py [MODEL] [--contexts 12] [--questions 4] [--seed 1]

Prints one table per arithmetic, one row per way of reuse. Every row asks the same questions over the same token ids,
greedily. A cold prefill of prompt and answer in the same arithmetic, which reuses nothing, then judges each answer:

    max, mean    difference of log probabilities in nats, of the TOP most likely tokens at each place
    tokens       percent of places at which the cold prefill chooses another token
    answers      percent of questions whose text differs from that of a plain prompt
    right        percent of right answers; says little of a model not trained on the card-file world

The last row judges plain prompts by cold prefills in float32: the noise of the arithmetic alone.
"""
import argparse
import itertools
import pathlib
import sys

import numpy as np

import quire
from quire import ChunkedLLM, ChunkType, ContextManager

CARDFILE = pathlib.Path(__file__).resolve().parents[1] / "models" / "cardfile"
GGUF_ARITHMETICS = {"the file's own codes": {}, "bfloat16": {"dtype": "bfloat16"}}
ARITHMETICS = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, weights in 4 bits": {"dtype": "bfloat16", "quantize": "q4g32"},
}
TOP = 20
GREEDY = {"temperature": 0, "max_tokens": 64, "logprobs": TOP}


def card_contexts(seed, count, questions):
    """Returns contexts of the card-file world: a system text, cards, questions with answers."""
    sys.path.insert(0, str(CARDFILE))
    import cardfile

    return list(itertools.islice(cardfile.contexts(seed, cardfile.Spec(questions=questions)), count))


class Prompt:
    """One question over cards that are registered chunks."""

    def __init__(self, llm, context, question):
        self.llm, self.question = llm, question
        self.system_text = context.system
        self.system = llm.register_chunk(context.system, ChunkType.SYSTEM_PROMPT)
        self.cards = [llm.register_chunk(card.text, ChunkType.CONTEXT) for card in context.chunks]
        self.card_ids = [llm.get_chunk(card).token_ids for card in self.cards]
        self.all_ids = [token for ids in self.card_ids for token in ids]
        self.all_cards = llm.register_chunk(self.all_ids, ChunkType.CONTEXT)
        self.query = llm.register_chunk(question.question, ChunkType.QUERY)
        self.ids = llm.get_chunk(self.system).token_ids + self.all_ids + llm.get_chunk(self.query).token_ids

    def plain(self):
        return self.llm.generate(self.ids, GREEDY)

    def sequence(self):
        with self.llm.sequence(self.ids[:-9]) as sequence:
            sequence.append(self.ids[-9:])
            return sequence.generate(GREEDY)

    def composed(self, cards, **how):
        return self.llm.generate_from_chunks(self.system, cards, self.query, GREEDY, **how)

    def context(self, mode, items):
        context = ContextManager(self.llm, mode)
        context.add(self.system_text, kind="system")
        for ids in items:
            context.add(ids)
        output = context.infer(self.question.question, GREEDY)
        context.clear()
        return output


ROWS = {
    "plain prompt, prefix cache": Prompt.plain,
    "Sequence: append, generate": Prompt.sequence,
    "composition, mode exact": lambda prompt: prompt.composed(prompt.cards, mode="exact"),
    "context, mode exact": lambda prompt: prompt.context("exact", prompt.card_ids),
    "composition, all cards in one chunk": lambda prompt: prompt.composed([prompt.all_cards]),
    "context, all cards in one item": lambda prompt: prompt.context("anchored", [prompt.all_ids]),
    "composition, anchored in place": lambda prompt: prompt.composed(prompt.cards, computed_in_place=True),
    "composition, anchored": lambda prompt: prompt.composed(prompt.cards),
    "context, anchored": lambda prompt: prompt.context("anchored", prompt.card_ids),
    "composition, blend 0.15": lambda prompt: prompt.composed(prompt.cards, mode="blend", recompute=0.15),
    "composition, parallel": lambda prompt: prompt.composed(prompt.cards, positions="parallel"),
    "composition, independent": lambda prompt: prompt.composed(prompt.cards, mode="independent"),
}


class Judge:
    """Cold prefills of one model. Answers of the same tokens are computed once."""

    def __init__(self, llm):
        self.llm, self.known = llm, {}

    def log_probabilities(self, output):
        """Computes those at the places of an answer's tokens, float64 [tokens, vocabulary], without reuse."""
        ids = (*output.prompt_token_ids, *output.token_ids)
        if ids not in self.known:
            logits = self.llm.forward(list(ids), reuse="none").logits.astype(np.float64)
            logits = logits[len(output.prompt_token_ids) - 1 : -1]
            logits -= logits.max(axis=1, keepdims=True)
            self.known[ids] = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return self.known[ids]


class Row:
    """Sums over the answers of one row."""

    def __init__(self):
        self.differences, self.grades = [], set()
        self.moved = self.tokens = self.others = self.right = 0

    def count(self, judge, output, plain_text, question):
        cold = judge.log_probabilities(output)
        for place, (token, known) in enumerate(zip(output.token_ids, output.logprobs)):
            self.differences += [abs(value - cold[place, other]) for other, value in known.items()]
            self.moved += int(cold[place].argmax()) != token
        self.tokens += len(output.token_ids)
        self.others += output.text != plain_text
        self.right += output.text.strip() == question.answer
        self.grades.add(output.reuse.grade)

    def line(self, name, questions):
        (grade,) = self.grades
        shares = (self.moved / self.tokens, self.others / questions, self.right / questions)
        noise = f"{max(self.differences):.1e} | {np.mean(self.differences):.1e}"
        return f"| {name} | `{grade}` | {noise} | {' | '.join(f'{100 * share:.1f}' for share in shares)} |"


def measure(llm, reference, contexts):
    """Prints the table of one model. `reference`: the same model in float32."""
    rows = {name: Row() for name in ROWS}
    arithmetic = Row()
    judge, float_judge = Judge(llm), Judge(reference)
    asked = [(context, question) for context in contexts for question in context.questions]
    for context, question in asked:
        prompt = Prompt(llm, context, question)
        plain = prompt.plain()
        for name, ask in ROWS.items():
            output = ask(prompt)
            assert output.prompt_token_ids == prompt.ids, name
            rows[name].count(judge, output, plain.text, question)
        arithmetic.count(float_judge, plain, reference.generate(prompt.ids, GREEDY).text, question)
        llm.clear_chunks()
    print("| way | grade | max | mean | tokens | answers | right |\n|" + " --- |" * 7)
    for name, row in rows.items():
        print(row.line(name, len(asked)))
    print(arithmetic.line("(plain prompt, judged in float32)", len(asked)))
    print(f"\n{len(asked)} questions, {rows['plain prompt, prefix cache'].tokens} tokens of answers")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(CARDFILE / "model"), help="any model for chat")
    parser.add_argument("--contexts", type=int, default=12)
    parser.add_argument("--questions", type=int, default=4, help="of each context")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    contexts = card_contexts(arguments.seed, arguments.contexts, arguments.questions)
    machine = quire.doctor()
    print(f"quire {quire.__version__}, {machine['cpu']}, kernels {machine['isa']['chosen']}")
    with quire.LLM(arguments.model, dtype="float32", prefix_cache=False) as reference:
        arithmetics = GGUF_ARITHMETICS if arguments.model.endswith(".gguf") else ARITHMETICS
        for name, options in arithmetics.items():
            print(f"\n{name}\n")
            with ChunkedLLM(arguments.model, **options) as llm:
                measure(llm, reference, contexts)


if __name__ == "__main__":
    main()
