"""The fast fleet equals the plain one: every request's first token, end, outcome and row, every counter and reading, whatever happens."""

import math

import numpy as np
import pytest
from fleet_cases import Case, close, play
from plain_fleet import PlainFleet

from forebay.simulation.fast import FastFleet
from forebay.simulation.kernel.numbers import ITL, SKETCH_ERROR, TPOT, TTFT, WAIT
from forebay.simulation.kernel.sketches import bounds

# The first test compiles the kernel, which takes longer than any test may; the rest find it compiled.
pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("batch", range(4))
def test_equal_to_the_plain_fleet_in_every_event_with_ties(batch):
    for seed in range(100 * batch, 100 * batch + 60):
        judge(seed)


@pytest.mark.parametrize("batch", range(2))
def test_equal_to_the_plain_fleet_within_rounding_with_ordinary_floats(batch):
    for seed in range(10_000 + 100 * batch, 10_000 + 100 * batch + 60):
        judge(seed, exact=False)


@pytest.mark.parametrize("batch", range(3))
def test_equal_to_the_plain_fleet_where_steps_scatter(batch):
    for seed in range(20_000 + 100 * batch, 20_000 + 100 * batch + 40):
        judge(seed, exact=batch < 2, scattered=True)


@pytest.mark.parametrize("batch", range(3))
def test_equal_to_the_plain_fleet_where_engines_start_cold(batch):
    for seed in range(30_000 + 100 * batch, 30_000 + 100 * batch + 40):
        judge(seed, exact=batch < 2, scattered=seed % 4 == 0, cold=True)


def test_the_cases_contain_everything_that_can_happen():
    seen = dict.fromkeys(PlainFleet(Case(0).rules, iter(())).counts[0], 0)
    for seed in range(40):
        for counts in judge(seed).counts:
            for name, count in counts.items():
                seen[name] += count
    assert all(count for name, count in seen.items() if not name.startswith("waiting")), seen


def judge(seed, exact=True, scattered=False, cold=False):
    """Play one case on both; raises AssertionError where they differ. Returns the plain fleet."""
    case = Case(seed, exact, scattered, cold)
    plain, fast = PlainFleet(case.rules, case.source()), FastFleet(case.rules, case.source(), log=True)

    def look(live):
        assert plain.now_s == fast.now_s
        assert plain.exhausted == fast.exhausted
        plain.check()
        fast.check()
        for tier in range(len(case.rules.tiers)):
            assert plain.totals(tier) == fast.totals(tier)
            assert sorted(plain.waiting_since_s(tier)) == sorted(fast.waiting_since_s(tier))
        for row in live:
            assert plain.idle(row) == fast.idle(row)
            for net in (False, True):
                same_readings(plain.read(row, net), fast.read(row, net), exact)
        for what in ("ttft", "tpot"):
            same_quantile(plain.recent_quantile_s(what, 0.7), fast.recent_quantile_s(what, 0.7))

    play(case, (plain, fast), look)
    same_requests(plain.requests, fast.log(), exact)
    for tier in range(len(case.rules.tiers)):
        sketches = {kind: fast.sketch(tier, place) for kind, place in (("ttft", TTFT), ("tpot", TPOT), ("itl", ITL), ("wait", WAIT))}
        same_results(plain.results(tier), fast.results(tier), plain.latencies[tier], sketches, exact)
    return plain


def same_readings(plain, fast, exact):
    for name in plain.__struct_fields__:
        a, b = getattr(plain, name), getattr(fast, name)
        assert close(a, b, exact and name != "kv_usage"), f"{name}: {plain} {fast}"


def same_quantile(a, b):
    assert (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=SKETCH_ERROR * 1.0001, abs_tol=1e-6), (a, b)


def same_requests(requests, log, exact):
    assert len(requests) == len(log)
    for request, entry in zip(requests, log, strict=True):
        where = f"request {request.seq}"
        assert request.outcome == entry["outcome"], where
        assert request.row == entry["row"], where
        assert request.preempted == entry["preempted"], where
        assert close(request.first_s, entry["first_s"], exact), f"{where}: {request.first_s} {entry['first_s']}"
        assert close(request.finish_s, entry["finish_s"], exact), where


def same_results(plain, fast, latencies, sketches, exact):
    assert plain.totals == fast.totals
    for name in ("ttft_attainment", "itl_attainment", "both_attainment"):
        assert getattr(plain, name) == getattr(fast, name), name
    for kind in ("ttft", "itl", "tpot", "wait"):
        a, b = getattr(plain, kind + "_s"), getattr(fast, kind + "_s")
        assert a.keys() == b.keys(), kind
        for name in a:
            if name in ("mean", "max"):
                assert math.isclose(a[name], b[name], rel_tol=1e-9, abs_tol=1e-12), (kind, name)
            else:
                same_quantile(a[name], b[name])
        assert sketches[kind].sum() == len(latencies[kind]), kind
        assert not exact or (sketches[kind] == counted(latencies[kind])).all(), kind


def counted(latencies):
    """How many fall into each bucket."""
    upto_s = bounds()
    return np.bincount(np.minimum(np.searchsorted(upto_s, latencies), len(upto_s) - 1), minlength=len(upto_s))
