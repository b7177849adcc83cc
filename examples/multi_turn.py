"""A conversation: every turn is appended as a chunk of its own, so a turn computes its question and nothing else.

python3 examples/multi_turn.py
"""

from cards import GREEDY, KEEPER, MODEL, pile, show

from quire import ChunkedLLM, ChunkType


def main():
    cards, questions = pile(5, 12, "one_hop", "two_hop")
    with ChunkedLLM(MODEL) as llm:
        system_id = llm.register_chunk(KEEPER, ChunkType.SYSTEM_PROMPT)
        history_ids = llm.register_chunks((card, ChunkType.CONTEXT) for card in cards)
        print(f"{len(cards)} cards registered, {llm.stats()['tokens_computed']} tokens computed")
        for turn, question in enumerate(questions[:6]):
            query_id = llm.register_chunk(question.question, ChunkType.QUERY)
            output = llm.generate_from_chunks(
                system_chunk_id=system_id,
                context_chunk_ids=history_ids,
                query_chunk_id=query_id,
                sampling_params=GREEDY,
            )
            show(question.question, output)
            assert output.text.strip() == question.answer, f"want {question.answer}"
            query_ids = llm.get_chunk(query_id).token_ids
            assert output.usage.prompt_tokens - output.usage.cached_tokens == len(query_ids)
            history_ids.append(
                llm.register_chunk(query_ids + output.token_ids, ChunkType.CONTEXT, metadata={"turn": turn})
            )
        turns = [chunk for chunk in llm.list_chunks(ChunkType.CONTEXT) if "turn" in chunk.metadata]
        print(f"{len(turns)} turns in the history, {llm.get_chunk_stats().cache_hits} prefills avoided")


if __name__ == "__main__":
    main()
