"""How many an engine runs at once is seen where it lets others wait, believed after a few looks, and grown out of again."""

import pytest

from forebay.controller.places import LOOKS, Places
from forebay.domain.replica import ReplicaState, ReplicaView
from forebay.domain.signal import Known, Unknown
from forebay.ports import EngineSignals

VIEW = ReplicaView(id="r0", pool="chat", state=ReplicaState.READY, url="http://r0", since_s=0.0, requested_s=0.0)


def reading(running, waiting, kv=0.1, deferred=0.0):
    return EngineSignals(running=Known(running, 0.0), waiting=Known(waiting, 0.0), kv_usage=Known(kv, 0.0), deferred=Known(deferred, 0.0))


def told(places, *readings):
    """What is said of the engine after each of them."""
    found = []
    for each in readings:
        signal = places.judged((VIEW,), {"r0": each}, 0.0)["r0"].sequences_max
        found.append(int(signal.value) if isinstance(signal, Known) else None)
    return found


def test_attached_engines_that_take_requests_into_a_queue_of_their_own_are_given_fewer():
    """Without a profile 256 were sent to an engine that runs four: 44 waited inside it, in no order."""
    assert told(Places(), *[reading(4.0, 44.0)] * 5) == [None, None, 5, 5, 5]
    assert told(Places(), *[reading(160.0, 44.0)] * 3)[-1] == 170


@pytest.mark.parametrize(
    "busy",
    [
        reading(4.0, 0.0),
        reading(4.0, 9.0, kv=0.95),
        reading(0.0, 9.0),
        reading(4.0, 9.0, deferred=9.0),
        EngineSignals(running=Unknown("x")),
    ],
    ids=["none waits", "the cache is full", "asleep", "deferred", "unknown"],
)
def test_nothing_is_concluded_where_no_place_is_missing(busy):
    assert told(Places(), *[busy] * 9) == [None] * 9


def test_one_that_waits_for_a_step_says_nothing():
    assert told(Places(), *[reading(4.0, 1.0), reading(5.0, 0.0)] * 5) == [None] * 10


def test_the_most_that_ran_counts_and_a_fuller_look_corrects():
    places = Places()
    assert told(places, reading(3.0, 9.0), reading(4.0, 9.0), reading(3.0, 9.0))[-1] == 5
    assert told(places, reading(5.0, 1.0))[-1] == 6


def test_an_engine_that_has_more_places_by_now_is_found_out():
    places = Places()
    assert told(places, *[reading(4.0, 9.0)] * LOOKS)[-1] == 5
    assert told(places, *[reading(5.0, 0.0)] * LOOKS)[-1] == 8
    assert told(places, *[reading(4.0, 0.0)] * 9)[-1] == 8, "it has room: that says nothing"


def test_what_is_known_of_a_replica_goes_with_it_and_what_an_engine_tells_stands():
    places = Places()
    told(places, *[reading(4.0, 9.0)] * LOOKS)
    places.judged((), {}, 0.0)
    assert told(places, reading(4.0, 9.0)) == [None]
    speaks = EngineSignals(running=Known(4.0, 0.0), waiting=Known(9.0, 0.0), kv_usage=Known(0.1, 0.0), sequences_max=Known(64.0, 0.0))
    assert told(places, *[speaks] * 5) == [64] * 5
