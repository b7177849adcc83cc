"""Several agents, each with a system prompt of its own, work on one shared pile of cards.

A card is computed once for each agent that uses it (mode anchored); every further task of that agent reuses it.

python3 examples/multi_agent.py
"""

from cards import GREEDY, MODEL, cardfile, pile, show

from quire import ChunkedLLM, ChunkType


def main():
    cards, questions = pile(23, 12, "one_hop", "two_hop")
    with ChunkedLLM(MODEL) as llm:
        agents = {
            name: llm.register_chunk(prompt, ChunkType.SYSTEM_PROMPT, metadata={"agent": name})
            for name, prompt in zip(("keeper", "clerk", "registrar"), cardfile.SYSTEMS, strict=False)
        }
        shared_ids = llm.register_chunks((card, ChunkType.CONTEXT) for card in cards)
        tasks = [(q, llm.register_chunk(q.question, ChunkType.QUERY)) for q in questions[:4]]
        for name, system_id in agents.items():
            before = llm.stats()["tokens_computed"]
            requests = [
                {"system_chunk_id": system_id, "context_chunk_ids": shared_ids, "query_chunk_id": query_id} for _, query_id in tasks
            ]
            outputs = llm.batch_generate_from_chunks(requests, GREEDY)
            computed = llm.stats()["tokens_computed"] - before
            asked = sum(output.usage.prompt_tokens for output in outputs)
            print(f"{name}: {computed} tokens computed for prompts of {asked}")
            for (question, _), output in zip(tasks, outputs, strict=True):
                show(question.question, output)
                assert output.text.strip() == question.answer, f"want {question.answer}"
            assert computed < asked / 2
        card = llm.get_chunk(shared_ids[0])
        print(f"a card has {card.num_variants} variants of {card.token_count} tokens, {card.memory_bytes} bytes")


if __name__ == "__main__":
    main()
