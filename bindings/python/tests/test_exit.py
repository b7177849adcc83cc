"""How an interpreter ends while other threads are at work: by itself, at once, and without a word of the binding's own."""

import subprocess
import sys
import textwrap

import pytest
from conftest import MODEL

SECONDS = 60  # a limit for a program that hangs
TRIES = 20
ENDLESS = '{"max_tokens": 2000, "ignore_eos": True}'


def end_of(program):
    """Runs a program whose last line was printed before the interpreter ended; its exit code, stdout and stderr."""
    start = f"import quire, threading, time\nmodel = {str(MODEL)!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(program)], capture_output=True, text=True, timeout=SECONDS
    )
    return done.returncode, done.stdout, done.stderr


def assert_ends_quietly(program):
    code, out, err = end_of(program)
    assert (code, out) == (0, "end\n"), err
    assert err == ""


# Programs of a daemon thread that runs when the program ends. `llm` is open; `busy` is to be set once the
# thread is at work.
AT_WORK = {
    "generates": f"busy.set(); llm.generate([10, 11], {ENDLESS})",
    "generates in a function": f"""
        def answer():
            busy.set()
            return llm.generate([10, 11], {ENDLESS})
        answer()
    """,
    "generates again and again": f"""
        while True:
            busy.set()
            try:
                llm.generate([10, 11], {ENDLESS})
            except quire.QuireError:
                pass
    """,
    "streams": f"""
        for delta in llm.stream([10, 11], {ENDLESS}):
            busy.set()
    """,
    "asks for numbers": """
        while True:
            busy.set()
            try:
                llm.stats()
            except quire.QuireError:
                pass
    """,
    "opens models": """
        while True:
            busy.set()
            kept = quire.LLM(model, threads=1)
    """,
    "registers": """
        while True:
            busy.set()
            llm.register_chunk(list(range(10, 1500)), "context")
            llm.clear_chunks()
    """,
    "grows a sequence": """
        kept = llm.sequence([10, 11])
        while True:
            busy.set()
            kept.generate({"max_tokens": 8, "ignore_eos": True})
    """,
    "listens to an answer": f"""
        context = quire.ContextManager(llm)
        context.infer("Who?", {ENDLESS}, on_text=lambda text: busy.set())
    """,
    "tokenizes": """
        text = "Ada lives in Thornby. " * 5000
        while True:
            busy.set()
            llm.tokenizer.encode(text)
    """,
    "holds all it has got": """
        kept = [llm.tokenizer, llm.sequence([5, 6]), llm.stream([5, 6]), quire.ContextManager(llm), quire.SamplingParams()]
        busy.set()
        time.sleep(1000)
    """,
}


@pytest.mark.parametrize("work", AT_WORK)
def test_a_program_ends_while_a_daemon_thread(work):
    body = textwrap.indent(textwrap.dedent(AT_WORK[work]).strip(), "    ")
    assert_ends_quietly(f"""\
llm = quire.ChunkedLLM(model, threads=1)
busy = threading.Event()
def work():
{textwrap.indent(body, "")}
threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
busy.wait()
time.sleep(0.2)
print("end", flush=True)
""")


def ends_until(program, wanted):
    """Runs a program until one of its ends has printed what is wanted; returns what the last one has printed.

    A daemon thread has its turn before the end, or it has none.
    """
    for _ in range(TRIES):
        code, out, err = end_of(program)
        assert code == 0 and "ClosedError" not in err
        if wanted in out + err:
            break
    return out, err


def test_a_wait_that_the_end_interrupts_is_a_closed_error():
    out, err = ends_until(f"""\
import atexit, os
llm = quire.LLM(model, threads=1)
def work():
    try:
        llm.generate([10, 11], {ENDLESS})
    except quire.ClosedError as error:
        os.write(1, f"{{error}}".encode())
threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
""", "closed")
    assert err == "" and "closed" in out


def test_other_errors_of_threads_are_still_shown_at_the_end():
    _, err = ends_until("""\
import atexit
llm = quire.LLM(model, threads=1)
def work():
    try:
        llm.generate([10, 11], {"max_tokens": 2000, "ignore_eos": True})
    except quire.ClosedError:
        raise RuntimeError("of the program's own") from None
thread = threading.Thread(target=work, daemon=True)
atexit.register(lambda: None)
thread.start()
time.sleep(0.3)
import quire.ending
atexit.unregister(quire.ending.close_all)
atexit.register(lambda: (quire.ending.close_all(), thread.join(1)))
""", "RuntimeError")
    assert "RuntimeError: of the program's own" in err


def test_what_was_left_open_says_nothing_at_the_end():
    assert_ends_quietly("""\
llm = quire.ChunkedLLM(model, threads=1)
chunk = llm.register_chunk("Card 4.", "context")
stream, sequence = llm.stream([5, 6]), llm.sequence([5, 6])
cycle = [llm, stream, sequence]
cycle.append(cycle)
print("end", flush=True)
""")


def test_chunks_written_behind_are_on_the_disk_after_the_end(tmp_path):
    assert_ends_quietly(f"""\
llm = quire.ChunkedLLM(model, threads=1, store={str(tmp_path / "store")!r}, write_through=False)
llm.register_chunk("Card 4. Ada keeps a goose.", "context")
threading.Thread(target=lambda: time.sleep(1000), args=(), daemon=True).start()
print("end", flush=True)
""")
    import quire

    assert len(quire.Store(tmp_path / "store").ls("chunk")) == 1
