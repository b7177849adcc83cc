"""A session is saved, its process ends, and another process goes on: the same answers, and nothing computed of what was there.

Context items and turns lie in a store, a sequence in one file. The second process is this program again, with a flag.

python3 examples/session_restart.py
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from cards import GREEDY, KEEPER, MODEL, cardfile, pile

from quire import LLM, ContextManager

CARDS, QUESTIONS = pile(11, 10, "one_hop", "two_hop")


def ask(ctx, question):
    """Returns the answer's ids; shows how much of the session was there."""
    output = ctx.infer(question.question, GREEDY)
    usage = output.usage
    print(f"  {question.question} {output.text.strip()}  [{usage.cached_tokens} of {usage.prompt_tokens} tokens reused]")
    return output.token_ids


def go_on(ctx, talk):
    """Runs the last steps of both processes: their answers must not differ."""
    answers = [ask(ctx, question) for question in QUESTIONS[2:5]]
    return [*answers, talk.generate({"seed": 5, "max_tokens": 16, "ignore_eos": True}).token_ids]


def begin(folder):
    with LLM(MODEL, store=folder / "store") as llm:
        ctx = ContextManager(llm)
        ctx.add(KEEPER, kind="system")
        for card in CARDS:
            ctx.add(card, tags=["card"])
        ask(ctx, QUESTIONS[0])
        ask(ctx, QUESTIONS[1])
        ctx.deactivate(next(item.id for item in ctx if "card" in item.tags))
        ctx.save()

        talk = llm.sequence(llm.tokenizer.encode(cardfile.system_piece(KEEPER) + cardfile.chunk_piece(CARDS[0])))
        talk.generate({"seed": 5, "max_tokens": 16, "ignore_eos": True})
        talk.save(folder / "talk.qkv")

        session = {"items": [item.id for item in ctx], "active": [item.active for item in ctx]}
        print(f"process 1: {len(ctx)} items saved, {llm.stats()['tokens_computed']} tokens computed")
        (folder / "session.json").write_text(json.dumps({**session, "answers": go_on(ctx, talk)}))


def resume(folder):
    session = json.loads((folder / "session.json").read_text())
    with LLM(MODEL, store=folder / "store") as llm:
        ctx = ContextManager(llm)
        for item in session["items"]:
            ctx.restore(item)
        talk = llm.load_sequence(folder / "talk.qkv")
        computed = llm.stats()["tokens_computed"]
        print(f"process 2: {len(ctx)} items restored, {computed} tokens computed for what was there")
        assert computed == 0 and [item.active for item in ctx] == session["active"]
        assert go_on(ctx, talk) == session["answers"]
        print("the same answers, token by token")


def main():
    if sys.argv[1:2] == ["--resume"]:
        return resume(pathlib.Path(sys.argv[2]))
    with tempfile.TemporaryDirectory() as name:
        begin(pathlib.Path(name))
        sys.stdout.flush()
        return subprocess.run([sys.executable, __file__, "--resume", name], check=True)


if __name__ == "__main__":
    main()
