"""Metrics for operators. The library's own test is src/quire/api/metrics_test.cc."""

import math
import re

import pytest

import quire
from conftest import MODEL, ROOT, some_ids

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"


def families(text):
    """Returns each family of Prometheus' text format 0.0.4 as (type, {sample: value}); strict, and by lines."""
    found, name = {}, None
    assert text.endswith("\n")
    for line in text.splitlines():
        if head := re.fullmatch(rf"# HELP ({NAME}) [^\\]+", line):
            name = head[1]
            assert name not in found, line
            found[name] = ["", {}]
        elif head := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge|histogram)", line):
            assert head[1] == name and found[name] == ["", {}], line
            found[name][0] = head[2]
        else:
            sample = re.fullmatch(rf'({NAME})(?:{{le="([^"]+)"}})? (\S+)', line)
            kind, samples = found[name]
            suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            assert sample and sample[1].removeprefix(name) in suffixes, line
            assert (sample[2] is not None) == sample[1].endswith("_bucket"), line
            assert line not in samples, line
            samples[sample[1].removeprefix(name), sample[2] and float(sample[2])] = float(sample[3])
    return found


def test_the_text_has_every_statistic_and_histograms_that_add_up():
    with quire.LLM(MODEL, threads=2, block_tokens=8) as llm:
        for seed in range(5):
            llm.generate(some_ids(20, seed), {"temperature": 0, "max_tokens": 3})
        found, stats = families(llm.metrics_text()), llm.stats()
        assert [group["kind"] for group in stats["groups"]] == ["full"]
        for name, value in stats.items():
            if name == "groups":
                continue  # the sums of the groups are there
            kind, samples = found.get(f"quire_{name}") or found[f"quire_{name}_total"]
            assert kind == ("gauge" if f"quire_{name}" in found else "counter")
            assert samples == {("", None): value}, name
        histograms = {name: samples for name, (kind, samples) in found.items() if kind == "histogram"}
        assert set(histograms) == {"quire_time_to_first_token_seconds", "quire_queue_time_seconds", "quire_step_time_seconds"}
        for samples in histograms.values():
            buckets = [(bound, count) for (part, bound), count in samples.items() if part == "_bucket"]
            assert buckets == sorted(buckets) and buckets[-1] == (math.inf, samples["_count", None])
            assert [count for _, count in buckets] == sorted(count for _, count in buckets)
        assert histograms["quire_time_to_first_token_seconds"]["_count", None] == 5
        assert histograms["quire_step_time_seconds"]["_count", None] == stats["steps"]
    with pytest.raises(quire.ClosedError):
        llm.metrics_text()


def test_groups_tell_that_layers_with_a_window_hold_less():
    model = str(ROOT / "tests" / "golden" / "model" / "gemma3")
    with quire.LLM(model, threads=2, block_tokens=8) as llm:
        ids = [20 + i % 100 for i in some_ids(160, 1)]
        sequence = llm.sequence(ids)
        groups = {group["kind"]: group for group in llm.stats()["groups"]}
        assert groups["full"]["bytes_in_use"] == 160 * groups["full"]["bytes_per_token"]
        assert groups["window"]["window"] == 24
        assert 24 <= groups["window"]["bytes_in_use"] / groups["window"]["bytes_per_token"] <= 5 * 8
        assert groups["full"]["bytes_free"] == groups["window"]["bytes_free"] == llm.stats()["bytes_free"]
        assert sequence.tokens == ids
