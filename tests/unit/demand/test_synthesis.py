"""Made-up arrivals have the rate they were asked for, the burstiness they were asked for, and the same bytes for the same seed."""

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.demand import servegen
from forebay.demand.arrays import CHUNK_ROWS
from forebay.demand.intensity import Intensity, level, smooth
from forebay.demand.lengths import FromRows, Lognormal, Percentiles, mean_of, pieces
from forebay.demand.synthesis import UNSAID, requests, tier_weights, tiered, times

SHARED = Path(__file__).resolve().parents[4] / "shared" / "traces"
RATES = st.lists(st.floats(0, 50), min_size=1, max_size=8)


def chance(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@settings(max_examples=25, deadline=None)
@given(RATES, st.sampled_from([1.0, 60.0, 600.0]))
def test_a_smooth_rate_keeps_every_mean_and_never_falls_below_zero(values, step_s):
    found = smooth(np.array(values), step_s)
    marks = np.arange(len(values) + 1) * step_s
    assert found.expected(marks) == pytest.approx(np.array(values) * step_s, abs=1e-6)
    assert found.left.min() >= 0
    assert found.right.min() >= 0
    # Continuous: each piece begins where the one before ended.
    assert found.left[1:] == pytest.approx(found.right[:-1])


@settings(max_examples=25, deadline=None)
@given(RATES, st.floats(0.1, 0.9), st.floats(0.05, 0.5))
def test_a_window_and_cuts_keep_the_integral(values, start, length):
    whole = smooth(np.array(values), 10.0)
    start_s, length_s = start * whole.duration_s, length * whole.duration_s
    part = whole.window(start_s, length_s)
    end_s = min(start_s + length_s, whole.duration_s)
    assert part.duration_s == pytest.approx(end_s - start_s)
    assert part.cumulated()[-1] == pytest.approx(float(whole.expected(np.array([start_s, end_s]))[0]), abs=1e-6)
    assert whole.cut(np.array([start_s])).cumulated()[-1] == pytest.approx(whole.cumulated()[-1])


@settings(max_examples=25, deadline=None)
@given(RATES.filter(lambda values: sum(values) > 1), st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_the_inverse_of_the_integral_is_its_inverse(values, shares):
    rate = smooth(np.array(values), 60.0)
    cumulated = rate.cumulated()
    due = np.sort(np.array(shares)) * cumulated[-1]
    at_s = rate.times(due, cumulated)
    assert np.all(np.diff(at_s) >= 0)
    marks = np.concatenate((np.zeros(1), at_s))
    assert np.cumsum(rate.expected(marks)) == pytest.approx(due, abs=1e-5 * cumulated[-1])


def test_rates_are_joined_padded_and_multiplied():
    first, second = level(np.array([1.0, 3.0]), 10.0), level(np.array([2.0]), 5.0)
    assert first.then(second).expected(np.array([0.0, 20.0, 25.0])).tolist() == [40.0, 10.0]
    assert first.plus(second).expected(np.array([0.0, 5.0, 10.0, 20.0])).tolist() == [15.0, 5.0, 30.0]
    assert second.plus(first).cumulated()[-1] == 50.0
    assert first.stretched(2.0).expected(np.array([0.0, 20.0, 40.0])).tolist() == [10.0, 30.0]
    doubled = first.multiplied(lambda at_s: np.where(at_s >= 10, 2.0, 1.0), 5.0)
    assert doubled.expected(np.array([0.0, 10.0, 20.0])).tolist() == [10.0, pytest.approx(60.0)]
    with pytest.raises(ValueError, match="there is nothing"):
        first.window(20.0, 1.0)


def test_noise_is_a_factor_a_minute_with_mean_one():
    calm = level(np.full(2000, 2.0), 60.0)
    noisy = calm.noisy(0.05, 60.0, chance())
    factors = noisy.expected(np.arange(2001) * 60.0) / 120.0
    assert factors.mean() == pytest.approx(1.0, abs=0.005)
    assert factors.std() == pytest.approx(0.05, rel=0.1)
    assert calm.noisy(0.0, 60.0, chance()) is calm


def drawn(rate: Intensity, cv: float, seed: int = 1) -> np.ndarray:
    chunks = list(times(rate, cv, chance(seed)))
    assert all(0 < len(chunk) <= CHUNK_ROWS for chunk in chunks)
    return np.concatenate(chunks) if chunks else np.empty(0)


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 3.0])
def test_arrivals_have_the_rate_and_the_variation_of_gaps_asked_for(cv):
    at_s = drawn(level(np.full(100, 20.0), 60.0), cv)
    assert np.all(np.diff(at_s) >= 0)
    assert at_s[-1] < 6000
    assert len(at_s) == pytest.approx(120_000, abs=6 * max(cv, 0.1) * math.sqrt(120_000) + 1)
    gaps = np.diff(at_s)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.03 * max(cv, 1) + 1e-6)


def test_a_bursty_process_does_not_begin_with_a_burst():
    rate = level(np.array([1.0]), 10.0)
    counts = [len(drawn(rate, 5.0, seed)) for seed in range(400)]
    # Begun with an arrival it would be (25 - 1) / 2 more.
    assert np.mean(counts) == pytest.approx(10.0, abs=2.5)


def test_the_same_seed_gives_the_same_arrivals_and_another_seed_others():
    rate = smooth(np.array([5.0, 20.0, 1.0]), 60.0)
    assert drawn(rate, 2.0, 7).tobytes() == drawn(rate, 2.0, 7).tobytes()
    assert drawn(rate, 2.0, 7).tobytes() != drawn(rate, 2.0, 8).tobytes()


@pytest.mark.parametrize("cv", [-1.0, float("nan"), float("inf")])
def test_a_variation_that_is_none_is_refused(cv):
    with pytest.raises(ValueError, match="coefficient of variation"):
        list(times(level(np.array([1.0]), 1.0), cv, chance()))


def test_lengths_come_from_rows_in_pairs():
    sampler = FromRows(np.array([10, 20, 30], np.int32), np.array([1, 2, 3], np.int32))
    prompt, output = sampler.draw(1000, chance())
    assert prompt.dtype == output.dtype == np.int32
    assert np.all(prompt == 10 * output)
    assert set(prompt.tolist()) == {10, 20, 30}
    assert sampler.prompt_tokens_mean == 20.0
    with pytest.raises(ValueError, match="at least one row"):
        FromRows(np.empty(0, np.int32), np.empty(0, np.int32))


def test_lognormal_lengths_have_their_means():
    prompt, output = Lognormal(1155, 211, 1.0).draw(200_000, chance())
    assert prompt.mean() == pytest.approx(1155, rel=0.02)
    assert output.mean() == pytest.approx(211, rel=0.02)
    assert prompt.std() / prompt.mean() == pytest.approx(1.0, rel=0.05)
    assert Lognormal(5, 7, 0.0).draw(3, chance())[1].tolist() == [7, 7, 7]
    with pytest.raises(ValueError, match="means are at least 1"):
        Lognormal(0, 1)


def test_percentiles_are_met():
    sampler = Percentiles((905, 3792, 6519), (24, 350, 597, 1118))
    prompt, output = sampler.draw(200_000, chance())
    assert np.quantile(prompt, [0.5, 0.9, 0.99]) == pytest.approx([905, 3792, 6519], rel=0.03)
    assert np.quantile(output, [0.1, 0.5, 0.9, 0.99]) == pytest.approx([24, 350, 597, 1118], rel=0.05)
    assert prompt.max() <= 2 * 6519
    assert sampler.prompt_tokens_mean == pytest.approx(prompt.mean(), rel=0.01)
    with pytest.raises(ValueError, match="that rise"):
        Percentiles((5, 4, 3), (1, 1, 1))
    assert mean_of(pieces(np.array([[7.0, 7.0, 7.0]]))[0]) == 7.0


def test_tiers_are_drawn_where_they_are_unsaid():
    at_s = np.arange(1000.0)
    (chunk,) = requests(iter([at_s]), Lognormal(10, 10), chance())
    assert set(chunk.tier.tolist()) == {UNSAID}
    named = chunk._replace(tier=np.where(np.arange(1000) < 10, 2, UNSAID).astype(np.int16))
    (found,) = tiered(iter([named]), [0.75, 0.25, 0.0], chance())
    assert found.tier[:10].tolist() == [2] * 10
    assert np.mean(found.tier[10:] == 1) == pytest.approx(0.25, abs=0.05)
    assert 2 not in found.tier[10:].tolist()
    (only,) = tiered(iter([chunk]), [0.0, 1.0], chance())
    assert set(only.tier.tolist()) == {1}
    assert next(tiered(iter([only]), [1.0], chance())) is only
    for wrong in ([], [-1.0, 2.0], [0.0]):
        with pytest.raises(ValueError, match="weights of tiers"):
            list(tiered(iter([chunk]), wrong, chance()))


def test_weights_of_tiers_go_by_name():
    assert tier_weights(("a", "b"), None) == [1.0, 0.0]
    assert tier_weights(("a", "b"), {"b": 2}) == [0.0, 2.0]
    with pytest.raises(ValueError, match="'c' is none of a, b"):
        tier_weights(("a", "b"), {"c": 2})


CLIENTS = "client,t_s,rate_rps,cv,pattern,shape,scale\n"
LENGTHS = "client,t_s,requests,in_mean,in_p50,in_p90,in_p99,out_mean,out_p50,out_p90,out_p99\n"


def test_clients_send_exactly_what_was_recorded_in_each_window():
    text = CLIENTS + "1,0,0.5,1,G,0.02,1\n2,0,0.0016666,1,W,0.2,1\n1,600,2,1,E,,\n3,1800,0.1,1,G,5,1\n"
    sent = servegen.clients(text.splitlines(), "t")
    rows = list(servegen.arrivals(sent, Lognormal(10, 10), 1.0, 0.0, math.inf, chance()))
    at_s = np.concatenate([chunk.at_s for chunk in rows])
    assert np.histogram(at_s, [0, 600, 1200, 1800, 2400])[0].tolist() == [301, 1200, 0, 60]
    assert np.all(np.diff(at_s) >= 0)
    part = np.concatenate([chunk.at_s for chunk in servegen.arrivals(sent, Lognormal(10, 10), 1.0, 300.0, 600.0, chance())])
    assert 0 <= part.min() <= part.max() < 600
    scaled = sum(len(chunk.at_s) for chunk in servegen.arrivals(sent, Lognormal(10, 10), 0.25, 0.0, math.inf, chance()))
    assert scaled == pytest.approx(1561 / 4, abs=3)


def test_gaps_of_a_client_vary_as_its_shape_says():
    sent = servegen.clients((CLIENTS + "1,0,50,1,G,0.25,1\n").splitlines(), "t")
    at_s = np.concatenate([chunk.at_s for chunk in servegen.arrivals(sent, Lognormal(10, 10), 1.0, 0.0, 600.0, chance())])
    gaps = np.diff(at_s)
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.05)


def test_lengths_are_each_clients_own_and_a_stranger_has_those_of_a_random_request():
    text = LENGTHS + "1,0,99,0,10,10,10,0,1,1,1\n2,0,1,0,500,500,500,0,5,5,5\n1,21600,0,0,70,70,70,0,7,7,7\n"
    lengths = servegen.ClientLengths(text.splitlines(), "t")
    client = np.array([1, 2, 3] * 500)
    prompt, output = lengths.draw_for(client, 0.0, chance())
    assert set(prompt[0::3].tolist()) == {10}
    assert set(prompt[1::3].tolist()) == {500}
    assert np.mean(prompt[2::3] == 10) > 0.95
    assert np.all((prompt == 500) == (output == 5))
    assert set(lengths.draw_for(client[:1], 30_000.0, chance())[0].tolist()) == {70}
    assert set(lengths.draw_for(np.array([2]), 90_000.0, chance())[0].tolist()) == {500}
    assert lengths.prompt_tokens_mean == pytest.approx(0.99 * 10 + 0.01 * 500)
    assert lengths.draw(1000, chance())[0].mean() == pytest.approx(15, abs=5)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not beside this checkout")
def test_a_day_of_real_clients_has_the_published_mean_length():
    lines = gzip.decompress((SHARED / "servegen" / "deepseek-r1-lengths.csv.gz").read_bytes()).decode().splitlines()
    assert servegen.ClientLengths(lines, "t").prompt_tokens_mean == pytest.approx(1268, rel=0.08)
