"""The scan of a metrics page against the standard library's parser, and against pages as ill as they come."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from forebay.adapters.scrape import scan
from forebay.adapters.scrape.scan import LLAMACPP, VLLM
from forebay.domain.signal import Known, Unknown

ROOT = Path(__file__).resolve().parents[2]
OWN = ROOT / "tests" / "fixtures" / "pages"
RECORDED = ROOT.parent / "shared" / "reference" / "engine_pages"
PAGES = sorted(OWN.glob("*.txt")) + sorted(RECORDED.glob("metrics_*.txt"))


def oracle(text):
    """Values by exact sample name, from the library."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.value)
    return found


def line(name, value, labels='engine="0",model_name="m"'):
    return f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"


def vllm(**values):
    names = {
        "waiting": "vllm:num_requests_waiting",
        "running": "vllm:num_requests_running",
        "kv_usage": "vllm:kv_cache_usage_perc",
        "generated_tokens_total": "vllm:generation_tokens_total",
    }
    return "".join(line(names[signal], value) for signal, value in values.items()).encode()


def test_recorded_pages_are_there():
    if not RECORDED.is_dir():
        pytest.skip(f"no recorded engine pages at {RECORDED}: only this repository's two are compared")
    assert len(PAGES) >= 10


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_it_reads_what_the_library_reads(path):
    page = path.read_bytes()
    found = scan(page, 7.0)
    known = oracle(page.decode())
    names_of_kind = LLAMACPP if "llamacpp" in path.stem else VLLM
    assert found.live_counters == ("llamacpp" not in path.stem)
    for names in names_of_kind:
        values = known.get(names.names[0].decode())
        wanted = Unknown("missing") if values is None else Known(names.join(values), 7.0)
        assert getattr(found.signals, names.signal) == wanted, names.signal
    assert isinstance(found.signals.waiting, Known)


def test_data_parallel_engines_are_joined():
    signals = scan((OWN / "vllm_two_engines.txt").read_bytes(), 7.0).signals
    assert signals.waiting == Known(13.0, 7.0)
    assert signals.running == Known(12.0, 7.0)
    assert signals.kv_usage == Known(0.875, 7.0)
    assert signals.generated_tokens_total == Known(700.0, 7.0)
    assert signals.prompt_tokens_total == Known(4e6, 7.0)
    assert signals.preemptions_total == Known(3.0, 7.0)
    assert signals.kv_tokens == Known(131072.0, 7.0)
    assert signals.sequences_max == Unknown("missing")


def test_blocks_are_already_the_sum_over_engines():
    text = "".join(line("vllm:cache_config_info", 1.0, f'block_size="32",engine="{n}",num_gpu_blocks="256"') for n in (0, 1))
    assert scan(text.encode(), 1.0).signals.kv_tokens == Known(8192.0, 1.0)


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ('block_size="16",kv_cache_size_tokens="None",num_gpu_blocks="100"', Known(1600.0, 1.0)),
        ('block_size="16",num_gpu_blocks="None"', Unknown("missing")),
        ('block_size="16"', Unknown("missing")),
        ('kv_cache_size_tokens="0"', Unknown("nan")),
        ('kv_cache_size_tokens="nan"', Unknown("nan")),
        ('note="a } brace, a \\" quote",kv_cache_size_tokens="64"', Known(64.0, 1.0)),
    ],
)
def test_capacity_of_one_engine(labels, wanted):
    assert scan(line("vllm:cache_config_info", 1.0, labels).encode(), 1.0).signals.kv_tokens == wanted


def test_what_waits_for_no_place_is_told_apart():
    name = "vllm:num_requests_waiting_by_reason"
    rows = [("capacity", 5, 0), ("deferred", 2, 0), ("capacity", 1, 1), ("deferred", 3, 1)]
    page = "".join(line(name, value, f'engine="{engine}",reason="{reason}"') for reason, value, engine in rows)
    assert scan(page.encode(), 1.0).signals.deferred == Known(5.0, 1.0)
    assert scan((page + line(name, "NaN", 'engine="2",reason="deferred"')).encode(), 1.0).signals.deferred == Unknown("nan")
    assert scan(vllm(waiting=4), 1.0).signals.deferred == Unknown("missing")


def test_older_names_are_known_and_newer_ones_win():
    old = line("vllm:gpu_cache_usage_perc", 0.5)
    assert scan(old.encode(), 1.0).signals.kv_usage == Known(0.5, 1.0)
    assert scan((old + line("vllm:kv_cache_usage_perc", 0.75)).encode(), 1.0).signals.kv_usage == Known(0.75, 1.0)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("NaN", Unknown("nan")),
        ("+Inf", Unknown("nan")),
        ("-1", Unknown("negative")),
        ("many", Unknown("malformed")),
        ("1_000", Unknown("malformed")),
        ("", Unknown("malformed")),
        ("1.5e3", Known(1500.0, 1.0)),
        ("4 1700000000000", Known(4.0, 1.0)),
        ("4\r", Known(4.0, 1.0)),
        ('4 # {trace_id="}x"} 1.0', Known(4.0, 1.0)),
    ],
)
def test_a_value_is_a_number_or_unknown(value, wanted):
    assert scan(vllm(waiting=value, running="2"), 1.0).signals.waiting == wanted
    assert scan(vllm(waiting=value, running="2"), 1.0).signals.running == Known(2.0, 1.0)


def test_one_ill_series_makes_the_signal_unknown():
    page = line("vllm:num_requests_waiting", 1.0) + line("vllm:num_requests_waiting", "NaN", 'engine="1"')
    assert scan(page.encode(), 1.0).signals.waiting == Unknown("nan")


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"# HELP vllm:num_requests_waiting 5\n",
        b"vllm:num_requests_waiting_by_reason{} 5\n",
        b"xvllm:num_requests_waiting 5\n",
        b'other{help="\\nvllm:num_requests_waiting 5"} 1\n',
        b"<html>vllm:num_requests_waiting</html>",
    ],
)
def test_what_is_not_there_is_missing(page):
    assert scan(page, 1.0).signals.waiting == Unknown("missing")


@pytest.mark.parametrize(
    "page",
    [b"vllm:num_requests_waiting", b"vllm:num_requests_waiting{engine=", b"vllm:num_requests_waiting{} ", b"vllm:num_requests_waiting\n"],
)
def test_a_cut_page_is_malformed_not_zero(page):
    assert scan(page, 1.0).signals.waiting == Unknown("malformed")


def test_no_labels_and_no_last_newline():
    assert scan(b"vllm:num_requests_waiting 3", 1.0).signals.waiting == Known(3.0, 1.0)


LABEL_VALUE = st.text(st.sampled_from('a"\\{}, =\n#'), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e9), LABEL_VALUE), min_size=1, max_size=4),
    st.lists(
        st.sampled_from(["# HELP a b\n", "\n", "vllm:num_requests_waiting_total 9\n", 'x{y="vllm:num_requests_waiting 1"} 2\n']), max_size=4
    ),
)
def test_any_labels_like_the_library(series, noise):
    escaped = [(value, label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for value, label in series]
    lines = [
        line("vllm:num_requests_waiting", repr(value), f'engine="{n}",model_name="{label}"') for n, (value, label) in enumerate(escaped)
    ]
    text = "".join([*noise, *lines, *noise])
    wanted = math.fsum(oracle(text)["vllm:num_requests_waiting"])
    assert scan(text.encode(), 1.0).signals.waiting.value == pytest.approx(wanted)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                b"vllm:num_requests_waiting",
                b"llamacpp:requests_deferred",
                b"{",
                b"}",
                b'"',
                b"\\",
                b" ",
                b"\n",
                b"1",
                b"NaN",
                b"e=",
                b"\xff",
            ]
        ),
        max_size=30,
    )
)
def test_it_is_total(pieces):
    signals = scan(b"".join(pieces), 1.0).signals
    assert isinstance(signals.waiting, Known | Unknown)
