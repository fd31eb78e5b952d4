"""Dynamo's fit by hand: the plane through its samples, what the grid keeps, what is refused, and first passes that are left out."""

import math

import msgspec
import pytest

from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import Passes, ReplicaObservation
from forebay.domain.signal import Unknown
from forebay.scaling.baselines import dynamo_fit
from forebay.scaling.baselines.dynamo import DynamoSla, SlaSettings
from forebay.scaling.baselines.dynamo_fit import Fit, FitSettings

SETTINGS = FitSettings()


def law_s(prefill, kv):
    return 0.010 + 1e-5 * prefill + 2e-7 * kv


def told(at_s, *samples, before=1000):
    """One engine a sample: (prefill tokens, KV tokens[, seconds; default: the law's])."""
    return [
        ReplicaObservation(
            f"chat-{place}",
            ReplicaState.READY,
            0.0,
            0.0,
            passes=Passes(at_s, before, 10, sample[2] if len(sample) > 2 else law_s(*sample), *map(float, sample[:2])),
        )
        for place, sample in enumerate(samples)
    ]


def fitted(*looks, settings=SETTINGS):
    fit = Fit()
    for at_s, look in enumerate(looks):
        fit = dynamo_fit.observed(fit, told(float(at_s), *look), settings)
    return fit


def test_the_plane_goes_through_samples_that_lie_on_it():
    found = dynamo_fit.plane(fitted([(0, 10_000), (1000, 20_000), (500, 50_000)], [(0, 40_000), (2000, 0)]), SETTINGS)
    assert found == pytest.approx((0.010, 1e-5, 2e-7))


def test_four_samples_are_too_few_and_five_are_enough():
    four = [(0, 10_000), (1000, 20_000), (500, 50_000), (0, 40_000)]
    assert dynamo_fit.plane(fitted(four), SETTINGS) is None
    assert dynamo_fit.plane(fitted(four, [(7, 7)]), SETTINGS) is not None


def test_a_plane_is_the_one_of_least_squares():
    # Twice each of KV 0, 1000 and 2000: at 10 and 12, 20 and 22, 30 and 32 ms. Means 1000 and 21 ms, slope 10 µs.
    samples = [(0, kv, s) for kv, s in zip((0, 0, 1000, 1000, 2000, 2000), (0.010, 0.012, 0.020, 0.022, 0.030, 0.032), strict=True)]
    assert dynamo_fit.plane(fitted(samples), SETTINGS) == pytest.approx((0.011, 0.0, 1e-5))


def test_what_never_varied_costs_nothing_however_many_samples_round():
    found = dynamo_fit.plane(fitted([(333.3, 44_444.4, 0.0123)] * 49), SETTINGS)
    assert found == pytest.approx((0.0123, 0.0, 0.0))
    assert found[1:] == (0.0, 0.0)


def test_a_plane_by_which_more_tokens_take_less_time_is_refused():
    cold = [(0, 1000, 0.3), (100, 2000, 0.3)]
    warm = [(0, 30_000), (500, 40_000), (1000, 50_000)]
    assert dynamo_fit.plane(fitted(cold, warm), SETTINGS) is None
    assert dynamo_fit.plane(fitted([(0, 1000), (100, 2000)], warm), SETTINGS) is not None


def test_beyond_the_most_the_oldest_of_the_fullest_cell_goes():
    small = FitSettings(samples_max=4)
    # KV from 0 to 80,000 in four: 0 and 80,000 are alone, 30,000 and 31,000 share the second cell. The fifth makes three of them.
    fit = fitted([(0, 0), (0, 80_000)], [(0, 30_000), (0, 31_000)], [(0, 32_000)], settings=small)
    assert [kv for _, kv, _ in fit.samples] == [0, 80_000, 31_000, 32_000]
    # Where all are alone the oldest goes; the axis stays as long as it was.
    fit = fitted([(0, 0), (0, 80_000)], [(0, 30_000), (0, 50_000)], [(0, 79_000)], settings=small)
    assert [kv for _, kv, _ in fit.samples] == [0, 30_000, 50_000, 79_000]
    assert fit.bounds == (0.0, 0.0, 0.0, 80_000.0)


def test_a_longer_axis_moves_all_cells():
    small = FitSettings(samples_max=4)
    # Up to 80,000 each has a cell of its own; at 800,000 the first four are in one, and the oldest of them goes.
    fit = fitted([(0, 0), (0, 30_000), (0, 50_000), (0, 80_000)], [(0, 800_000)], settings=small)
    assert [kv for _, kv, _ in fit.samples] == [30_000, 50_000, 80_000, 800_000]


def test_a_place_that_is_seldom_visited_keeps_its_samples():
    """#12430 in small: two passes of a cold engine that held little outlive a thousand looks at a warm one."""
    fit = fitted([(0, 500, 0.4), (0, 600, 0.4)])
    for look in range(1, 1000):
        fit = dynamo_fit.observed(fit, told(float(look), (0, 40_000 + look)), SETTINGS)
    assert len(fit.samples) == 64
    assert [kv for _, kv, _ in fit.samples[:2]] == [500, 600]


def test_first_passes_are_left_out_where_that_is_asked_for():
    late = FitSettings(skip_first=50)
    assert dynamo_fit.observed(Fit(), told(0.0, (0, 1000), before=49), late).samples == ()
    assert len(dynamo_fit.observed(Fit(), told(0.0, (0, 1000), before=50), late).samples) == 1
    assert len(dynamo_fit.observed(Fit(), told(0.0, (0, 1000), before=0), SETTINGS).samples) == 1


def test_a_scrape_counts_once_and_what_is_no_sample_not_at_all():
    fit = fitted([(0, 1000)])
    assert dynamo_fit.observed(fit, told(0.0, (0, 2000)), SETTINGS) == fit, "the same scrape, seen again"
    idle = [msgspec.structs.replace(each, passes=Passes(1.0, 5, 0, 0.0, 0.0, 0.0)) for each in told(1.0, (0, 1))]
    dark = [msgspec.structs.replace(each, passes=Unknown("missing")) for each in idle]
    ill = told(1.0, (0, 1, math.nan), (0, math.inf), (-1, 1), (0, 1, 1e300))
    for replicas in (idle, dark, ill):
        assert dynamo_fit.observed(fit, replicas, SETTINGS).samples == fit.samples


def test_a_planner_without_a_fit_holds_and_learns_while_it_only_observes(drive, make_targets):
    pool = drive(DynamoSla(make_targets(), SlaSettings(fit=SETTINGS)), desired=2)
    calm = [(0, 1000), (500, 20_000)]

    def look(now_s, samples, pending=0):
        replicas = [msgspec.structs.replace(pool.replica(place), passes=each.passes) for place, each in enumerate(told(now_s, *samples))]
        replicas += [ReplicaObservation("new", ReplicaState.LOADING, 0.0, 0.0)] * bool(pending)
        return pool.at(now_s, rate=1.0, replicas=replicas)

    assert look(0.0, calm).reason == "model_not_ready"
    assert look(5.0, [(100, 9000), (0, 30_000)], pending=1).reason == "scaling_in_progress"
    # The fifth sample makes a plane of it; one engine would do.
    assert look(10.0, [(1000, 8000), (700, 100)]).replicas == 1
