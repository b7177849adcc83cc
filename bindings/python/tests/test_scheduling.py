"""Scheduling: policies, priorities, deadlines, full queues, pressure and the decisions of the scheduler."""

import asyncio
import fractions
import threading
import time

import numpy as np
import pytest
from conftest import MODEL, some_ids

import quire

POLICIES = ["fcfs", "priority", "shortest", "fair", "adaptive"]
GREEDY = {"temperature": 0, "ignore_eos": True}


def tight(**options):
    """Returns a model with 8 blocks of 32 tokens, of which one request of 100 tokens needs half."""
    with quire.LLM(MODEL, threads=1, kv_budget="64MiB") as probe:
        budget = 8 * probe.stats()["block_bytes"]
    return quire.LLM(MODEL, threads=1, kv_budget=budget, **options)


def prompts(count, tokens=60):
    return [some_ids(tokens, seed) for seed in range(count)]


@pytest.fixture(scope="module")
def expected():
    with quire.LLM(MODEL, threads=1) as llm:
        return [out.token_ids for out in llm.generate(prompts(6), max_tokens=40, **GREEDY)]


@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
@pytest.mark.parametrize("scheduler", POLICIES)
def test_no_output_changes_when_blocks_are_short(scheduler, preemption, expected):
    with tight(scheduler=scheduler, preemption=preemption) as llm:
        outputs = llm.generate(prompts(6), max_tokens=40, priority=[0, 1, 2, 0, 1, 2], tenant=list("aabbcc"), **GREEDY)
        stats = llm.stats()
    assert [out.token_ids for out in outputs] == expected
    assert stats["preemptions"] > 0
    assert (stats["preemptions_swapped"] > 0) == (stats["swaps_restored"] > 0)
    if preemption != "auto":
        assert (stats["preemptions_swapped"] > 0) == (preemption == "swap")


def test_swapped_kv_is_not_computed_again(expected):
    computed = {}
    for preemption in ("recompute", "swap"):
        with tight(preemption=preemption, prefix_cache=False) as llm:
            outputs = llm.generate(prompts(6), max_tokens=40, **GREEDY)
            computed[preemption] = llm.stats()["tokens_computed"]
        assert [out.token_ids for out in outputs] == expected
    assert computed["swap"] == 6 * (60 + 40 - 1) < computed["recompute"]


def test_a_higher_priority_takes_the_blocks_of_a_lower_one():
    with tight(scheduler="priority", preemption="recompute") as llm:
        low = llm.stream(some_ids(60, 1), max_tokens=150, priority=-1, **GREEDY)
        assert next(low).token_ids
        high = llm.generate(some_ids(200, 2), max_tokens=4, priority=5, **GREEDY)
        decisions = llm.plan_log()
        list(low)
        assert len(low.output.token_ids) == 150
        preempted = [each for decision in decisions for each in decision["preempted"]]
        assert [low.request_id, "priority"] in preempted
        assert len(high.token_ids) == 4


def test_tenants_take_turns():
    with quire.LLM(MODEL, threads=1, scheduler="fair", max_batch_tokens=1) as llm:
        blocker = llm.stream(some_ids(8), max_tokens=1000, **GREEDY)
        next(blocker)
        outputs = {}

        def ask():
            outputs["all"] = llm.generate(prompts(4, 8), max_tokens=2, tenant=["a", "a", "a", "b"], **GREEDY)

        asking = threading.Thread(target=ask)
        asking.start()
        while llm.stats()["requests_waiting"] < 4:
            time.sleep(0.001)
        blocker.close()
        asking.join()
        a, a2, a3, b = (out.request_id for out in outputs["all"])
        admitted = [each for decision in llm.plan_log() for each in decision["admitted"] if each in (a, a2, a3, b)]
    assert admitted == [a, b, a2, a3]


@pytest.mark.parametrize("waits", [False, True])
def test_a_deadline_ends_a_request_while_it_waits_or_runs(waits):
    with quire.LLM(MODEL, threads=1, max_batch_tokens=1) as llm:
        blocker = llm.stream(some_ids(8), max_tokens=1800, **GREEDY) if waits else None
        if blocker:
            next(blocker)
        state = "waited" if waits else "(ran|waited)"  # a busy machine may begin too late
        with pytest.raises(quire.CancelledError, match=f"deadline.* while the request {state}"):
            llm.generate(some_ids(8, 1), max_tokens=1800, deadline_seconds=0.05, **GREEDY)
        assert llm.stats()["requests_expired"] == 1
        if blocker:
            blocker.close()
        assert llm.stats()["blocks_in_use"] == 0
        assert llm.generate(some_ids(8, 1), max_tokens=2, deadline_seconds=60, **GREEDY).finish_reason == "length"


def test_the_first_deadline_of_a_list_ends_the_call_and_the_rest():
    with quire.LLM(MODEL, threads=1) as llm:
        with pytest.raises(quire.CancelledError, match="deadline"):
            llm.generate(prompts(3), max_tokens=1800, deadline_seconds=[None, 0.05, None], **GREEDY)
        assert llm.stats()["requests_running"] == llm.stats()["blocks_in_use"] == 0


def test_a_stream_whose_deadline_passes_gives_what_it_has_and_then_the_error():
    with quire.LLM(MODEL, threads=1) as llm:
        given = []
        with pytest.raises(quire.CancelledError, match="deadline"):
            for delta in llm.stream(some_ids(8), max_tokens=1800, deadline_seconds=0.05, **GREEDY):
                given += delta.token_ids
        assert given == llm.generate(some_ids(8), max_tokens=len(given), **GREEDY).token_ids
        assert llm.stats()["requests_expired"] == 1


def test_a_full_queue_refuses_at_once_with_the_requests_and_their_bytes():
    with tight(max_waiting=1) as llm:
        running = llm.stream(some_ids(200), max_tokens=30, **GREEDY)
        next(running)
        waiting = llm.stream(some_ids(100, 1), max_tokens=2, **GREEDY)
        with pytest.raises(quire.QueueFullError, match="2 more requests .* max_waiting is 1") as refused:
            llm.generate(prompts(2, 100), max_tokens=2, **GREEDY)
        assert refused.value.requests == 2
        assert refused.value.needed_bytes == 2 * 4 * llm.stats()["block_bytes"]
        assert llm.stats()["requests_refused"] == 2
        assert list(waiting) and list(running)
        assert len(llm.generate(prompts(2, 60), max_tokens=2, **GREEDY)) == 2


def test_max_waiting_0_takes_what_can_run_at_once():
    with tight(max_waiting=0, max_batch_tokens=32) as llm:
        assert len(llm.generate(prompts(2, 60), max_tokens=2, **GREEDY)) == 2
        with pytest.raises(quire.QueueFullError):
            llm.generate(prompts(5, 60), max_tokens=2, **GREEDY)
        assert llm.stats()["requests_waiting"] == llm.stats()["blocks_in_use"] == 0


def test_pressure_rises_when_requests_wait_and_falls_again():
    heard = []
    with tight(on_pressure=heard.append) as llm:
        calm = llm.pressure()
        assert calm == {
            "level": "low", "blocks_free_share": 1.0, "waiting": 0, "preemptions_per_minute": 0, "action": "none"
        }
        llm.generate(prompts(6), max_tokens=40, **GREEDY)
        assert llm.pressure()["level"] == "low"
        assert llm.pressure()["preemptions_per_minute"] == llm.stats()["preemptions"] > 0
        changes = llm.stats()["pressure_changes"]
    actions = {"low": "none", "medium": "slow admission", "high": "preempt", "critical": "reject"}
    assert len(heard) == changes > 1
    assert all(each["action"] == actions[each["level"]] for each in heard)
    assert {"low"} < {each["level"] for each in heard}
    assert all(each["level"] == "low" or (each["waiting"] > 0 and each["blocks_free_share"] <= 0.5) for each in heard)


def test_the_plan_log_has_every_step():
    with quire.LLM(MODEL, threads=1) as llm:
        out = llm.generate(some_ids(50), max_tokens=5, **GREEDY)
        log = llm.plan_log()
        assert [each["step"] for each in log] == [1, 2, 3, 4, 5]
        assert [each["rows"] for each in log] == [50, 1, 1, 1, 1]
        assert log[0]["admitted"] == [out.request_id] and not log[1]["admitted"]
        assert all(each["ms"] > 0 and each["preempted"] == [] for each in log)
        assert llm.plan_log(2) == log[-2:]
        with pytest.raises(ValueError):
            llm.plan_log(-1)


def test_a_gap_cuts_prompts_and_changes_no_output():
    def ask(**options):
        with quire.LLM(MODEL, threads=1, **options) as llm:
            running = llm.stream(some_ids(20), max_tokens=300, **GREEDY)
            next(running)
            out = llm.generate(some_ids(1500, 7), max_tokens=4, **GREEDY)
            log = llm.plan_log()
            running.close()
        return out.token_ids, max(each["rows"] for each in log if each["rows"] != 20)

    free, most = ask()
    bounded, cut = ask(max_decode_gap_ms=5)
    assert free == bounded
    assert cut < most / 2


@pytest.mark.parametrize(
    "options, error",
    [
        ({"scheduler": "best"}, "scheduler must be one of"),
        ({"preemption": "never"}, "preemption must be one of"),
        ({"aging_seconds": 0}, "aging_seconds must be"),
        ({"decode_weight": -1}, "decode_weight must be"),
        ({"max_wait_seconds": float("nan")}, "max_wait_seconds must be"),
        ({"max_waiting": -1}, "max_waiting must be"),
        ({"max_decode_gap_ms": 0}, "max_decode_gap_ms must be"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options, error):
    with pytest.raises(ValueError, match=error):
        quire.LLM(MODEL, **options)


def test_on_pressure_takes_functions_alone():
    with pytest.raises(TypeError, match="on_pressure"):
        quire.LLM(MODEL, on_pressure=3)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_deadlines_out_of_range_are_refused(llm, seconds):
    with pytest.raises(ValueError, match="deadline_seconds"):
        llm.generate("x", deadline_seconds=seconds)


def test_urgency_of_another_kind_or_number_is_refused(llm):
    with pytest.raises(TypeError):
        llm.generate("x", deadline_seconds="soon")
    with pytest.raises(TypeError):
        llm.generate("x", priority="high")
    with pytest.raises(ValueError):
        llm.generate("x", priority=2**40)
    with pytest.raises(ValueError, match="3 priorities and 2 tenants"):
        llm.generate(["x", "y", "z"], priority=[1, 2, 3], tenant=["a", "b"], max_tokens=1)
    with pytest.raises(TypeError, match="deadline_seconds"):
        llm.generate("x", deadline=3)


def test_every_call_takes_urgency(llm):
    urgency = {"priority": 3, "deadline_seconds": 60, "tenant": "ada", "max_tokens": 2}
    messages = [{"role": "user", "content": "Where does Ada live?"}]
    assert llm.chat(messages, **urgency).token_ids
    assert list(llm.stream("x", **urgency)) and list(llm.stream_chat(messages, **urgency))

    async def ask():
        await llm.chat_async(messages, **urgency)
        async for delta in llm.stream_async("x", **urgency):
            assert delta
        return await llm.generate_async(["x", "y"], **{**urgency, "priority": [1, 2]})

    assert len(asyncio.run(ask())) == 2
    chunked = quire.ChunkedLLM(llm)
    query = chunked.register_chunk("Where does Ada live?", quire.ChunkType.QUERY)
    alone = {"query_chunk_id": query, "without_system": True}
    assert chunked.generate_from_chunks(**alone, **urgency).token_ids
    assert list(chunked.stream_from_chunks(**alone, **urgency))
    assert chunked.batch_generate_from_chunks([alone] * 2, **{**urgency, "tenant": ["a", "b"]})
    assert chunked.generate(query="Where?", without_system=True, **urgency).token_ids
    assert chunked.generate("Where?", **urgency).token_ids
    chunked.clear_chunks()


def calls_on_kv(llm):
    """Returns calls that go on from KV, by name. Each makes its sequence or context, runs, and returns its request's id."""
    ids = some_ids(20, 7)

    def sequence(call):
        def run(**keywords):
            with llm.sequence(ids) as held:
                return call(held, **keywords)

        return run

    def streamed(stream):
        list(stream)
        return stream.output.request_id

    def virtual(held):
        return quire.VirtualSequence(some_ids(3), {"max_tokens": 1800, **GREEDY}, *held.blocks())

    def context(**keywords):
        items = quire.ContextManager(llm)
        items.add(ids)
        return items.infer(**keywords)

    def of_virtual(infer):
        return sequence(lambda held, max_tokens, temperature, ignore_eos, **keywords: infer(virtual(held), **keywords))

    return {
        "Sequence.generate": sequence(lambda held, **keywords: held.generate(**keywords)),
        "Sequence.stream": sequence(lambda held, **keywords: streamed(held.stream(**keywords))),
        "infer_from_blocks": sequence(lambda held, **keywords: llm.infer_from_blocks(*held.blocks(), some_ids(3), **keywords)),
        "infer_from_blocks_stream": sequence(
            lambda held, **keywords: list(llm.infer_from_blocks_stream(*held.blocks(), some_ids(3), **keywords))
        ),
        "infer": of_virtual(lambda *given, **keywords: llm.infer(*given, **keywords)),
        "infer_stream": of_virtual(lambda *given, **keywords: list(llm.infer_stream(*given, **keywords))),
        "ContextManager.infer": context,
    }


@pytest.mark.parametrize("call", calls_on_kv(None))
def test_calls_on_kv_take_urgency(call):
    with quire.LLM(MODEL, threads=1) as llm:
        run = calls_on_kv(llm)[call]
        with pytest.raises(quire.CancelledError, match=r"deadline of 0\.05 s has passed"):
            run(priority=1, tenant="a", deadline_seconds=0.05, max_tokens=1800, **GREEDY)
        with pytest.raises(ValueError, match="deadline_seconds"):
            run(deadline_seconds=-1, max_tokens=2, **GREEDY)
        with pytest.raises(TypeError, match="priorty.*did you mean priority"):
            run(priorty=1, max_tokens=2, **GREEDY)
        assert llm.stats()["requests_running"] == llm.stats()["blocks_in_use"] == 0


def test_a_sequence_goes_first_by_its_priority():
    with quire.LLM(MODEL, threads=1, scheduler="priority", max_batch_tokens=1) as llm:
        with llm.sequence(some_ids(20, 1)) as low, llm.sequence(some_ids(20, 2)) as high:
            blocker = llm.stream(some_ids(8), max_tokens=1000, priority=9, **GREEDY)
            next(blocker)
            streams = [low.stream(max_tokens=2, priority=1, **GREEDY), high.stream(max_tokens=2, priority=5, **GREEDY)]
            blocker.close()
            for stream in streams:
                list(stream)
            admitted = [each for decision in llm.plan_log() for each in decision["admitted"]]
    assert admitted[-2:] == [streams[1].request_id, streams[0].request_id]


def test_a_deadline_bounds_the_registration_of_chunks():
    with quire.ChunkedLLM(MODEL, threads=1, max_batch_tokens=1) as llm:
        whole = {"system_prompt": some_ids(60), "context": [some_ids(400, seed) for seed in range(4)], "query": some_ids(9)}
        with pytest.raises(quire.CancelledError, match=r"deadline of 0\.02 s has passed"):
            llm.generate(**whole, max_tokens=5, deadline_seconds=0.02)
        assert llm.list_chunks() == []
        assert llm.stats()["blocks_in_use"] == 0
        assert len(llm.generate(**whole, max_tokens=5, deadline_seconds=60, ignore_eos=True).token_ids) == 5


def test_a_composition_counts_by_its_share_of_known_kv():
    with quire.ChunkedLLM(MODEL, threads=1, scheduler="adaptive", max_batch_tokens=1) as llm:
        keeper = llm.register_chunk(some_ids(64, 5), "system_prompt")
        card = llm.register_chunk(some_ids(256, 6), "context", anchor=keeper)
        query = llm.register_chunk(some_ids(8, 7), "query")
        llm.generate_from_chunks(keeper, [card], query, max_tokens=1)
        llm.generate(some_ids(64, 8), max_tokens=0)
        blocker = llm.stream(some_ids(8, 9), max_tokens=1500, **GREEDY)
        next(blocker)
        half = llm.stream(some_ids(64, 8) + some_ids(64, 10), max_tokens=1, **GREEDY)
        nearly_all = llm.stream_from_chunks(keeper, [card], query, max_tokens=1, **GREEDY)
        nothing = llm.stream(some_ids(64, 12), max_tokens=1, **GREEDY)
        most = llm.stream(some_ids(64, 8) + some_ids(8, 13), max_tokens=1, **GREEDY)
        blocker.close()
        waiting = [half, nearly_all, nothing, most]
        for stream in waiting:
            list(stream)
        admitted = [each for decision in llm.plan_log() for each in decision["admitted"]]
    names = {half.request_id: "half", nearly_all.request_id: "nearly all", nothing.request_id: "nothing", most.request_id: "most"}
    assert [names[each] for each in admitted if each in names] == ["nearly all", "most", "half", "nothing"]


def test_several_outputs_count_before_the_first_one_runs():
    with tight(max_waiting=0) as llm:
        before = llm.stats()["tokens_computed"]
        with pytest.raises(quire.QueueFullError, match="8 more requests") as refused:
            llm.generate(some_ids(120), n=8, max_tokens=90, **GREEDY)
        assert refused.value.requests == 8
        assert refused.value.needed_bytes == 8 * 7 * llm.stats()["block_bytes"]
        assert llm.stats()["tokens_computed"] == before and llm.stats()["requests_refused"] == 8
        assert len(llm.generate(some_ids(120), n=4, max_tokens=9, **GREEDY).outputs) == 4  # they share its blocks
    with tight(max_waiting=4) as llm:
        assert len(llm.generate(some_ids(120), n=8, max_tokens=90, **GREEDY).outputs) == 8


def test_several_outputs_of_an_async_call_count_before_the_first_one_runs():
    async def ask(llm, **options):
        return await llm.generate_async(some_ids(120), max_tokens=options.pop("max_tokens"), **options, **GREEDY)

    with tight(max_waiting=0) as llm:
        before = llm.stats()["tokens_computed"]
        with pytest.raises(quire.QueueFullError, match="8 more requests") as refused:
            asyncio.run(ask(llm, n=8, max_tokens=90))
        assert refused.value.requests == 8
        assert llm.stats()["tokens_computed"] == before and llm.stats()["requests_refused"] == 8
        assert llm.stats()["blocks_in_use"] == 0
        several = asyncio.run(ask(llm, n=4, max_tokens=9)).outputs  # they share its blocks
        assert [out.token_ids for out in several] == [llm.generate(some_ids(120), max_tokens=9, **GREEDY).token_ids] * 4
    with tight(max_waiting=4) as llm:
        assert len(asyncio.run(ask(llm, n=8, max_tokens=90)).outputs) == 8


def test_the_others_of_an_async_call_begin_with_the_first_token_of_the_first():
    with quire.LLM(MODEL, threads=1) as llm:
        out = asyncio.run(llm.generate_async(some_ids(120), n=3, max_tokens=40, **GREEDY))
        steps = {each["admitted"][0]: each["step"] for each in llm.plan_log() if each["admitted"]}
        assert llm.stats()["steps"] < 2 * 40, "one after the other would take 80 steps"
    assert len(out.outputs) == 3 and len(steps) >= 2


def test_low_pressure_does_nothing():
    with tight() as llm:
        llm.generate(some_ids(60), max_tokens=2, **GREEDY)
        stats = llm.stats()
        assert llm.pressure()["action"] == "none"
    assert stats["pressure_changes"] == stats["admissions_slowed"] == stats["preemptions"] == stats["requests_refused"] == 0


def test_medium_pressure_keeps_one_block_in_32_for_those_that_run():
    with quire.LLM(MODEL, threads=1, kv_budget="64MiB") as probe:
        budget = 64 * probe.stats()["block_bytes"]
    heard = []
    with quire.LLM(MODEL, threads=1, kv_budget=budget, prefix_cache=False, on_pressure=heard.append) as llm:
        running = llm.stream(some_ids(40 * 32 - 20), max_tokens=21, **GREEDY)  # 40 blocks from its prompt on
        next(running)
        waiting = llm.stream(some_ids(23 * 32, 1), max_tokens=1, **GREEDY)  # would leave 1 block of 64
        after = len(list(running))
        assert llm.stats()["admissions_slowed"] >= min(after, 1)
        assert list(waiting)
        admitted = [each for decision in llm.plan_log() for each in decision["admitted"]]
        assert admitted == [running.request_id, waiting.request_id]
        assert llm.stats()["preemptions"] == 0
    assert ("medium", "slow admission") in {(each["level"], each["action"]) for each in heard}


def test_high_pressure_is_told_when_a_running_request_loses_its_blocks(expected):
    heard = []
    with tight(on_pressure=heard.append, prefix_cache=False) as llm:
        got = [out.token_ids for out in llm.generate(prompts(6), max_tokens=40, **GREEDY)]
        log, stats = llm.plan_log(), llm.stats()
    assert got == expected
    preempted = [reason for decision in log for _, reason in decision["preempted"]]
    assert stats["preemptions"] == len(preempted) > 0 and set(preempted) == {"blocks"}
    assert {each["action"] for each in heard} & {"preempt", "reject"}


def test_critical_pressure_refuses_beyond_max_waiting_and_nobody_else():
    heard = []
    with tight(max_waiting=1, on_pressure=heard.append) as llm:
        running = llm.stream(some_ids(226), max_tokens=30, **GREEDY)  # all 8 blocks
        next(running)
        waiting = llm.stream(some_ids(60, 1), max_tokens=2, **GREEDY)
        with pytest.raises(quire.QueueFullError):
            llm.generate(some_ids(60, 2), max_tokens=2, **GREEDY)
        assert list(running) and list(waiting)
        assert llm.stats()["requests_refused"] == 1
        assert len(llm.generate(some_ids(60, 2), max_tokens=2, **GREEDY).token_ids) == 2
    assert ("critical", "reject") in {(each["level"], each["action"]) for each in heard}


@pytest.mark.parametrize("seconds", [np.float32(60), np.int64(60), 10**400, fractions.Fraction(121, 2)])
def test_deadlines_are_any_real_numbers(llm, seconds):
    assert llm.generate("x", deadline_seconds=seconds, max_tokens=1).token_ids
