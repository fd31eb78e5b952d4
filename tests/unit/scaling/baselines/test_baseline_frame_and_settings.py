"""The tick, the memory and the limits around a law; what a pool's numbers become as targets; and the grids."""

import msgspec
import pytest

from forebay.domain.errors import BadInput
from forebay.domain.scaling import Term, TermKind
from forebay.domain.signal import Known, Unknown
from forebay.engine import capacity as engine_capacity
from forebay.scaling import baselines
from forebay.scaling.baselines import grid, reading, windows
from forebay.scaling.baselines.frame import Answer
from forebay.scaling.baselines.reading import Gap
from forebay.scaling.baselines.settings import targets
from forebay.scaling.capacity import PoolCapacity, pool_capacity


class Count(msgspec.Struct, frozen=True, array_like=True):
    """How often the law was asked."""

    steps: int = 0


class Counting:
    """One more replica each tick."""

    def __init__(self, tick_s=10.0):
        self.tick_s = tick_s

    def start(self):
        return Count()

    def step(self, seen, memory):
        wanted = memory.steps + 1
        return Answer((Term("count", TermKind.TRIGGER, wanted, "one more"),), Count(wanted))


def test_a_law_is_asked_on_its_own_ticks_in_phase(drive):
    pool = drive(Counting(10.0), desired=1)
    # The tick of 20 s is made up for at 25 s; the next is due at 30 s all the same.
    assert [pool.at(float(look)).replicas for look in (0, 4, 10, 19, 25, 29, 30)] == [1, 1, 2, 2, 3, 3, 4]
    assert pool.at(31.0).look_again_at_s == pytest.approx(40.0)


def test_looks_further_apart_than_the_tick_are_each_one_tick(drive):
    pool = drive(Counting(2.0), desired=1)
    assert [pool.at(15.0 * look).replicas for look in range(4)] == [1, 2, 3, 4]


def test_between_ticks_what_is_wanted_by_now_stands(drive):
    pool = drive(Counting(10.0), desired=1)
    pool.at(0.0)
    pool.desired = 7
    decision = pool.at(5.0)
    assert (decision.replicas, decision.reason) == (7, "between_ticks")


def test_between_ticks_the_last_reason_is_told_again(drive):
    pool = drive(Counting(10.0), desired=1, most=2)
    assert [pool.at(at_s).reason for at_s in (0.0, 5.0, 10.0, 19.0, 20.0, 25.0)] == ["count", "count", "count", "count", "max", "max"]


def test_limits_bind_by_name(drive):
    low, high = drive(Counting(), desired=1, least=3), drive(Counting(), desired=9, most=0 + 1, least=0)
    assert (low.at(0.0).replicas, low.at(1.0).replicas) == (3, 3)
    assert low.at(10.0).reason == "min"
    high.at(0.0)
    assert (high.at(10.0).replicas, high.at(20.0).reason) == (1, "max")


def test_a_clock_that_was_set_back_and_a_damaged_memory_start_anew(drive):
    pool = drive(Counting(10.0), desired=1)
    pool.at(1000.0)
    pool.at(1010.0)
    assert pool.at(5.0).replicas == 1
    pool.memory = pool.memory[:-1] + b"\xc1"
    assert pool.at(15.0).replicas == 1


def test_memory_of_another_law_is_not_believed(drive):
    wild = msgspec.msgpack.encode([0.0, 1e9, None, [5]])
    assert drive(Counting(10.0), desired=1).at(1.0, memory=wild).replicas == 1


def test_gaps_are_kept_apart_and_old_values_count():
    assert reading.read(Known(3.0, -1e9)) == 3.0
    assert [reading.read(Unknown(why)) for why in ("timeout", "gateway_lost", "missing", "short", "nan", "frozen")] == [
        Gap.ERROR,
        Gap.ERROR,
        Gap.EMPTY,
        Gap.EMPTY,
        Gap.NAN,
        Gap.FROZEN,
    ]
    assert reading.total([Gap.EMPTY, 2.0, Gap.ERROR, 3.0]) == 5.0
    assert reading.total([Gap.ERROR, Gap.FROZEN]) is Gap.FROZEN
    assert reading.total([]) is Gap.EMPTY


def test_windows_are_bounded_and_replace_a_look_at_the_same_instant():
    samples = ()
    for look in range(1100):
        samples = windows.pushed(samples, float(look), 1.0, 1e9)
    assert len(samples) == windows.SAMPLES_MAX
    assert windows.pushed(((1.0, 5.0), (2.0, 6.0)), 2.0, 7.0, 60.0) == ((1.0, 5.0), (2.0, 7.0))
    assert windows.within(((0.0, 5.0), (2.0, 6.0)), 60.0, 60.0) == [6.0]


def test_targets_are_seventy_percent_of_what_the_pool_serves_at_its_promise(round_pool, round_targets):
    state = engine_capacity.at_slo(round_pool.profile, 1000, 200, 1.0, 0.05)
    assert round_targets.target_rate_per_s == pytest.approx(0.7 * state.requests_per_s)
    assert round_targets.target_concurrency == pytest.approx(0.7 * state.sequences)
    declared = targets(round_pool, PoolCapacity(rate_per_s=3.0))
    assert declared.target_rate_per_s == pytest.approx(2.1)


def test_a_promise_that_no_rate_keeps_leaves_the_engines_own_limit(round_pool):
    impossible = msgspec.structs.replace(round_pool, slo=msgspec.structs.replace(round_pool.slo, itl_s=1e-4))
    assert targets(impossible, pool_capacity(impossible)).rate_per_s > 0


def test_a_pool_without_a_profile_is_refused(round_pool):
    bare = msgspec.structs.replace(round_pool, profile=None)
    with pytest.raises(BadInput, match=r"chat.*no profile"):
        baselines.named(bare, pool_capacity(bare), peak_replicas=None)


@pytest.mark.parametrize("name", sorted(baselines.ABOUT | baselines.ASIDE))
def test_every_law_has_a_small_grid_whose_candidates_decide(drive, round_targets, name):
    hourly = [1.0 + hour % 5 for hour in range(24)]
    found = grid.candidates(name, round_targets, peak_replicas=12, hourly=hourly)
    assert 1 <= len(found) <= grid.CANDIDATES_MAX
    assert len({each.label for each in found}) == len(found)
    pool = drive(Counting(), desired=4)
    for each in found:
        decision = each.make().decide(pool.observation(rate=20.0, each={"kv": 0.4, "running": 20, "gpu": 1.0}))
        assert decision.reason != "hold_ill", decision.terms[0].because


def test_the_first_candidate_is_the_default_where_it_has_one(round_pool, round_targets, drive):
    """Same decisions as `named` over a stretch of load, for every law that isn't sized from the span."""
    policies = baselines.named(round_pool, pool_capacity(round_pool), peak_replicas=12)
    for name in sorted(set(baselines.ABOUT | baselines.ASIDE) - {"static", "cron", "static-peak"}):
        first = grid.candidates(name, round_targets, peak_replicas=12)[0].make()
        counts = []
        for policy in (policies[name](), first):
            pool = drive(Counting(), desired=4)
            pool.policy = policy
            counts.append(pool.hold(150, rate=60.0, lanes=30, each={"kv": 0.7, "running": 60, "gpu": 1.0}))
        assert counts[0] == counts[1], name


def test_a_fixed_number_stays_whatever_is_observed(round_pool, drive):
    """B0: the pool's least of 1, and twelve for the peak; at rest, under a queue, and blind."""
    policies = baselines.named(round_pool, pool_capacity(round_pool), peak_replicas=12)
    for name, replicas in (("static", 1), ("static-peak", 12)):
        pool = drive(Counting(), desired=5)
        pool.policy = policies[name]()
        calm = pool.at(0.0, rate=0.0)
        busy = pool.at(600.0, rate=500.0, lanes=900, each={"kv": 1.0, "waiting": 50, "gpu": 1.0})
        blind = pool.at(1200.0, **pool.dark("timeout"))
        assert [each.replicas for each in (calm, busy, blind)] == [replicas] * 3


def test_cron_is_planned_from_the_hours_with_a_margin(round_targets, drive):
    found = grid.candidates("cron", round_targets, peak_replicas=12, hourly=[4.0] * 12 + [8.0] * 12)
    by_label = {each.label: each for each in found}
    pool = drive(Counting(), desired=1)
    noon = pool.observation(wall_s=12 * 3600.0)
    assert by_label["cron (margin 1, early 0)"].make().decide(noon).replicas == 8
    assert by_label["cron (margin 1.5, early 0)"].make().decide(noon).replicas == 12
    eleven = pool.observation(wall_s=11 * 3600.0)
    assert [by_label[f"cron (margin 1, early {early})"].make().decide(eleven).replicas for early in (0, 1)] == [4, 8]
