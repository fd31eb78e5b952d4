"""Starts: weights that share bandwidth against a step-by-step sum, stages that vary, and what a whole fleet's start then takes."""

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slot_fleet import SlotFleet, scenario

from forebay.domain.signal import Known, Unknown
from forebay.simulation.lab import play
from forebay.simulation.scripted import Scripted
from forebay.simulation.starts import COLD_STARTS_MAX, ColdStarts, Pulls, StageTimes
from forebay.simulation.values import ColdStartModel

GB = 1e9


def model(**changes):
    return ColdStartModel(**{"provision_s": 60.0, "weights_bytes": 30 * GB, "init_s": 30.0, "node_bandwidth_bytes_per_s": GB, **changes})


def finished(pulls, begun, peers=()):
    """{number: when}, playing events in order; ``begun``: (at, number, bytes)."""
    told = {}
    events = sorted([(at_s, 0, lambda now, n=n, size=size: pulls.begin(n, size, now)) for at_s, n, size in begun], key=lambda e: e[0])
    events += [(at_s, 0, lambda now, count=count: pulls.peers(count, now)) for at_s, count in peers]
    events.sort(key=lambda event: event[0])
    while events or math.isfinite(pulls.next_s):
        at_s = min(pulls.next_s, events[0][0] if events else math.inf)
        for number in pulls.finished(at_s):
            told[number] = at_s
        while events and events[0][0] <= at_s:
            events.pop(0)[2](at_s)
    return told


def by_small_steps(begun, node, shared, step_s=0.01):
    left, told, now_s, todo = {}, {}, 0.0, sorted(begun)
    while todo or left:
        while todo and todo[0][0] <= now_s + 1e-9:
            _, number, size = todo.pop(0)
            left[number] = size
        rate = min(node, shared / len(left)) if left else 0.0
        now_s += step_s
        for number in list(left):
            left[number] -= rate * step_s
            if left[number] <= 0:
                del left[number]
                told[number] = now_s
    return told


def test_pulls_alone_take_their_node_s_bandwidth():
    assert finished(Pulls(model()), [(0.0, 1, 30 * GB), (5.0, 2, 30 * GB)]) == {1: 30.0, 2: 35.0}


def test_pulls_share_what_the_registry_gives():
    pulls = Pulls(model(shared_bandwidth_bytes_per_s=GB))
    # Alone for 10 s, then by halves: 20 GB left take 40 s; the other has 10 GB left then, alone again.
    assert finished(pulls, [(0.0, 1, 30 * GB), (10.0, 2, 30 * GB)]) == pytest.approx({1: 50.0, 2: 60.0})


def test_ready_peers_serve_weights_too():
    pulls = Pulls(model(shared_bandwidth_bytes_per_s=GB, peer_to_peer=True))
    assert finished(pulls, [(0.0, n, 30 * GB) for n in range(4)], [(0.0, 3)]) == pytest.approx(dict.fromkeys(range(4), 30.0))
    alone = Pulls(model(shared_bandwidth_bytes_per_s=GB))
    assert finished(alone, [(0.0, n, 30 * GB) for n in range(4)], [(0.0, 3)]) == pytest.approx(dict.fromkeys(range(4), 120.0))


def test_nothing_flows_until_a_peer_is_there():
    pulls = Pulls(model(shared_bandwidth_bytes_per_s=0.0, peer_to_peer=True))
    pulls.begin(1, 30 * GB, 0.0)
    assert math.isinf(pulls.next_s)
    pulls.peers(1, 100.0)
    assert pulls.next_s == pytest.approx(130.0)


def test_a_cancelled_pull_leaves_its_share_to_the_others():
    pulls = Pulls(model(shared_bandwidth_bytes_per_s=GB))
    pulls.begin(1, 30 * GB, 0.0)
    pulls.begin(2, 30 * GB, 0.0)
    pulls.cancel(1, 20.0)
    pulls.cancel(7, 20.0)
    assert pulls.next_s == pytest.approx(40.0)
    assert pulls.finished(40.0) == [2]
    assert math.isinf(pulls.next_s)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=6),
    st.sampled_from([0.5, 1.0, 2.5, 10.0]),
)
def test_shared_pulls_end_when_small_steps_say(begun, shared):
    todo = [(float(at_s), number, size * GB) for number, (at_s, size) in enumerate(begun)]
    exact = finished(Pulls(model(shared_bandwidth_bytes_per_s=shared * GB)), todo)
    rough = by_small_steps(todo, GB, shared * GB, 0.05)
    assert exact == pytest.approx(rough, abs=0.3)


def test_stages_vary_by_seed_and_number_around_their_means():
    times = StageTimes(model(cv=0.3), seed=7)
    drawn = [times.draw(number, 0) for number in range(2000)]
    assert statistics.fmean(one[0] for one in drawn) == pytest.approx(60.0, rel=0.03)
    assert statistics.fmean(one[2] for one in drawn) == pytest.approx(30.0, rel=0.03)
    assert statistics.stdev(one[1] for one in drawn) == pytest.approx(0.3 * 30 * GB, rel=0.1)
    assert times.draw(3, 0) == StageTimes(model(cv=0.3), seed=7).draw(3, 0) != times.draw(3, 1)
    assert StageTimes(model(cv=0.3), seed=8).draw(3, 0) != times.draw(3, 0)
    assert StageTimes(model(), seed=7).draw(3, 0) == (60.0, 30 * GB, 30.0)


def test_the_measured_cold_start_is_a_high_quantile_of_the_recent_ones():
    starts = ColdStarts()
    assert starts.signal(1.0) == Unknown("never")
    starts.take(100.4)
    assert starts.signal(2.0) == Known(100.0, 2.0)
    for seconds in range(COLD_STARTS_MAX):
        starts.take(float(seconds))
    assert starts.signal(3.0) == Known(18.0, 3.0)


def ready_after(replicas, **cold_start):
    """When each of ``replicas`` more than one, all asked for at second 30, is ready."""
    made = []

    def fleet(rules, source):
        made.append(SlotFleet(rules, source))
        return made[0]

    world = scenario(4000.0, cold_start=model(**cold_start))
    play(world, Scripted([(0.0, 1), (30.0, 1 + replicas)]), iter(()), name="it", fleet=fleet, cpu_clock=lambda: 0.0)
    return [at_s for at_s, what, _ in made[0].calls[1:] if what == "add"]


def test_a_storm_of_starts_is_slower_than_one_and_peers_make_up_for_it():
    assert ready_after(1, shared_bandwidth_bytes_per_s=GB) == [150.0]
    storm = ready_after(8, shared_bandwidth_bytes_per_s=GB)
    assert storm == pytest.approx([30.0 + 60.0 + 8 * 30.0 + 30.0] * 8)
    peers = ready_after(8, shared_bandwidth_bytes_per_s=GB, peer_to_peer=True)
    assert peers == pytest.approx([30.0 + 60.0 + 4 * 30.0 + 30.0] * 8), "the one that is ready doubles what there is"
    assert ready_after(8) == pytest.approx([150.0] * 8), "a regional cache gives all that anyone wants"


def test_starts_under_way_are_limited():
    assert ready_after(5, starts_max=2) == pytest.approx([150.0, 150.0, 270.0, 270.0, 390.0])
