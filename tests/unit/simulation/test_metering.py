"""Counting meters, read as what happened since the scrape before: by hand, over a first scrape, a pause and a restart."""

from forebay.domain.scaling import Passes
from forebay.simulation.lab_life import Replica
from forebay.simulation.metering import Meters
from forebay.simulation.values import ReplicaReadings


def shown(busy_s, passes, passes_s, prefilled, read):
    return ReplicaReadings(0, 0, 0.0, 0, 0, busy_s, 0, passes, passes_s, prefilled, read)


def since(meters, now_s, readings, from_s=0.0):
    gpu_usage, passes = meters.since(now_s, [Replica(1, "chat", from_s)], {1: readings})
    return gpu_usage[1], passes[1]


def test_means_are_of_the_passes_that_ended_since_the_scrape_before():
    meters = Meters()
    assert since(meters, 20.0, shown(4.0, 10, 3.0, 5000, 20_000), from_s=10.0) == (0.4, Passes(20.0, 0, 10, 0.3, 500.0, 2000.0))
    # 5 more in 1 s: 200 ms each, 100 prompt tokens and 6,000 of KV.
    assert since(meters, 30.0, shown(6.0, 15, 4.0, 5500, 50_000)) == (0.2, Passes(30.0, 10, 5, 0.2, 100.0, 6000.0))


def test_where_no_pass_ended_there_is_nothing_to_take_the_mean_of():
    meters = Meters()
    since(meters, 15.0, shown(1.0, 4, 1.0, 100, 100))
    # One pass of more than 15 s is under way: the GPU is busy, and nobody knows yet how long it takes.
    assert since(meters, 30.0, shown(16.0, 4, 1.0, 100, 100)) == (1.0, Passes(30.0, 4, 0, 0.0, 0.0, 0.0))


def test_an_engine_that_was_restarted_counts_from_nothing():
    meters = Meters()
    since(meters, 15.0, shown(15.0, 400, 14.0, 9000, 90_000))
    assert since(meters, 30.0, shown(3.0, 2, 2.0, 1000, 10)) == (0.2, Passes(30.0, 0, 2, 1.0, 500.0, 5.0))


def test_a_second_look_at_the_same_instant_is_over_the_same_span():
    meters = Meters()
    first = since(meters, 15.0, shown(6.0, 10, 5.0, 100, 1000))
    assert first == (0.4, Passes(15.0, 0, 10, 0.5, 10.0, 100.0))
    later = shown(12.0, 20, 10.0, 200, 2000)
    assert since(meters, 30.0, later) == (0.4, Passes(30.0, 10, 10, 0.5, 10.0, 100.0))
