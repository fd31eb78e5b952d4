import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.domain.replica import TRANSITIONS, ReplicaState, ReplicaView, StageTime, moved
from forebay.domain.scaling import Observation, Passes, ReplicaObservation
from forebay.domain.signal import Known, Unknown, combine, fresh, reading


@given(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)))
def test_a_reading_is_finite_and_not_negative_or_unknown(value):
    signal = reading(value, 1.0)
    if isinstance(signal, Known):
        assert math.isfinite(signal.value)
        assert signal.value >= 0
    else:
        assert value is None or not math.isfinite(value) or value < 0


def test_one_unknown_makes_the_whole_unknown():
    assert combine([Known(1, 5), Known(2, 3)], sum) == Known(3, 3)
    assert combine([Known(1, 5), Unknown("timeout")], sum) == Unknown("timeout")
    assert combine([], sum) == Unknown("never")


def test_an_old_reading_is_stale():
    assert fresh(Known(1, 0), 10, 10) == Known(1, 0)
    assert fresh(Known(1, 0), 10.1, 10) == Unknown("stale")


def test_every_replica_state_can_end():
    for state in ReplicaState:
        assert state is ReplicaState.STOPPED or ReplicaState.STOPPED in TRANSITIONS[state]
    with pytest.raises(ValueError, match="stopped to ready"):
        moved(ReplicaState.STOPPED, ReplicaState.READY)


def test_a_cold_start_is_known_only_once_it_is_over():
    stages = (StageTime("provision", 200.0), StageTime("weights", 50.0))
    view = ReplicaView("a", "chat", ReplicaState.LOADING, 0.0, 0.0, stages=stages)
    assert view.cold_start_s is None
    assert msgspec.structs.replace(view, state=ReplicaState.READY).cold_start_s == 250.0


def test_an_observation_survives_its_wire_form():
    seen = Observation(
        "chat", 1.0, 2.0, 3, (ReplicaObservation("a", ReplicaState.READY, 0.0, 0.0, waiting=Known(1.5, 0.5)),), memory=b"\x00m"
    )
    assert msgspec.json.decode(msgspec.json.encode(seen), type=Observation) == seen


def test_an_observation_that_was_stored_before_passes_were_told_is_still_read():
    one = ReplicaObservation("a", ReplicaState.READY, 0.0, 0.0, waiting=Known(1.5, 0.5), passes=Passes(9.0, 100, 7, 0.02, 30.0, 4000.0))
    seen = Observation("chat", 10.0, 2.0, 3, (one,))
    for coder in (msgspec.json, msgspec.msgpack):
        assert coder.decode(coder.encode(seen), type=Observation) == seen
        stored = coder.decode(coder.encode(seen))
        del stored["replicas"][0]["passes"]
        assert coder.decode(coder.encode(stored), type=Observation).replicas == (msgspec.structs.replace(one, passes=Unknown()),)
