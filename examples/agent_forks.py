"""An agent forks its conversation for every attempt, rolls back, and edits what it was told in place.

A fork shares all KV of the conversation and computes only what is said in it; an edit computes what stands behind it.

python3 examples/agent_forks.py
"""

from cards import GREEDY, KEEPER, MODEL, cardfile, pile

from quire import LLM


class Agent:
    """Asks about one pile of cards, and counts what each step computes."""

    def __init__(self, llm, cards):
        self.llm, self.computed, self.held = llm, 0, 0
        pieces = [cardfile.system_piece(KEEPER), *(cardfile.chunk_piece(card) for card in cards)]
        ids, self.ends = [], []
        for piece in pieces:
            ids += self.encode(piece)
            self.ends.append(len(ids))  # that of the system text, then of each card
        self.talk = llm.sequence()
        self.step("the cards are read", self.talk, lambda: self.talk.append(ids))

    def encode(self, text):
        return self.llm.tokenizer.encode(text, add_special_tokens=False)

    def step(self, what, sequence, work):
        """Runs `work` on the sequence, and shows how many tokens it computed and how many it found."""
        before = self.llm.stats()["tokens_computed"]
        with sequence.fork() as old:
            result = work()
            found = sequence.diff(old).common_tokens
        computed = self.llm.stats()["tokens_computed"] - before
        self.computed, self.held = self.computed + computed, self.held + len(sequence)
        print(f"  {what:75} [{computed} computed, {found} tokens reused]")
        return result

    def ask(self, sequence, question, wanted):
        def work():
            sequence.append(self.encode(cardfile.question_piece(question)))
            return sequence.generate(GREEDY).text.strip()

        answer = self.step(question, sequence, work)
        print(f"    {answer}")
        assert answer == wanted, f"want {wanted}"

    def edit(self, index, card):
        """Replaces one card by another text, where it stands."""
        start, stop = self.ends[index : index + 2]
        ids = self.encode(cardfile.chunk_piece(card))
        self.step(f"card {index} says now: {card}", self.talk, lambda: self.talk.replace(start, stop, ids))


def main():
    cards, questions = pile(7, 8, "one_hop", "two_hop")
    with LLM(MODEL) as llm:
        agent = Agent(llm, cards)

        print("each question in a fork of its own:")
        for question in questions[:4]:
            with agent.talk.fork() as branch:
                agent.ask(branch, question.question, question.answer)

        print("one after the other, then rolled back:")
        mark = agent.talk.checkpoint()
        for question in questions[4:6]:
            agent.ask(agent.talk, question.question, question.answer)
        agent.talk.rollback(mark)
        agent.ask(agent.talk, questions[6].question, questions[6].answer)
        agent.talk.rollback(mark)

        print("a card is edited in place; a fork from before remembers what it said:")
        question = questions[0]
        index = next(i for i in question.support if question.answer.rstrip(".") in cards[i])
        with agent.talk.fork() as remembers:
            agent.edit(index, cards[index].replace(question.answer.rstrip("."), "a lantern"))
            agent.ask(agent.talk, question.question, "a lantern.")
            agent.ask(remembers, question.question, question.answer)
        agent.talk.close()
        print(f"{agent.computed} tokens computed for steps that hold {agent.held}")
        assert agent.computed < agent.held / 3


if __name__ == "__main__":
    main()
