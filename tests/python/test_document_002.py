"""Every Python block of the document that asked for chunks (data/document_002.md) runs as it is written, one after the other.

These rules fill in what the document leaves open. Its package is `quire`, and its model is the demo model. A made-up id
is that of a chunk of the kind that its place asks for. `sampling_params={...}` asks for a few tokens, and `(...)` names
a composition. Names that it uses without having said what they are (`documents`, `search_engine`, ...) are the
application's: `registered` and `application` below.
"""
import pathlib
import types

import quire
from documents import python_blocks

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = pathlib.Path(__file__).parent / "data" / "document_002.md"


def contexts(match):
    """Returns as many context ids as there are made-up ids."""
    return f"{match[1]}[{', '.join(['doc_id', 'django_id'][: match[2].count(',') + 1])}]"


FILLED_IN = [
    (r"from nanovllm import", "from quire import"),
    (r'"path/to/model"', repr(str(ROOT / "models" / "cardfile" / "model"))),
    (r'(system_chunk_id"?[=:] ?)"[^"]*"', r"\1system_id"),
    (r'(query_chunk_id"?[=:] ?)"[^"]*"', r"\1query_id"),
    (r'(context_chunk_ids"?[=:] ?)\[("[^\]]*)\]', contexts),
    (r"sampling_params=\{\.\.\.\}", 'sampling_params={"max_tokens": 8}'),
    (r"\(\.\.\.\)", "(system_id, [doc_id], query_id)"),
]


def registered(llm):
    """Registers chunks by the names that the document has for them; those that it registers itself, as it does. Some blocks
    delete them."""
    system = llm.register_chunk("You are a helpful AI assistant specialized in Python.", "system_prompt")
    query = llm.register_chunk("What are Python decorators?", "query")
    return {
        "system_id": system,
        "doc_id": llm.register_chunk("Python is a high-level programming language...", "context"),
        "django_id": llm.register_chunk("Django is a web framework...", "context"),
        "query_id": query,
        "chunk_id": llm.register_chunk("An outdated page.", "context"),
        "rag_system_prompt_id": system,
        "assistant_prompt_id": system,
        "task_query_id": query,
    }


def application():
    documents = [{"content": "Card 7. Ada trades in apples.", "url": "cards/7", "title": "Ada"}]

    def search(query):
        with_ids = quire.ChunkType.CONTEXT  # as an index does that knows its documents' chunks
        return [{**doc, "chunk_id": names["llm"].register_chunk(doc["content"], with_ids)} for doc in documents]

    names = {error: getattr(quire, error) for error in ("ChunkNotFoundError", "IncompatibleChunksError", "OutOfMemoryError")}
    names |= {
        "documents": documents,
        "search_engine": types.SimpleNamespace(search=search),
        "query": "What does Ada trade in?",
        "format_conversation": lambda messages: "\n".join(messages),
        "messages": ["What does Ada trade in?", "apples."],
        "conv_id": "c1",
        "user_message": "And where does Lars live?",
        "project_description": "Card 3. The project is a catalogue of lighthouses.",
    }
    return names


def test_every_block_of_the_document_runs_as_it_is_written(capsys):
    blocks, names, outputs = python_blocks(DOCUMENT, FILLED_IN), application(), []
    assert len(blocks) == 17
    try:
        for block in blocks:
            if "llm" in names:
                names |= registered(names["llm"])
            names.pop("output", None)
            exec(block, names)
            if "output" in names:
                outputs.append(names["output"])
    finally:
        names["llm"].close()
    assert len(outputs) == 7 and all(output.usage.completion_tokens > 0 for output in outputs)
    assert len(names["outputs"]) == 2 and len(names["agents"]) == 3
    assert names["composition"]["num_levels"] == 4
    printed = capsys.readouterr().out
    assert all(line in printed for line in ("Total tokens: ", "Cascade levels: 4", "Memory usage: ", "'context': ", "Cache hit rate: "))
