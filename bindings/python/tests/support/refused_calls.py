"""Makes one kind of call again and again, with its first, second, ... allocation refused, until none is. Each must raise
OutOfMemoryError and change nothing: the same call answers as before. `refused_calls.py MODEL KIND`, with the
library that test_refused_memory.py preloads. Prints how many allocations were refused."""

import ctypes
import pathlib
import sys
import tempfile

import quire

GREEDY = {"temperature": 0, "max_tokens": 3}
SYSTEM, DOCUMENT, QUESTION = list(range(20, 50)), list(range(60, 100)), [7, 8, 9]


def chunks_of(llm):
    kinds = {"system_prompt": SYSTEM, "context": DOCUMENT, "query": QUESTION}
    return [llm.register_chunk(ids, kind) for kind, ids in kinds.items()]


def calls_of(model):
    """Returns (kind -> a call that answers with something comparable)."""
    llm, plain = quire.ChunkedLLM(model, threads=1), quire.LLM(model, threads=1)
    system, document, query = chunks_of(llm)
    text = "What is the lamp of card 7? " * 3

    def stream():
        return [delta.token_ids for delta in plain.stream(SYSTEM, GREEDY)]

    def register():
        chunk = llm.register_chunk(list(range(200, 240)), "context")
        try:
            return llm.get_chunk(chunk)["token_count"]
        finally:
            llm.delete_chunk(chunk)

    def save():
        with tempfile.TemporaryDirectory() as folder, plain.sequence(SYSTEM) as sequence:
            path = pathlib.Path(folder, "a.qkv")
            sequence.save(path)
            with plain.load_sequence(path) as loaded:
                return loaded.tokens

    def context():
        conversation = quire.ContextManager(plain)
        conversation.add(text)
        answer = conversation.infer("Who?", GREEDY).token_ids
        return answer, len(conversation.items()), conversation.stats()["active_items"], len(conversation.explain())

    def open_and_close():
        with quire.LLM(model, threads=1) as other:
            return other.generate(SYSTEM, GREEDY).token_ids

    return {
        "encode": lambda: plain.tokenizer.encode(text),
        "ask": lambda: plain.generate(text, GREEDY).token_ids,
        "decode": lambda: plain.tokenizer.decode(DOCUMENT),
        "generate": lambda: plain.generate(SYSTEM, GREEDY).token_ids,
        "batch": lambda: [output.token_ids for output in plain.generate([SYSTEM, DOCUMENT], GREEDY)],
        "stream": stream,
        "forward": lambda: plain.forward(SYSTEM, rows="last").logits.tolist(),
        "explain": lambda: repr(plain.explain(SYSTEM)),
        "compose": lambda: llm.generate_from_chunks(system, [document], query, sampling_params=GREEDY).token_ids,
        "register": register,
        "save": save,
        "context": context,
        "open": open_and_close,
    }, plain


def walk(call, plain, growth=1.0):
    refusing = ctypes.CDLL(None)
    refusing.refuse_the.argtypes = [ctypes.c_long]
    refusing.refuse_none.restype = ctypes.c_long
    answer = call()
    call()  # what is made once is there
    held = plain.stats()["blocks_in_use"]
    n, refusals = 1, 0
    while True:
        try:
            refusing.refuse_the(n)
            got = call()
        except quire.OutOfMemoryError:
            got = None
        was_refused = refusing.refuse_none()
        refusals += was_refused
        if got is not None and got != answer:
            raise AssertionError(f"allocation {n}: {got!r} instead of {answer!r}")
        if not was_refused:
            break
        if (again := call()) != answer:
            raise AssertionError(f"after allocation {n}: {again!r} instead of {answer!r}")
        if (now := plain.stats()["blocks_in_use"]) > held:
            raise AssertionError(f"after allocation {n}: {now} blocks in use instead of {held}")
        n = max(n + 1, int(n * growth))
    return refusals


if __name__ == "__main__":
    calls, engine = calls_of(sys.argv[1])
    long_ones = {"save": 1.1, "context": 1.1, "open": 1.5}  # not each of their allocations
    print(walk(calls[sys.argv[2]], engine, long_ones.get(sys.argv[2], 1.0)))
