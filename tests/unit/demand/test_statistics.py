"""Statistics of a trace are those of its rows, however they were cut into chunks, in memory that doesn't grow with them."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.demand.arrays import Arrivals, taken
from forebay.demand.series import RateSeries, Unit
from forebay.demand.statistics import LengthCounts, Meter, of_series
from forebay.demand.synthesis import bare


def rows(at_s, prompt=None, output=None) -> Arrivals:
    at_s = np.array(at_s, np.float64)
    lengths = [np.array(given, np.int32) if given is not None else np.full(len(at_s), 5, np.int32) for given in (prompt, output)]
    return bare(at_s, *lengths)


def measured(source: Arrivals, sizes: list[int], duration_s: float):
    meter = Meter()
    start = 0
    for size in [*sizes, len(source.at_s)]:
        meter.add(taken(source, slice(start, start + size)))
        start += size
    return meter.result("t", 0.0, duration_s, ("a", "b"))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 599), min_size=3, max_size=60).map(sorted), st.lists(st.integers(0, 20), max_size=4))
def test_chunks_make_no_difference_and_numbers_are_numpys(times, sizes):
    prompt = [int(at) % 9 + 1 for at in times]
    source = rows(times, prompt)
    found = measured(source, sizes, 600.0)
    whole = measured(source, [], 600.0)
    # Sums of floats depend on where the chunks end; all else is equal to the bit.
    assert msgspec.structs.replace(found, bursts=whole.bursts) == whole
    assert found.bursts.busiest_second == whole.bursts.busiest_second
    assert found.requests == len(times)
    assert found.rates.mean == pytest.approx(len(times) / 600)
    gaps = np.diff(times)
    if gaps.mean() > 1e-3:
        assert found.bursts.gap_cv == pytest.approx(gaps.std() / gaps.mean(), abs=1e-6)
    assert found.bursts.longest_gap_s == pytest.approx(gaps.max())
    counts = np.histogram(times, np.arange(0, 601, 10))[0]
    assert found.bursts.dispersion["10s"] == pytest.approx(counts.var() / counts.mean())
    assert found.bursts.busiest_second == np.bincount(np.array(times).astype(int)).max()
    assert found.prompt_tokens.p50 == np.quantile(prompt, 0.5, method="inverted_cdf")
    minutes = np.histogram(times, np.arange(0, 601, 60))[0]
    assert found.rates.peak_minute == pytest.approx(minutes.max() / 60)
    assert found.rates.peak_minute_at_s == 60 * int(minutes.argmax())
    assert found.rates.hourly_peak_to_mean is None


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_quantiles_of_lengths_are_exact_when_short_and_close_when_long(tokens, share):
    counts = LengthCounts()
    counts.add(np.array(tokens, np.int32))
    found = counts.result()
    wanted = np.quantile(tokens, share, method="inverted_cdf")
    got = {0.5: found.p50, 0.9: found.p90, 0.99: found.p99}[share]
    assert got == wanted if wanted < 2048 else got == pytest.approx(wanted, rel=0.006)
    assert found.mean == pytest.approx(np.mean(tokens))
    assert found.max == max(tokens)
    lengths, upto = counts.distribution()
    assert np.all(np.diff(lengths) >= 0)
    assert upto[-1] == 1.0


def test_a_poisson_stream_has_dispersion_one():
    at_s = np.cumsum(np.random.default_rng(1).exponential(0.05, 40_000))
    found = measured(rows(at_s), [1000], float(np.ceil(at_s[-1])))
    assert found.bursts.gap_cv == pytest.approx(1.0, abs=0.02)
    assert found.bursts.dispersion["1s"] == pytest.approx(1.0, abs=0.1)


def test_copies_tiers_and_shared_prefixes_are_counted():
    source = rows([0, 0, 1, 1], [7, 7, 7, 8])
    source = source._replace(
        tier=np.array([0, 1, 1, -1], np.int16), group=np.array([0, 0, 1, -1]), shared_tokens=np.array([0, 6, 0, 0], np.int32)
    )
    found = measured(source, [1], 2.0)
    assert found.repeated == 1
    assert found.tiers == {"a": 1, "b": 2}
    assert (found.prefixes.requests_share, found.prefixes.tokens_share) == (0.25, 6 / 29)
    assert measured(rows([0, 1]), [], 2.0).prefixes is None


def test_seasons_are_seen_where_the_series_is_long_enough():
    day = np.sin(2 * np.pi * np.arange(144) / 144) + 2
    week = np.concatenate([day * (0.5 if number >= 5 else 1.0) for number in range(7)])
    found = of_series(RateSeries(0.0, 600.0, np.tile(week, 2)))
    assert found.rates.acf["7d"] == pytest.approx(1.0)
    assert 0.2 < found.rates.acf["24h"] < 0.95
    assert found.rates.hourly_peak_to_mean > 1
    assert found.requests == pytest.approx(week.sum() * 1200, abs=1)
    short = of_series(RateSeries(0.0, 600.0, day, Unit.PROMPT_TOKENS))
    assert short.rates.acf == {"24h": None, "7d": None}
    assert (short.requests, short.unit, short.bursts) == (0, "prompt tokens/s", None)


def test_nothing_has_no_statistics_and_no_end_is_refused():
    with pytest.raises(ValueError, match="without rows"):
        measured(rows([]), [], 1.0)
    with pytest.raises(ValueError, match="statistics are kept"):
        measured(rows([1e9]), [], 1.0)
