"""Demand as work: what a request must cost whoever serves it, where in time it falls, and the least that keeps the promise."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.demand.arrays import Arrivals
from forebay.domain.errors import BadInput
from forebay.domain.profile import ColdStart, Profile, StepLaw, StepSpread
from forebay.domain.roster import Capacity
from forebay.simulation import clairvoyant_work as works
from forebay.simulation.clairvoyant_misses import table
from forebay.simulation.clairvoyant_sample import Sampler
from forebay.simulation.values import FleetRules, Queueing, TierRules

PROFILE = Profile("p", "m", "h", 2, StepLaw(0.010, 1e-4, 1e-7, 1e-5), 50, 100_000, 16, 2048, 1, 10_000, ColdStart(60.0, 0.0, 1.0, 0.0))
RULES = FleetRules(
    PROFILE,
    Capacity(100_000, 40, 100_000, 1e5, 1e3, 10_000),
    (TierRules("interactive", 1.0, 0.05, 30.0), TierRules("batch", 3600.0, 0.05, 86_400.0, preemptible=True)),
)


def chunk(rows, tier=0, shared=0):
    at_s, prompt, output = zip(*rows, strict=True)
    count = len(rows)
    return Arrivals(
        np.array(at_s, np.float64),
        np.array(prompt, np.int32),
        np.array(output, np.int32),
        np.full(count, tier, np.int16),
        np.full(count, -1, np.int64),
        np.full(count, shared, np.int32),
    )


def work(rows, duration_s=100.0, attainment=1.0, rules=RULES, **more):
    return works.gathered(iter([chunk(rows, **more)]), rules, duration_s, attainment)


def test_a_request_costs_its_prompt_and_every_further_token_its_share_of_a_full_step():
    found = work([(0.0, 1000, 11)])
    # Ten decode steps read 1000, 1001, ... tokens; of each step's base it takes one fortieth.
    wanted = 1000 * 1e-5 + 10 * (1e-4 + 0.010 / 40) + 1e-7 * sum(range(1000, 1010))
    assert found.work_s.sum() == pytest.approx(wanted)
    assert found.least_s == pytest.approx(wanted)


def test_engines_that_queue_themselves_fill_every_slot():
    engine = work([(0.0, 1000, 11)], rules=msgspec.structs.replace(RULES, queueing=Queueing.ENGINE))
    assert work([(0.0, 1000, 11)]).least_s - engine.least_s == pytest.approx(10 * 0.010 * (1 / 40 - 1 / 50))


def test_steps_that_scatter_cost_their_mean():
    spread = StepSpread(*[0.5] * 3, *[1.0] * 4)
    scattered = msgspec.structs.replace(RULES, profile=msgspec.structs.replace(PROFILE, spread=spread))
    prompt_s = 1000 * PROFILE.law.per_prefill_token_s
    steady = work([(0.0, 1000, 11)]).least_s - prompt_s
    # Half of them at 0.5, a quarter evenly from there to 1, a quarter at 1.
    assert work([(0.0, 1000, 11)], rules=scattered).least_s - prompt_s == pytest.approx(steady * (0.25 + 0.1875 + 0.25), rel=1e-3)


def test_what_is_shared_is_cached_only_where_replicas_remember():
    alone, cached = work([(0.0, 1000, 1)]), work([(0.0, 1000, 1)], shared=600)
    assert cached.least_s == pytest.approx(0.4 * alone.least_s)
    forgetful = msgspec.structs.replace(RULES, prefix_groups_max=0)
    assert work([(0.0, 1000, 1)], shared=600, rules=forgetful).least_s == pytest.approx(alone.least_s)


def test_tokens_are_worked_on_while_they_are_given_and_the_prompt_at_once():
    found = work([(3.2, 1000, 101)])
    seconds = np.flatnonzero(found.work_s > 1e-12)
    # 101 tokens at 0.8 × 50 ms take four seconds.
    assert seconds.tolist() == [3, 4, 5, 6]
    assert found.work_s[3] - found.work_s[4] == pytest.approx(1000 * 1e-5)
    assert found.requests[3] == 1 == found.requests.sum()


def test_preemptible_work_and_what_comes_after_the_end_do_not_count():
    found = works.gathered(iter([chunk([(1.0, 10, 10)]), chunk([(1.0, 10, 10)], tier=1), chunk([(500.0, 10, 10)])]), RULES, 100.0, 1.0)
    assert found.requests.sum() == 1
    with pytest.raises(BadInput, match="nothing to plan for"):
        work([(1.0, 10, 10)], tier=1)


def test_work_that_may_be_done_after_the_end_is_no_part_of_the_least():
    assert work([(1.0, 10, 10), (99.0, 10, 10)]).least_s == pytest.approx(work([(1.0, 10, 10)]).least_s)


@settings(max_examples=50)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 500)), min_size=1, max_size=60),
    attainment=st.sampled_from([0.5, 0.9, 0.99, 1.0]),
)
def test_the_least_is_at_most_the_lightest_requests_and_not_far_below(lengths, attainment):
    rows = [(float(n) / 10, prompt, output) for n, (prompt, output) in enumerate(lengths)]
    of = works.WorkOf(RULES)
    each = np.sort(of.prompts_s(chunk(rows)) + of.tokens_s(chunk(rows)))
    spare = len(each) * (1 - attainment)
    whole = int(spare)
    exact = each[: len(each) - whole].sum() - (spare - whole) * each[len(each) - whole - 1]
    least = work(rows, attainment=attainment).least_s
    assert least <= exact + 1e-9
    assert least >= exact - 0.013 * each.sum() - 1e-9


def test_an_absurd_span_is_refused():
    with pytest.raises(BadInput, match="a span of"):
        works.gathered(iter([]), RULES, 1e9, 0.99)


@pytest.fixture(scope="module")
def misses():
    return table(work([(n / 20, 500, 100) for n in range(1900)]), 0.8, 15.0, 6)


def test_misses_fall_with_every_replica_and_by_less_and_less(misses):
    drops = -np.diff(misses, axis=1)
    assert (drops >= 0).all()
    assert (np.diff(drops, axis=1) <= 1e-9).all()
    assert (misses[:, 0] >= 300 - 1e-9).all() or misses.shape[0] == 7


def test_with_no_replica_all_miss(misses):
    assert misses[0, 0] >= 300


def minutes(count, per_minute):
    for minute in range(count):
        yield chunk([(60.0 * minute + 60.0 * n / per_minute, 10, 10) for n in range(per_minute)])


def test_a_short_trace_is_held_whole():
    sampler = Sampler(600.0, rows_max=1000, window_s=120.0)
    for each in minutes(10, 10):
        sampler.take(each)
    (window,) = sampler.windows()
    assert sampler.whole
    assert (window.start_s, window.end_s, sum(len(part.at_s) for part in window.chunks)) == (0.0, 600.0, 100)


def test_of_a_long_one_windows_spread_over_all_of_it():
    sampler = Sampler(60_000.0, rows_max=1000, window_s=120.0)
    for each in minutes(1000, 10):
        sampler.take(each)
    windows = sampler.windows()
    rows = sum(len(part.at_s) for window in windows for part in window.chunks)
    assert not sampler.whole
    assert 300 < rows <= 1000
    starts = [window.start_s for window in windows]
    assert max(np.diff(starts)) == min(np.diff(starts))
    assert starts[0] < 3000
    assert starts[-1] > 57_000
    for window in windows:
        assert all(part.at_s[0] >= 0 and part.at_s[-1] < 120 for part in window.chunks)
