"""The metrics page against vLLM's own, recorded: name by name, type by type, label by label, in its order."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from forebay.emulator.page import labels, number
from forebay.emulator.stats import Histogram

ROOT = Path(__file__).resolve().parents[3]
NAME = "metrics_vllm_idle.txt"
RECORDED = next(
    (
        folder / NAME
        for folder in (ROOT / "tests" / "fixtures" / "pages", ROOT.parent / "shared" / "reference" / "engine_pages")
        if (folder / NAME).exists()
    ),
    None,
)
KEPT = ROOT / "tests" / "fixtures" / "vllm"
"""Pages of a real vLLM that the e2e test recorded, and with which it compares the emulator anew."""
VALUES_OF_THEIR_OWN = {"model_name", "version", "patchlevel", "minor"}


@pytest.fixture
def as_recorded(serve, profile, body):
    """The page after what the recorded engine had served: two short chats and two looks, with its context limit."""
    alike = msgspec.structs.replace(profile, kv_tokens=4096, block_tokens=32)

    async def main(world):
        await world.get("/v1/models")
        await world.get("/is_sleeping")
        await world.chat(7, stream=False)
        await world.chat(14, stream=False)
        return (await world.get("/metrics")).body.decode()

    return serve(main, profile=alike)


def skeleton(page):
    """What comments and samples say, without values: ("HELP", name, text), ("TYPE", name, kind), (name, labels)."""
    lines = []
    for line in page.splitlines():
        if line.startswith("#"):
            _, what, name, rest = line.split(" ", 3)
            lines.append((what, name, rest))
        else:
            name, _, rest = line.rpartition(" ")[0].partition("{")
            pairs = [pair.partition("=")[::2] for pair in rest.rstrip("}").split(",") if pair]
            own = VALUES_OF_THEIR_OWN if name != "vllm:cache_config_info" else {key for key, _ in pairs}
            lines.append((name, tuple((key, "" if key in own else value) for key, value in pairs)))
    return lines


@pytest.mark.skipif(RECORDED is None, reason="the recorded page is not here: neither in tests/fixtures/pages nor beside the repository")
def test_names_types_helps_labels_and_order_are_the_recorded_ones(as_recorded):
    ours, theirs = skeleton(as_recorded), skeleton(RECORDED.read_text())
    assert [line for line in theirs if line not in ours] == []
    assert [line for line in ours if line not in theirs] == []
    assert ours == theirs


@pytest.mark.skipif(RECORDED is None, reason="the recorded page is not here: neither in tests/fixtures/pages nor beside the repository")
def test_the_page_is_about_as_long_as_the_recorded_one(as_recorded):
    assert len(as_recorded) == pytest.approx(len(RECORDED.read_text()), rel=0.05)


def test_an_engine_that_was_asked_nothing_has_vllms_idle_page(serve, profile):
    async def main(world):
        return (await world.get("/metrics")).body.decode()

    page = serve(main, profile=msgspec.structs.replace(profile, kv_tokens=4096, block_tokens=32))
    assert skeleton(page) == skeleton((KEPT / "idle.txt").read_text())


def test_requests_of_every_kind_leave_the_label_sets_that_they_leave_in_vllm(serve, profile):
    async def main(world):
        for path in ("/v1/models", "/version", "/load", "/health", "/ping", "/nowhere", "/v1/chat/completions"):
            await world.get(path)
        for tokens in (7, 14, 20):
            await world.chat(tokens, stream=tokens > 7)
        await (await world.connect()).request("POST", "/v1/completions", {"prompt": "def f(x):", "max_tokens": 5})
        await world.chat(5000)
        await world.chat(5, model="another")
        return (await world.get("/metrics")).body.decode()

    page = serve(main, profile=msgspec.structs.replace(profile, kv_tokens=4096, block_tokens=32))
    assert skeleton(page) == skeleton((KEPT / "after_requests_of_every_kind.txt").read_text())


def test_prometheus_own_parser_reads_it(as_recorded):
    families = {family.name: family for family in text_string_to_metric_families(as_recorded)}
    assert families["vllm:num_requests_running"].type == "gauge"
    assert families["vllm:generation_tokens"].type == "counter"
    assert families["vllm:generation_tokens"].samples[0].value == 21
    assert families["vllm:iteration_tokens_total"].type == "histogram"
    config = families["vllm:cache_config_info"].samples[0].labels
    assert (config["block_size"], config["num_gpu_blocks"], config["kv_cache_size_tokens"]) == ("32", "128", "4096")
    finished = {s.labels["finished_reason"]: s.value for s in families["vllm:request_success"].samples}
    assert finished == {"stop": 0, "length": 2, "abort": 0, "error": 0, "repetition": 0}
    http = {(s.labels["handler"], s.labels["status"]): s.value for s in families["http_requests"].samples}
    assert http == {("/v1/models", "2xx"): 1, ("/is_sleeping", "2xx"): 1, ("/v1/chat/completions", "2xx"): 2}


def test_buckets_are_cumulative_and_end_at_the_count(as_recorded):
    for family in text_string_to_metric_families(as_recorded):
        if family.type == "histogram" and not family.name.startswith("http"):
            buckets = [s.value for s in family.samples if s.name.endswith("_bucket")]
            count = next(s.value for s in family.samples if s.name.endswith("_count"))
            assert buckets == sorted(buckets)
            assert buckets[-1] == count > 0, family.name


def test_scrapes_probes_and_unknown_paths_make_no_label_values(serve):
    async def main(world):
        for path in ("/health", "/metrics", "/load", "/version", "/nothing", "/v1/completions"):
            await world.get(path)
        return await world.metrics()

    page = serve(main)
    handlers = {key for key in page if key.startswith("http_requests_total")}
    assert handlers == {'http_requests_total{handler="none",method="GET",status="4xx"}'}
    assert page['http_requests_total{handler="none",method="GET",status="4xx"}'] == 2


def test_a_second_scrape_shows_only_what_has_changed(serve):
    async def main(world):
        first = (await world.get("/metrics")).body
        second = (await world.get("/metrics")).body
        await world.chat(3)
        return first, second, (await world.get("/metrics")).body

    first, second, third = serve(main)
    assert first == second
    changed = {a.split(b"{")[0] for a, b in zip(first.splitlines(), third.splitlines(), strict=False) if a != b}
    assert b"vllm:generation_tokens_total" in changed
    assert b"vllm:num_preemptions_total" not in changed


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_numbers_are_written_as_the_python_client_does(value):
    assert number(value) == floatToGoString(value)


def test_label_values_are_escaped():
    assert labels({"b": 'say "hi"\\\n', "a": "1"}) == '{a="1",b="say \\"hi\\"\\\\\\n"}'


@given(st.lists(st.floats(0, 100), max_size=30))
def test_a_histogram_counts_each_value_in_the_least_bound_that_holds_it(values):
    histogram = Histogram((1.0, 2.5, 10.0))
    for value in values:
        histogram.observe(value)
    at_most = [sum(value <= bound for value in values) for bound in histogram.bounds]
    assert [sum(histogram.counts[: index + 1]) for index in range(3)] == at_most
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))
