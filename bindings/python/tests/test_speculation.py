"""Speculation from Python: its options, and that no id changes. Oracle: the same calls without it."""

import warnings

import pytest
from conftest import MODEL as LARGE
from conftest import some_ids

import quire

MODEL = LARGE.parent / "draft"
GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 40}
WAYS = [GREEDY, {**GREEDY, "temperature": 1.2, "seed": 3}, {**GREEDY, "frequency_penalty": 0.7, "logprobs": 2}]


def repeat(token_ids, max_tokens):
    """Guesses the last token again."""
    return [token_ids[-1]] * max_tokens


METHODS = {
    "ngram": "ngram",
    "ngram dict": {"method": "ngram", "max_tokens": 5, "min_match": 1, "adapt": False},
    "suffix": {"method": "suffix", "adapt": False},
    "draft": {"method": "draft", "model": MODEL, "max_tokens": 3, "adapt": False},
    "tree": {"method": "draft", "model": MODEL, "max_tokens": 3, "width": 3, "adapt": False},
    "custom": {"method": "custom", "propose": repeat, "adapt": False},
}


@pytest.fixture(scope="module")
def expected():
    with quire.LLM(MODEL, threads=1) as llm:
        return answers(llm)


def answers(llm):
    outputs = llm.generate([some_ids(50, seed) for seed in range(3)], WAYS)
    return [(out.token_ids, out.text, out.logprobs) for out in outputs]


CPU_ONLY = ("draft", "tree")  # methods that a GPU refuses by name


def methods(*names):
    return [pytest.param(name, marks=pytest.mark.cpu_only) if name in CPU_ONLY else name for name in names]


@pytest.mark.parametrize("method", methods(*METHODS))
def test_no_id_changes(method, expected):
    with quire.LLM(MODEL, threads=1, speculate=METHODS[method]) as llm:
        assert answers(llm) == expected
        assert answers(llm) == expected
        stats = llm.stats()
    assert stats["tokens_drafted"] > 0 and stats["speculative_steps"] > 0
    assert 0 <= stats["tokens_accepted"] <= stats["tokens_drafted"]
    assert stats["blocks_in_use"] == 0
    assert (stats["branches_linked"] > 0) == (method == "tree")


@pytest.mark.cpu_only
def test_usage_counts_guesses():
    with quire.LLM(MODEL, threads=1, speculate=METHODS["draft"]) as llm:
        out = llm.generate(some_ids(30), **GREEDY)
        none = [llm.generate(some_ids(30), **GREEDY, speculate=off).usage.drafted_tokens for off in (False, 0)]
        bounded = llm.generate(some_ids(30), **GREEDY, speculate=1)
        assert llm.generate(some_ids(30), **GREEDY, speculate=True).usage.drafted_tokens == out.usage.drafted_tokens
    assert out.usage.accepted_tokens == out.usage.drafted_tokens > 25  # the model guesses for itself
    assert none == [0, 0]
    assert 0 < bounded.usage.drafted_tokens <= 20


def test_chunks_are_looked_through():
    text = "Card 7. Ada trades in apples. They live in Foxley."
    made = []
    for speculate in (None, {"method": "ngram", "adapt": False}):
        with quire.ChunkedLLM(LARGE, threads=2, speculate=speculate) as llm:
            keeper = llm.register_chunk("You are the keeper of a card file.", quire.ChunkType.SYSTEM_PROMPT)
            card = llm.register_chunk(text, quire.ChunkType.CONTEXT)
            question = llm.register_chunk("Repeat card 7.", quire.ChunkType.QUERY)
            out = llm.generate_from_chunks(keeper, [card], question, {"temperature": 0, "max_tokens": 24})
            fork = llm.generate(some_ids(20), temperature=1, seed=1, n=3, max_tokens=12, ignore_eos=True)
            made.append((out.token_ids, [each.token_ids for each in fork.outputs]))
    assert made[0] == made[1]


def walked(llm):
    """Returns what a sequence says while it forks, rolls back and goes on."""
    said = []
    with llm.sequence(some_ids(30)) as sequence:
        said.append(sequence.generate(WAYS[1] | {"max_tokens": 13}).token_ids)
        mark = sequence.checkpoint()
        with sequence.fork() as other:
            said += [other.generate(WAYS[2]).token_ids, sequence.generate(WAYS[1]).token_ids, other.tokens]
        sequence.rollback(mark)
        said += [sequence.generate(GREEDY).token_ids, sequence.tokens]
    return said, llm.stats()["blocks_in_use"]


@pytest.mark.parametrize("method", methods("ngram dict", "draft", "tree", "custom"))
def test_sequences_fork_and_roll_back_as_without_guesses(method):
    with quire.LLM(MODEL, threads=1, block_tokens=8) as llm:
        want = walked(llm)
    with quire.LLM(MODEL, threads=1, block_tokens=8, speculate=METHODS[method]) as llm:
        assert walked(llm) == want
        assert llm.stats()["tokens_drafted"] > 0


@pytest.mark.cpu_only
def test_a_smaller_model_guesses_for_a_larger_one():
    prompt = "Card 7. Ada trades in apples. They live in Foxley. Card 9."
    with quire.LLM(LARGE, threads=2) as llm:
        want = llm.generate(prompt, temperature=0, max_tokens=30).token_ids
    with quire.LLM(LARGE, threads=2, speculate={"method": "draft", "model": MODEL, "adapt": False}) as llm:
        out = llm.generate(prompt, temperature=0, max_tokens=30)
    assert out.token_ids == want and out.usage.accepted_tokens > 0


def test_a_threshold_is_graded():
    rule = {"method": "custom", "propose": lambda ids, most: [7] * most, "adapt": False,
            "acceptance": {"rule": "threshold", "p": 1e-300}}
    with quire.LLM(MODEL, threads=1, speculate=rule) as llm:
        out = llm.generate(some_ids(9), **GREEDY)
    assert out.reuse.grade == "approximate" and out.token_ids.count(7) >= 30


@pytest.mark.parametrize(
    ("speculate", "error", "says"),
    [
        ({"method": "ngram", "depth": 3}, ValueError, "depth"),
        ({"method": "turbo"}, ValueError, "turbo"),
        ({"method": "ngrams"}, ValueError, "ngrams.*did you mean ngram"),
        ({"method": "custum", "propose": repeat}, ValueError, "custum.*did you mean custom"),
        ({"method": "ngram", "propose": repeat}, ValueError, "propose"),
        ({"method": "ngram", "max_tokens": {3}}, ValueError, "max_tokens"),
        ({"max_tokens": 3}, ValueError, "method"),
        ("", ValueError, "speculate"),
        (3, TypeError, "speculate"),
        ({"method": "ngram", "max_tokens": 0}, ValueError, "max_tokens"),
        ({"method": "custom"}, TypeError, "propose"),
        ({"method": "custom", "propose": 3}, TypeError, "propose"),
        ({"method": "draft"}, ValueError, "model"),
        ({"method": "draft", "model": MODEL, "width": 9}, ValueError, "width"),
        ({"method": "draft", "model": "/nowhere/at/all"}, OSError, "nowhere"),
        ({"method": "ngram", "acceptance": {"rule": "luck"}}, ValueError, "acceptance"),
    ],
)
def test_wrong_options_are_named(speculate, error, says):
    with pytest.raises(error, match=says):
        quire.LLM(MODEL, speculate=speculate)


def test_a_function_that_fails_guesses_nothing(monkeypatch, expected):
    heard = []
    monkeypatch.setattr("sys.unraisablehook", heard.append)

    def fails(token_ids, max_tokens):
        raise RuntimeError("no guess")

    for propose in (fails, lambda *_: None, lambda *_: ["a"]):
        with quire.LLM(MODEL, threads=1, speculate={"method": "custom", "propose": propose, "adapt": False}) as llm:
            assert answers(llm) == expected
            assert llm.stats()["tokens_drafted"] == 0
    assert heard


def test_an_llm_that_nobody_closes_ends(expected):
    llm = quire.LLM(MODEL, threads=1, speculate=METHODS["custom"])
    stream = llm.stream(some_ids(5), **{**GREEDY, "max_tokens": 400})
    next(iter(stream))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del llm, stream  # ends without waiting for ever
    assert expected


@pytest.mark.parametrize(
    ("speculate", "says"),
    [(METHODS["draft"], "draft"), ({"method": "custom", "propose": repeat, "width": 3}, "width")],
)
def test_a_gpu_refuses_by_name_what_it_does_not_guess(speculate, says):
    with pytest.raises(NotImplementedError, match=f"{says}.*CPU alone"):
        quire.LLM(MODEL, device="cuda", speculate=speculate)


@pytest.mark.cpu_only
@pytest.mark.parametrize("kind", ["lists", "dict"])
def test_a_function_may_give_a_tree(kind, expected):
    answer = {}

    def propose(token_ids, max_tokens):
        """Guesses wrong first, and beside it what is right."""
        right = answer.get(len(token_ids), [1])[:max_tokens]
        wrong = [(token + 1) % 1500 for token in right]
        if kind == "lists":
            return [wrong, right, right[:1]]
        count = len(right)
        behind = [*range(-1, count - 1)]
        return {"tokens": wrong + right, "parents": behind + [-1, *range(count, 2 * count - 1)]}

    prompt = some_ids(50, 0)
    said = expected[0][0]
    answer.update({len(prompt) + i: said[i:] for i in range(len(said))})
    steps = {}
    for width in (1, 3):
        guess = {"method": "custom", "propose": propose, "width": width, "max_tokens": 4, "adapt": False}
        with quire.LLM(MODEL, threads=1, speculate=guess) as llm:
            out = llm.generate(prompt, **GREEDY)
            assert out.token_ids == said
            steps[width] = llm.stats()["steps"], out.usage.accepted_tokens, llm.stats()["branches_linked"]
    assert steps[1][1:] == (0, 0)
    assert steps[3][1] > 25 and steps[3][2] > 5 and steps[3][0] < steps[1][0] / 3


@pytest.mark.cpu_only
def test_a_number_bounds_all_guesses_of_a_step():
    with quire.LLM(MODEL, threads=1, speculate=METHODS["tree"]) as llm:
        for bound in (1, 2, 5):
            before = llm.stats()["speculative_steps"]
            out = llm.generate(some_ids(30), **GREEDY, speculate=bound)
            steps = llm.stats()["speculative_steps"] - before
            assert 0 < out.usage.drafted_tokens <= bound * steps


def test_a_function_that_calls_its_engine_is_told_so(monkeypatch, expected):
    heard = []
    monkeypatch.setattr("sys.unraisablehook", lambda failure: heard.append(failure.exc_value))
    models = []

    def propose(token_ids, max_tokens):
        return models[0].generate(token_ids, max_tokens=1).token_ids

    guess = {"method": "custom", "propose": propose, "adapt": False}
    with quire.LLM(MODEL, threads=1, speculate=guess) as llm, quire.LLM(MODEL, threads=1) as other:
        models.append(llm)
        assert answers(llm) == expected
        assert heard and all(isinstance(each, ValueError) and "cannot call the same engine" in str(each) for each in heard)
        heard.clear()
        models[0] = other
        out = llm.generate(some_ids(50, 0), **GREEDY)
        assert out.token_ids == expected[0][0] and out.usage.accepted_tokens == out.usage.drafted_tokens > 10
        assert not heard


@pytest.mark.cpu_only
def test_a_draft_model_counts_in_the_same_budget():
    counts = {}
    for name, speculate in (("none", None), ("draft", METHODS["draft"])):
        with quire.LLM(LARGE, threads=1, kv_budget="64MiB", speculate=speculate) as llm:
            stream = llm.stream(some_ids(640), **{**GREEDY, "max_tokens": 60})
            for _ in range(20):
                next(stream)
            counts[name] = running = llm.stats()
            assert running["blocks_free"] + running["blocks_cached"] + running["blocks_in_use"] == running["blocks_total"]
            assert running["blocks_total"] * running["block_bytes"] <= 64 * 2**20
            stream.close()
            idle = llm.stats()
            assert idle["blocks_in_use"] == idle["bytes_in_use"] == 0
    for name in ("blocks_in_use", "bytes_in_use", "weight_bytes"):
        assert counts["draft"][name] > counts["none"][name], name
    share = counts["draft"]["bytes_in_use"] / counts["none"]["bytes_in_use"]
    assert counts["draft"]["blocks_in_use"] == pytest.approx(counts["none"]["blocks_in_use"] * share, abs=1.5)


def test_recent_outputs_are_those_of_salt_and_tenant():
    with quire.LLM(MODEL, threads=1, speculate=METHODS["suffix"]) as llm:
        drawn = {"temperature": 2, "seed": 5, "max_tokens": 60, "ignore_eos": True}
        first = llm.generate(some_ids(40, 3), **drawn, tenant="a").usage.accepted_tokens
        assert llm.generate(some_ids(40, 3), **drawn, tenant="b").usage.accepted_tokens == first
        assert llm.generate(some_ids(40, 3), **drawn, salt="a").usage.accepted_tokens == first
        assert llm.generate(some_ids(40, 3), **drawn, tenant="a").usage.accepted_tokens > first + 20
