"""/metrics, read by the parser of prometheus-client and by promtool: counters are the sums of what answers said."""
import re
import shutil
import subprocess

import httpx
import pytest
from conftest import asked
from prometheus_client.parser import text_string_to_metric_families

COUNTED = {
    "vllm:prompt_tokens": lambda usage: usage["prompt_tokens"],
    "vllm:prompt_tokens_cached": lambda usage: usage["prompt_tokens_details"]["cached_tokens"],
    "vllm:generation_tokens": lambda usage: usage["completion_tokens"],
}
GAUGES = {"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"}


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def scrape(http):
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain") and "0.0.4" in response.headers["content-type"]
    return {family.name: family for family in text_string_to_metric_families(response.text)}


def total(families, name):
    return sum(sample.value for sample in families[name].samples if sample.name == f"{name}_total") if name in families else 0


def ask(http, **fields):
    body = {"model": "cardfile", "messages": asked(), "temperature": 0, "max_tokens": 12, **fields}
    return http.post("/v1/chat/completions", json=body)


def test_counters_are_the_sums_of_the_answers(http):
    before = scrape(http)
    usages = [ask(http).json()["usage"], ask(http, n=2, temperature=1).json()["usage"]]
    lines = ask(http, stream=True, stream_options={"include_usage": True}).text.splitlines()
    usages.append(next(httpx.Response(200, text=line[6:]).json() for line in lines if '"choices":[]' in line)["usage"])
    after = scrape(http)
    for name, of in COUNTED.items():
        assert total(after, name) - total(before, name) == sum(map(of, usages)), name
    assert total(after, "quire_requests") - total(before, "quire_requests") == 3


def test_refusals_count_no_token(http):
    before = scrape(http)
    assert ask(http, temperature=9).status_code == 400
    after = scrape(http)
    assert all(total(after, name) == total(before, name) for name in COUNTED)


def test_the_gauges_of_routers_are_there_with_their_types(http):
    ask(http)
    families = scrape(http)
    assert {families[name].type for name in GAUGES} == {"gauge"}
    config = families["vllm:cache_config_info"].samples[0].labels
    assert int(config["block_size"]) > 0 and int(config["num_gpu_blocks"]) > 0
    assert 0 <= families["vllm:kv_cache_usage_perc"].samples[0].value <= 1
    assert families["vllm:time_to_first_token_seconds"].type == "histogram"
    assert all(sample.labels.get("model_name") == "cardfile" for sample in families["vllm:prompt_tokens"].samples)


def test_no_prompt_and_no_id_stands_in_a_label(http):
    answer = ask(http).json()
    text = http.get("/metrics").text
    assert "Foxley" not in text and answer["id"] not in text and "keeper" not in text


def test_promtool_finds_nothing_to_say_of_our_own_names(http):
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("no promtool")
    text = http.get("/metrics").text
    # promtool dislikes the colons of vLLM's names, and nothing else may be wrong with them.
    done = subprocess.run([promtool, "check", "metrics"], input=re.sub(r"\bvllm:", "vllm_", text), capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if line.startswith("quire_") or "error" in line]
    assert ours == []
