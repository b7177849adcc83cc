"""Finds the layers that have to see the cards as a whole, for `recompute_layers`.

    python bench/find_band.py [MODEL] [--contexts 6] [--cards 14] [--type split_adj] [--seed 1]

Asks all questions of one type over contexts of the card-file world that have at most so many cards. Prints the error with
the KV of one layer alone exact, for each layer, and the band.
"""
import argparse
import itertools
import sys

from reuse_noise import CARDFILE

from quire import ChunkedLLM

MOST_CONTEXTS = 1000  # that are looked through


def card_sets(seed, count, most_cards, kind):
    """Returns the system text, sets of cards, and the questions of each."""
    sys.path.insert(0, str(CARDFILE))
    import cardfile

    cards, questions = [], []
    for context in itertools.islice(cardfile.contexts(seed, cardfile.Spec()), MOST_CONTEXTS):
        asked = [question.question for question in context.questions if question.type == kind]
        if asked and len(context.chunks) <= most_cards:
            cards.append([chunk.text for chunk in context.chunks])
            questions.append(asked)
        if len(cards) == count:
            return context.system, cards, questions
    sys.exit(f"error: {MOST_CONTEXTS} contexts have {len(cards)} with questions {kind} and at most {most_cards} cards, not {count}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", default=str(CARDFILE / "model"))
    parser.add_argument("--contexts", type=int, default=6)
    parser.add_argument("--cards", type=int, default=14)
    parser.add_argument("--type", default="split_adj")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    system, cards, questions = card_sets(arguments.seed, arguments.contexts, arguments.cards, arguments.type)
    with ChunkedLLM(arguments.model, dtype="float32") as llm:
        found = llm.find_band(cards, questions, system_prompt=system)
    print(f"{sum(map(len, questions))} questions; none exact: {found['base']:.3f} nats")
    for layer, error in enumerate(found["layers"]):
        print(f"layer {layer:3}  {error:.3f}")
    print(f"band {found['band']}")


if __name__ == "__main__":
    main()
