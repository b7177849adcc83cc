"""Retrieval: cards are registered once; each question composes the few cards that a search finds.

python3 examples/rag.py
"""

import re

from cards import GREEDY, KEEPER, MODEL, pile, show

from quire import ChunkedLLM, ChunkType


def names(text):
    """Returns names and card numbers, by which the search goes. The first word of a sentence may be any word."""
    return set(re.findall(r"\d+|(?<=[^.?] )[A-Z]\w+", text))


def search(question, documents):
    """Finds cards that mention a name of the question, and those that mention one of theirs: relations lead to them."""
    wanted = names(question)
    for _ in range(2):
        found = [doc for doc in documents if wanted & set(re.findall(r"\w+", doc["content"]))]
        wanted = set.union(wanted, *(names(doc["content"]) for doc in found))
    return found


def main():
    cards, questions = pile(11, 24, "one_hop", "two_hop")
    documents = [{"content": text, "title": f"card {index}"} for index, text in enumerate(cards)]
    with ChunkedLLM(MODEL) as llm:
        system_id = llm.register_chunk(KEEPER, ChunkType.SYSTEM_PROMPT)
        chunk_ids = llm.register_chunks(
            {"content": doc["content"], "chunk_type": ChunkType.CONTEXT, "metadata": {"title": doc["title"]}} for doc in documents
        )
        for doc, chunk_id in zip(documents, chunk_ids, strict=True):
            doc["chunk_id"] = chunk_id
        print(f"{len(documents)} cards registered, {llm.stats()['tokens_computed']} tokens computed")
        reused = 0
        for question in questions:
            relevant = search(question.question, documents)
            output = llm.generate_from_chunks(
                system_chunk_id=system_id,
                context_chunk_ids=[doc["chunk_id"] for doc in relevant],
                query_chunk_id=llm.register_chunk(question.question, ChunkType.QUERY),
                sampling_params=GREEDY,
            )
            show(question.question, output)
            assert output.text.strip() == question.answer, f"want {question.answer}"
            reused += output.usage.cached_tokens
        assert reused > 0
        stats = llm.get_chunk_stats()
        print(f"{reused} tokens reused, {stats.cache_hits} prefills avoided, {stats.memory_used_mb:.1f} MB of chunks")


if __name__ == "__main__":
    main()
