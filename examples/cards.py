"""Shares the demo model, and a pile of cards whose questions have known answers, between the examples."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "cardfile" / "model"
sys.path.insert(0, str(MODEL.parent))

import cardfile  # noqa: E402

GREEDY = {"temperature": 0, "max_tokens": 32}
KEEPER = cardfile.SYSTEMS[0]


def pile(seed, cards, *types):
    """Returns a pile of cards and its questions of these types: objects with .question, .answer and .support."""
    context = next(cardfile.contexts(seed, cardfile.Spec(chunks=(cards, cards), questions=64)))
    return [card.text for card in context.chunks], [q for q in context.questions if q.type in types]


def show(question, output):
    """Prints one line: the question, its answer, and how much of the prompt was reused."""
    usage = output.usage
    print(f"  {question} {output.text.strip()}  [{usage.cached_tokens} of {usage.prompt_tokens} tokens reused, {output.reuse.grade}]")
