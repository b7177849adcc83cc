"""Tiers of contexts, what leaves them first, and answers that come piece by piece, on the demo model."""

import pytest

import quire
from conftest import MODEL
from quire import ContextManager
from test_contexts import CARDS, GREEDY, asked, context_of, llm, shared  # noqa: F401


def test_host_memory_has_a_limit_and_the_store_takes_the_rest(llm, tmp_path):
    probe, ids = context_of(llm)
    size = probe.show(ids[1]).memory_bytes
    probe.clear()
    ctx, ids = context_of(llm, store=tmp_path / "store", max_host_bytes=size)
    before = asked(ctx)
    ctx.unload(ids[1])
    assert ctx.show(ids[1]).tier == "host"
    ctx.unload(ids[2])
    assert [ctx.show(item).tier for item in ids[1:3]] == ["disk", "host"]
    assert asked(ctx) == before
    ctx.clear()


def test_stats_say_what_reading_and_computing_take(tmp_path):
    text = " ".join(CARDS * 4)
    with quire.LLM(MODEL, threads=2, prefix_cache=False) as model:
        ctx, _ = context_of(model, cards=(f"{n} {text}" for n in range(3)), store=tmp_path / "store")
        ctx.save()
        for item in ctx:
            ctx.unload(item.id, drop=True)
        ctx.populate()
        stats = model.stats()
        assert 0 < stats["token_read_seconds"] < stats["token_compute_seconds"] < 1
        ctx.clear()


def test_adding_again_changes_what_it_says_of_the_retention(llm):
    ctx = ContextManager(llm)
    item = ctx.add(CARDS[0], pinned=True, priority=3, ttl_seconds=60)
    ctx.add(CARDS[0], priority=5)
    ctx.add(CARDS[0], pinned=False)
    ctx.add(CARDS[0])
    known = ctx.show(item)
    assert (known.pinned, known.priority, known.ttl_seconds) == (False, 5, 60)
    ctx.clear()


def test_retention_says_who_goes_first(llm):
    probe, ids = context_of(llm)
    size = probe.show(ids[1]).memory_bytes
    probe.clear()
    ctx = ContextManager(llm, max_host_bytes=2 * size)
    ids = [ctx.add(CARDS[0], pinned=True), ctx.add(CARDS[1], priority=1), ctx.add(CARDS[2], ttl_seconds=60)]
    assert [(item.pinned, item.priority, item.ttl_seconds) for item in ctx] == [(True, 0, None), (False, 1, None), (False, 0, 60)]
    for item in ids:
        ctx.unload(item)
    assert [item.tier for item in ctx] == ["host", "host", "none"]
    ctx.set_retention(ids[1], priority=-1)
    assert ctx.show(ids[1]).priority == -1 and not ctx.show(ids[1]).pinned
    ctx.set_retention(ids[2], ttl_seconds=0)
    ctx.restore(ids[2])
    ctx.deactivate(ids[2])
    ctx.populate()
    assert ctx.show(ids[2]).tier == "none"
    ctx.clear()


def test_write_through_saves_what_is_computed(llm, tmp_path):
    ctx, _ = context_of(llm, store=tmp_path / "store", write_through=True)
    ctx.infer("What does Lars carry?", GREEDY)
    assert all(item.saved for item in ctx) and len(ctx) == 6
    ctx.clear()


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"max_host_bytes": -1}, "max_host_bytes"),
        ({"max_store_bytes": 2**63}, "max_store_bytes"),
        ({"write_through": True}, "write_through"),
    ],
)
def test_limits_that_are_none_are_refused(llm, options, names):
    with pytest.raises(ValueError, match=names):
        ContextManager(llm, **options)


def test_answers_come_piece_by_piece_and_end_when_told(llm):
    ctx, _ = context_of(llm)
    whole = asked(ctx, params={**GREEDY, "ignore_eos": True})[0]
    pieces = []
    output = ctx.infer("What does Lars carry?", {**GREEDY, "ignore_eos": True}, on_text=pieces.append)
    assert "".join(pieces) == output.text and output.token_ids == whole
    ctx.erase(output.user_id)
    ctx.erase(output.output_id)

    long = {**GREEDY, "max_tokens": 1500, "ignore_eos": True}
    output = ctx.infer("What does Lars carry?", long, on_text=lambda _: True)
    assert 0 < len(output.token_ids) < 1500 and output.token_ids[:8] == whole[: len(output.token_ids)]
    assert ctx.show(output.output_id).active

    items = len(ctx)
    with pytest.raises(ZeroDivisionError):
        ctx.infer("And Ada?", GREEDY, on_text=lambda _: 1 / 0)
    with pytest.raises(ValueError, match="must not call it"):
        ctx.infer("And Ada?", GREEDY, on_text=lambda _: ctx.stats())
    assert len(ctx) == items
    ctx.clear()


def test_explain_says_of_each_active_item_where_its_kv_is(llm, tmp_path):
    context = ContextManager(llm, store=tmp_path)
    ids = [context.add(f"Card {number}. Ada keeps a goose, and Lars a finch.") for number in range(4)]
    context.unload(ids[1])
    context.save(ids[2])
    context.unload(ids[2], drop=True)
    context.unload(ids[3], drop=True)
    parts = context.explain()
    assert [part.chunk_id for part in parts] == ids and parts[1].position == parts[0].tokens
    assert [part.reason for part in parts] == ["hit", "hit, in host memory", "hit, on disk", "not computed yet"]
    assert [part.hit for part in parts] == [True, True, True, False]
