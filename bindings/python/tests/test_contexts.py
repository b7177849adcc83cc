"""Contexts in Python, on the demo model. Oracles: contexts that never had what was switched off, and plain prompts."""

import itertools
import json
import random
import subprocess
import sys

import numpy as np
import pytest

import quire
from conftest import KEEPER, MODEL, computed, holds_nothing_more, output_after_ctrl_c, ticks_during, together
from quire import ContextManager

GREEDY = {"temperature": 0, "max_tokens": 8}
LOGGED = {**GREEDY, "ignore_eos": True, "logprobs": 3}
CARDS = (
    "Card 7. Ada trades in apples. They live in Foxley.",
    "Card 9. Lars carries a lantern. They live in Thornby.",
    "Card 4. Emil keeps a goose. They live in Thornby.",
)


@pytest.fixture(scope="module")
def shared():
    with quire.LLM(MODEL, threads=2, prefix_cache=False) as llm:
        yield llm


@pytest.fixture
def llm(shared):
    with holds_nothing_more(shared) as model:
        yield model


def context_of(llm, cards=CARDS, **options):
    """Makes a context of a system item and these cards, and returns their ids too."""
    ctx = ContextManager(llm, **options)
    return ctx, [ctx.add(KEEPER, kind="system"), *map(ctx.add, cards)]


def next_logits(llm, ctx):
    with llm.sequence(blocks=ctx.get_all_active_blocks()[0]) as seq:
        return seq.logits()


def asked(ctx, text="What does Lars carry?", params=LOGGED):
    """Returns ids and log probabilities of an answer that leaves nothing in the context."""
    output = ctx.infer(text, params)
    for item in (output.user_id, output.output_id):
        if item is not None:
            ctx.erase(item)
    return output.token_ids, output.logprobs


def active_ids(ctx):
    return [token for item in ctx if item.active for token in item.token_ids]


@pytest.mark.parametrize("mode", ["anchored", "exact"])
@pytest.mark.parametrize("off", [{1}, {2}, {3}, {1, 3}, {0, 1, 2, 3}])
def test_what_is_switched_off_has_no_influence(llm, mode, off):
    ctx, ids = context_of(llm, mode=mode)
    for index in off:
        ctx.deactivate(ids[index])
    without = ContextManager(llm, mode=mode)
    if mode == "anchored" and 0 in off:
        without = context_of(llm, ())[0]  # the cards have been computed behind it
        without.deactivate(without.items()[0].id)
    for index, text in enumerate((KEEPER, *CARDS)):
        if index not in off:
            without.add(text, kind="context" if index else "system")
    assert active_ids(ctx) == active_ids(without)
    if len(off) < 4:
        assert np.array_equal(next_logits(llm, ctx), next_logits(llm, without))
    assert asked(ctx) == asked(without)


def test_switching_computes_and_copies_nothing(llm):
    ctx, ids = context_of(llm)
    logits = next_logits(llm, ctx)
    before, blocks = computed(llm), llm.stats()["blocks_in_use"]
    for _ in range(3):
        for item in ids:
            ctx.deactivate(item)
        assert ctx.get_all_active_blocks()[1] == 0
        for item in reversed(ids):
            ctx.activate(item[:8])
        assert ctx.get_all_active_blocks()[1] == len(active_ids(ctx))
        assert ctx.populate() == 0
    assert computed(llm) == before and llm.stats()["blocks_in_use"] == blocks
    assert np.array_equal(next_logits(llm, ctx), logits)


def test_any_order_of_switching_leaves_what_a_new_context_has(llm):
    ctx, ids = context_of(llm)
    chance = random.Random(5)
    for _ in range(20):
        for _ in range(10):
            chance.choice((ctx.activate, ctx.deactivate))(chance.choice(ids[1:]))
        active = {item.id for item in ctx if item.active}
        new, _ = context_of(llm, [card for card, item in zip(CARDS, ids[1:], strict=True) if item in active])
        assert active_ids(new) == active_ids(ctx)
        assert np.array_equal(next_logits(llm, new), next_logits(llm, ctx))


def test_mode_exact_answers_as_a_plain_prompt(llm):
    ctx, ids = context_of(llm, mode="exact")
    for switch in (ctx.activate, lambda _: ctx.deactivate(ids[2]), lambda _: ctx.activate(ids[2]), lambda _: ctx.deactivate(ids[1])):
        switch(ids[0])
        tokens = active_ids(ctx)
        cold = llm.forward(tokens, reuse="none", rows="last").logits[0]
        assert np.array_equal(next_logits(llm, ctx), cold)
        output = ctx.infer("Where does Emil live?", LOGGED)
        plain = llm.generate(output.prompt_token_ids, LOGGED)
        assert output.reuse.grade == "exact" and output.prompt_token_ids[: len(tokens)] == tokens
        assert (output.token_ids, output.logprobs) == (plain.token_ids, plain.logprobs)
        assert active_ids(ctx) == output.prompt_token_ids + output.token_ids


def test_mode_exact_computes_only_what_stands_behind_a_switched_item(llm):
    ctx, ids = context_of(llm, mode="exact")
    ctx.populate()
    before = computed(llm)
    ctx.deactivate(ids[2])
    assert computed(llm) == before
    assert 0 < ctx.populate() <= ctx.show(ids[3]).num_tokens  # less what both cards begin with
    assert computed(llm) - before <= ctx.show(ids[3]).num_tokens and ctx.populate() == 0


def test_answers_are_right_and_become_items(llm):
    ctx, ids = context_of(llm)
    first = ctx.infer("What does Lars carry?", GREEDY)
    assert first.text.strip() == "a lantern." and first.reuse.grade == "approximate"
    before = computed(llm)
    second = ctx.infer("Where does Emil live?", sampling_params=quire.SamplingParams(**GREEDY, seed=3))
    new = [ctx.show(item).num_tokens for item in (second.user_id, second.output_id)]
    assert computed(llm) - before <= sum(new) + 2 and second.text.strip() == "Thornby."
    user, output = ctx.show(first.user_id), ctx.show(first["output_id"])
    assert (user.kind, user.parents, user.sampling) == ("user", ids, None)
    assert (output.kind, output.parents, output.text) == ("output", [*ids, user.id], first.text)
    assert output.sampling["max_tokens"] == 8 and output.sampling["temperature"] == 0 and "seed" not in output.sampling
    assert ctx.show(second.output_id).sampling["seed"] == 3
    assert [item.id for item in ctx.items()[4:]] == [user.id, output.id, second.user_id, second.output_id]
    assert active_ids(ctx) == second.prompt_token_ids + second.token_ids


def test_what_is_said_of_an_answer_makes_it_again(llm):
    ctx = ContextManager(llm, mode="exact")
    ctx.add(CARDS[0])
    params = {
        "temperature": 1.5, "top_p": 0.9, "presence_penalty": 0.5, "max_tokens": 24, "min_tokens": 12, "stop": ["a"],
        "stop_token_ids": [300], "ignore_eos": True, "logit_bias": {400: -100.0, 401: 2.5},
    }  # fmt: skip
    answer = ctx.infer("What does Ada trade in?", params)
    sampling = ctx.show(answer.output_id).sampling
    assert quire.SamplingParams(**sampling) == quire.SamplingParams(**params, seed=sampling["seed"])
    assert llm.generate(answer.prompt_token_ids, sampling).token_ids == answer.token_ids


def test_without_text_the_assistant_goes_on(llm):
    ctx, ids = context_of(llm)
    output = ctx.infer(sampling_params=GREEDY)
    assert output.user_id is None and ctx.show(output.output_id).parents == ids
    assert ctx.infer(None, GREEDY).user_id is None and len(ctx) == 6


def test_an_item_says_all_about_itself(llm):
    ctx = ContextManager(llm)
    item = ctx.add(CARDS[0], name="ada", tags=["cards", "fruit"], active=False)
    shown = ctx.show("ada")
    assert (shown.id, shown.name, shown.kind, shown.tags, shown.text) == (item, "ada", "context", ["cards", "fruit"], CARDS[0])
    assert (shown.active, shown.status, shown.tier, shown.saved, shown.memory_bytes) == (False, "inactive", "none", False, 0)
    assert shown.num_tokens == len(shown["token_ids"]) and shown.parents == [] and shown.sampling is None
    ctx.activate(item)
    assert ctx.populate() == shown.num_tokens
    ctx.tag(item, "fruit", "trade")
    shown = ctx.show(item[:6])
    assert (shown.status, shown.tier, shown.tags) == ("active", "device", ["cards", "fruit", "trade"])
    assert shown.memory_bytes > 0 and [shown] == ctx.items() == list(ctx)
    assert len(ctx) == 1 and "ada" in ctx and item in ctx and "lars" not in ctx and 7 not in ctx
    assert repr(ctx) == "ContextManager(1 items, 1 active, mode='anchored')"
    assert ctx.add(CARDS[0], tags=("seen",)) == item and len(ctx) == 1 and ctx.show(item).tags[-1] == "seen"
    stats = ctx.stats()
    assert (stats["items"], stats["active_tokens"], stats["device_bytes"]) == (1, shown.num_tokens, shown.memory_bytes)
    assert all(isinstance(value, int) for value in stats.values())


def test_ids_are_taken_as_they_are(llm):
    ctx = ContextManager(llm)
    for form in ([20, 30, 40], (20, 30, 40), np.array([20, 30, 40])):
        assert ctx.show(ctx.add(form)).token_ids == [20, 30, 40]
    assert len(ctx) == 1 and ctx.items()[0].text == llm.tokenizer.decode([20, 30, 40])


def test_blocks_are_the_turns_or_all_that_is_active(llm):
    ctx, ids = context_of(llm)
    assert ctx.get_conversation_blocks()[1] == 0
    output = ctx.infer("What does Ada trade in?", GREEDY)
    ctx.deactivate(ids[3])
    (conversation, turns), (everything, count) = ctx.get_conversation_blocks(), ctx.get_all_active_blocks()
    assert turns == conversation.num_tokens == sum(ctx.show(i).num_tokens for i in (output.user_id, output.output_id))
    assert count == everything.num_tokens == len(active_ids(ctx))
    more = llm.tokenizer.encode("<q> What does Lars carry?<a>", add_special_tokens=False)
    result = llm.infer_from_blocks(everything, count, more, GREEDY)
    assert result.prompt_token_ids == active_ids(ctx) + more and result.text.strip() == "a lantern."
    assert result.usage.cached_tokens == count


@pytest.mark.parametrize("name", ["blocks", "conversation"])
def test_handles_go_stale_with_every_change(llm, tmp_path, name):
    ctx, ids = context_of(llm, store=tmp_path)
    get = ctx.get_all_active_blocks if name == "blocks" else ctx.get_conversation_blocks
    ctx.infer("What does Ada trade in?", GREEDY)
    for change in (
        lambda: ctx.deactivate(ids[1]),
        lambda: ctx.activate(ids[1]),
        lambda: ctx.add("Card 1. Rosa keeps a finch."),
        lambda: ctx.unload(ids[2]),
        lambda: ctx.restore(ids[2]),
        lambda: ctx.infer("Who?", GREEDY),
        lambda: ctx.compose(ids[1:3]),
        lambda: ctx.erase(ids[3]),
        ctx.clear,
    ):
        blocks, count = get()
        ctx.save(), ctx.populate(), ctx.tag(ctx.items()[0].id, "seen")  # no changes
        assert llm.infer_from_blocks(blocks, count, [20], GREEDY).usage.cached_tokens == count
        change()
        for use in (llm.infer_from_blocks, llm.infer_from_blocks_stream, lambda b, n: llm.sequence(blocks=b)):
            with pytest.raises(quire.InvalidCompositionError, match="stale"):
                use(blocks, count)


def test_unloaded_items_free_their_blocks_and_come_back_with_their_bits(llm):
    ctx, ids = context_of(llm)
    logits, before = next_logits(llm, ctx), llm.stats()["blocks_in_use"]
    for item in ids:
        size = ctx.show(item).memory_bytes
        in_use, work = llm.stats()["blocks_in_use"], computed(llm)
        ctx.unload(item)
        shown = ctx.show(item)
        assert (shown.tier, shown.memory_bytes, ctx.stats()["host_bytes"]) == ("host", size, size)
        assert llm.stats()["blocks_in_use"] < in_use
        ctx.restore(item)
        assert ctx.show(item).tier == "device" and computed(llm) == work and llm.stats()["blocks_in_use"] == before
        assert np.array_equal(next_logits(llm, ctx), logits)
    for item in ids:
        ctx.unload(item)
    assert llm.stats()["blocks_in_use"] == 0 and np.array_equal(next_logits(llm, ctx), logits)  # fetched by use
    for item in ids:
        ctx.unload(item, drop=True)
        assert ctx.show(item).tier == "none"
    assert np.array_equal(next_logits(llm, ctx), logits)  # computed by use


def test_dropped_items_that_were_saved_are_read_back(llm, tmp_path):
    ctx, ids = context_of(llm, store=tmp_path / "store")
    output = ctx.infer("What does Ada trade in?", GREEDY)
    ids += [output.user_id, output.output_id]
    logits, work = next_logits(llm, ctx), computed(llm)
    ctx.save()
    for item in ids:
        ctx.unload(item, drop=True)
        assert (ctx.show(item).tier, ctx.show(item).saved) == ("disk", True)
    assert llm.stats()["blocks_in_use"] == 0 and ctx.stats()["disk_items"] == 6
    ctx.restore(ids[1])
    assert ctx.populate() == 0 and computed(llm) == work
    assert np.array_equal(next_logits(llm, ctx), logits)


def test_composed_items_have_seen_each_other(llm):
    ctx, ids = context_of(llm)
    item = ctx.compose([ids[3], ids[1]], name="both")
    assert ctx.show("both").id == item and ctx.show(item).token_ids == ctx.show(ids[3]).token_ids + ctx.show(ids[1]).token_ids
    assert [i.id for i in ctx if i.active] == [ids[0], ids[2], item]
    ctx.deactivate(ids[2])
    tokens = active_ids(ctx)
    cold = llm.forward(tokens, reuse="none", rows="last").logits[0]
    assert np.allclose(next_logits(llm, ctx), cold, atol=0.05) and ctx.infer("Who?", GREEDY).reuse.grade == "equal_math"


def test_erased_items_are_gone_everywhere(llm, tmp_path):
    ctx, ids = context_of(llm, store=tmp_path)
    ctx.save()
    ctx.erase(ids[1])
    ctx.erase(ids[2], wipe=True)
    assert [item.id for item in ctx] == [ids[0], ids[3]]
    assert asked(ctx) == asked(context_of(llm, CARDS[2:])[0])
    again = ContextManager(llm, store=str(tmp_path))
    for item in ids[1:3]:
        for context in (ctx, again):
            with pytest.raises(quire.ChunkNotFoundError):
                context.restore(item)
    assert ctx.clear() == 2 and len(ctx) == 0 and ctx.stats()["device_bytes"] == 0
    again.restore(ids[3])
    assert ids[3] in again


def test_the_store_of_the_model_is_that_of_its_contexts(tmp_path):
    for kind in (quire.LLM, quire.ChunkedLLM):
        with kind(MODEL, threads=1, store=tmp_path / kind.__name__) as llm:
            ctx = ContextManager(llm)
            assert llm.store == ctx.store == tmp_path / kind.__name__
            ctx.add(CARDS[0], name="ada")
            ctx.save("ada")
            assert ctx.show("ada").saved and ctx.stats()["saved_items"] == 1
            other = ContextManager(llm, store=tmp_path / "other")
            with pytest.raises(quire.ChunkNotFoundError):
                other.restore("ada")


@pytest.mark.cpu_only
def test_foreign_items_of_a_shared_store_are_never_used(llm, tmp_path):
    with quire.LLM(MODEL, threads=2, kv_dtype="float32") as foreign:
        theirs = ContextManager(foreign, store=tmp_path)
        theirs.add(CARDS[1], name="lars")
        theirs.save()
        answer = asked(theirs)
    ours = ContextManager(llm, store=tmp_path)
    before = computed(llm)
    with pytest.raises(quire.IncompatibleChunksError):
        ours.restore("lars")
    assert computed(llm) == before and len(ours) == 0
    with quire.LLM(MODEL, threads=2, kv_dtype="float32") as foreign:
        theirs = ContextManager(foreign, store=tmp_path)
        theirs.restore("lars")
        theirs.activate("lars")
        assert asked(theirs) == answer


def test_damage_anywhere_in_a_saved_item_is_a_miss_never_a_wrong_token(llm, tmp_path):
    ctx = ContextManager(llm, store=tmp_path)
    item = ctx.add(CARDS[1])
    ctx.save()
    answer = asked(ctx)
    (file,) = tmp_path.rglob("*.qkv")
    good, chance = file.read_bytes(), random.Random(3)
    used = 0
    for _ in range(60):
        offset = chance.choice((chance.randrange(len(good)), chance.randrange(min(4096, len(good)))))
        damaged = bytearray(good)
        damaged[offset] ^= 1 << chance.randrange(8)
        file.chmod(0o600)
        file.write_bytes(damaged)
        again = ContextManager(llm, store=tmp_path)
        again.restore(item)
        used += again.show(item).saved
        assert asked(again) == answer
    assert used < 30  # zeros between header and payload count for nothing


CHILD = """
import json, sys, quire
ctx = quire.ContextManager(quire.LLM({model!r}, threads=2), store={store!r})
ctx.add({keeper!r}, kind="system", name="keeper")
for name, card in {cards!r}.items():
    ctx.add(card, name=name, tags=["cards"])
ctx.deactivate("lars")
ctx.infer("What does Ada trade in?", {greedy!r})
ctx.save()
ids = [item.id for item in ctx]
sequence = ctx.llm.sequence(blocks=ctx.get_all_active_blocks()[0])
logits = sequence.logits().tolist()
output = ctx.infer("And where does Emil live?", {params!r})
print(json.dumps([ids, logits, output.token_ids, output.logprobs]))
"""


@pytest.mark.cpu_only
def test_saved_items_are_there_for_the_next_process(llm, tmp_path):
    params = {"seed": 3, "max_tokens": 64, "ignore_eos": True, "logprobs": 2}
    code = CHILD.format(
        model=str(MODEL), store=str(tmp_path / "store"), keeper=KEEPER, greedy=GREEDY, params=params,
        cards=dict(zip(("ada", "lars", "emil"), CARDS, strict=True)),
    )  # fmt: skip
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ids, logits, tokens, logprobs = json.loads(child.stdout)
    ctx = ContextManager(llm, store=tmp_path / "store")
    assert len(ctx) == 0
    before = computed(llm)
    for item in ids:
        ctx.restore(item)
    assert computed(llm) == before and [item.id for item in ctx] == ids
    assert [item.active for item in ctx] == [True, True, False, True, True, True]
    assert (ctx.show("lars").text, ctx.show("lars").tags) == (CARDS[1], ["cards"])
    assert next_logits(llm, ctx).tolist() == logits
    output = ctx.infer("And where does Emil live?", params)
    assert output.token_ids == tokens and len(tokens) == 64
    assert [{str(i): p for i, p in token.items()} for token in output.logprobs] == logprobs


def test_contexts_of_one_model_do_not_meet(llm):
    one, ids = context_of(llm)
    other, same = context_of(llm)
    assert same == ids
    one.deactivate(ids[1])
    one.erase(ids[2])
    assert [item.active for item in other] == [True] * 4
    assert asked(other) == asked(context_of(llm)[0])


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda m, c: ContextManager(m, mode="blend"), ValueError, "'anchored', 'exact', not 'blend'"),
        (lambda m, c: ContextManager("model"), TypeError, "LLM.*str"),
        (lambda m, c: ContextManager(m, store=__file__), OSError, "test_contexts"),
        (lambda m, c: ContextManager(m, store="a\0b"), ValueError, "null"),
        (lambda m, c: c.add("x", kind="output"), ValueError, "'system', 'context', not 'output'"),
        (lambda m, c: c.add(""), ValueError, "empty"),
        (lambda m, c: c.add([]), ValueError, "empty"),
        (lambda m, c: c.add([1 << 20]), ValueError, "1048576"),
        (lambda m, c: c.add([20] * 3000), quire.KVOverflowError, "3000"),
        (lambda m, c: c.add("x", tags="one"), TypeError, "tags"),
        (lambda m, c: c.add("Card 2.", name="ada"), ValueError, "'ada'"),
        (lambda m, c: c.tag("ada"), ValueError, "tag"),
        (lambda m, c: c.tag("ada", ""), ValueError, "tag"),
        (lambda m, c: c.compose([]), ValueError, "compose"),
        (lambda m, c: c.compose("ada"), TypeError, "list of ids"),
        (lambda m, c: c.infer("Who?", {"top_p": 2}), ValueError, "top_p"),
        (lambda m, c: c.infer(7), TypeError, "int"),
        (lambda m, c: c.infer("Who? " * 3000), quire.KVOverflowError, "context"),
        (lambda m, c: c.save("ada"), ValueError, "store="),
        (lambda m, c: c.save(), ValueError, "store="),
    ],
)
def test_refusals_name_the_thing_and_change_nothing(llm, call, error, names):
    ctx = ContextManager(llm)
    ctx.add(CARDS[0], name="ada")
    before = ctx.items(), llm.stats()["blocks_in_use"]
    with pytest.raises(error, match=names):
        call(llm, ctx)
    assert (ctx.items(), llm.stats()["blocks_in_use"]) == before


@pytest.mark.parametrize("item", ["nobody", "", "0" * 64, "0123", None, 7, b"ada"])
def test_unknown_items_are_named(llm, tmp_path, item):
    ctx = ContextManager(llm, store=tmp_path)
    ctx.add(CARDS[0], name="ada")
    calls = [ctx.activate, ctx.deactivate, ctx.show, ctx.restore, ctx.unload, ctx.erase, lambda i: ctx.compose([i]), lambda i: ctx.tag(i, "x")]
    for call in [*calls, *([] if item is None else [ctx.save])]:
        with pytest.raises(quire.ChunkNotFoundError) as raised:
            call(item)
        assert raised.value.chunk_id == (item if isinstance(item, str) and item else raised.value.chunk_id)
    assert len(ctx) == 1


def test_mode_exact_has_no_kv_of_single_items(llm, tmp_path):
    ctx, ids = context_of(llm, mode="exact", store=tmp_path)
    for call in (ctx.unload, ctx.save, ctx.restore):
        with pytest.raises(ValueError, match="mode 'exact'"):
            call(ids[1])


def test_the_end_of_the_model_is_that_of_its_contexts():
    llm = quire.LLM(MODEL, threads=1)
    ctx, ids = context_of(llm)
    blocks, _ = ctx.get_all_active_blocks()
    llm.close()
    calls = (
        ctx.populate, ctx.infer, ctx.get_all_active_blocks, lambda: ctx.add("x"), lambda: ctx.restore(ids[0]), ctx.items,
        ctx.stats, ctx.clear, lambda: len(ctx), lambda: list(ctx), lambda: ids[0] in ctx,
    )  # fmt: skip
    for call in calls:
        with pytest.raises(quire.ClosedError, match="LLM is closed"):
            call()
    assert repr(ctx) == "ContextManager(closed)"
    with pytest.raises(quire.ClosedError):
        ContextManager(llm)
    with pytest.raises(quire.ClosedError):
        llm.sequence(blocks=blocks)


def test_16_threads_share_one_context(llm):
    ctx, ids = context_of(llm, mode="exact")

    def work(index):
        own = ctx.add(f"Card {20 + index}. Nils counts to {index}.", tags=[str(index)])
        ctx.deactivate(own)
        outputs = [ctx.infer(f"Who counts to {index}?", {**GREEDY, "max_tokens": 4}) for _ in range(2)]
        assert ctx.show(own).tags == [str(index)] and own in ctx and len(ctx) > 4
        ctx.erase(own)
        return outputs

    for output in itertools.chain(*together(16, work)):
        plain = llm.generate(output.prompt_token_ids, {**GREEDY, "max_tokens": 4})
        assert output.token_ids == plain.token_ids
    assert len(ctx) == 4 + 2 * 32 and [item.id for item in ctx][:4] == ids
    kinds = [item.kind for item in ctx][4:]
    assert kinds == ["user", "output"] * 32  # turns do not mix


def test_16_threads_switch_and_ask_one_context(llm):
    ctx, ids = context_of(llm)
    logits, question = next_logits(llm, ctx), llm.tokenizer.encode("<q> What does Lars carry?<a>", add_special_tokens=False)
    expected, params = {}, {**GREEDY, "ignore_eos": True}
    for off in range(8):  # which cards are off, as bits
        for bit, item in enumerate(ids[1:]):
            (ctx.deactivate if off >> bit & 1 else ctx.activate)(item)
        output = llm.infer_from_blocks(ctx.get_all_active_blocks()[0], None, question, params)
        expected[tuple(output.prompt_token_ids)] = output.token_ids

    def work(index):
        chance, answers = random.Random(index), []
        while len(answers) < 8:
            chance.choice((ctx.activate, ctx.deactivate))(chance.choice(ids[1:]))
            try:
                answers.append(llm.infer_from_blocks(ctx.get_all_active_blocks()[0], None, question, params))
            except quire.InvalidCompositionError:  # somebody else has changed it since
                continue
        return answers

    for output in itertools.chain(*together(16, work)):
        assert output.token_ids == expected[tuple(output.prompt_token_ids)]
    for item in ids:
        ctx.activate(item)
    assert np.array_equal(next_logits(llm, ctx), logits)


def test_16_threads_move_the_items_of_one_context_through_all_tiers(llm, tmp_path):
    ctx, ids = context_of(llm, store=tmp_path)
    logits, work_done = next_logits(llm, ctx), computed(llm)

    def work(index):
        chance = random.Random(index)
        for _ in range(20):
            item = chance.choice(ids)
            chance.choice((ctx.unload, ctx.restore, ctx.save, ctx.show, ctx.activate, lambda _: ctx.populate()))(item)

    together(16, work)
    assert np.array_equal(next_logits(llm, ctx), logits) and computed(llm) == work_done + 1


def test_16_threads_use_contexts_of_their_own(llm):
    def work(index):
        ctx, ids = context_of(llm, CARDS[index % 3 :] + CARDS[: index % 3])
        answers = []
        for item in ids[1:]:
            ctx.deactivate(item)
            answers.append(asked(ctx))
            ctx.unload(item)
            ctx.activate(item)
        return answers

    assert together(16, work) == [work(index) for index in range(3)] * 5 + [work(0)]


def test_waiting_releases_the_gil(llm):
    ctx, _ = context_of(llm)
    assert ticks_during(lambda: ctx.infer("Who?", {"max_tokens": 100, "ignore_eos": True})) >= 5


def test_ctrl_c_ends_a_waiting_call_and_leaves_the_context():
    code = (
        "import quire, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"llm = quire.LLM({str(MODEL)!r}, threads=1, prefix_cache=False)\n"
        "ctx = quire.ContextManager(llm)\n"
        "ctx.add([20, 30])\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    while True:\n"
        "        output = ctx.infer('Who?', {'max_tokens': 1900, 'ignore_eos': True})\n"
        "        ctx.erase(output.user_id), ctx.erase(output.output_id)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', len(ctx), llm.stats()['blocks_in_use'], flush=True)\n"
    )
    assert output_after_ctrl_c(code) == "interrupted 1 1\n"
