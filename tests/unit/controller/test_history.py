import msgspec

from forebay.controller.history import ColdStarts, Ramps
from forebay.controller.meter import Meter
from forebay.domain.replica import ReplicaState, ReplicaView, StageTime
from forebay.domain.signal import Known, Unknown
from forebay.testing.store import MemoryStore

DAY_S = 86_400.0


def view(name, cold_start_s, state=ReplicaState.READY):
    return ReplicaView(name, "chat", state, 0.0, 0.0, stages=(StageTime("load", cold_start_s),))


def test_the_cold_start_is_a_high_quantile_of_the_measured_ones_in_whole_seconds():
    cold_starts = ColdStarts(MemoryStore(), ["chat"])
    assert cold_starts.signal("chat", 5.0) == Unknown("never")
    for number in range(10):
        cold_starts.take([view(f"r{number}", 299.6 + number / 10)])
    assert cold_starts.signal("chat", 5.0) == Known(300.0, 5.0)


def test_a_replica_is_measured_once_and_not_before_it_is_ready():
    cold_starts = ColdStarts(MemoryStore(), ["chat"])
    cold_starts.take([view("r", 900.0, ReplicaState.LOADING)])
    assert isinstance(cold_starts.signal("chat", 0.0), Unknown)
    for _ in range(50):
        cold_starts.take([view("r", 300.0)])
    cold_starts.take([view("r", 300.0), view("s", 400.0), view("t", 400.0)])
    assert cold_starts.signal("chat", 0.0) == Known(400.0, 0.0)


def test_cold_starts_survive_a_restart():
    store = MemoryStore()
    ColdStarts(store, ["chat"]).take([view("r", 300.0)])
    assert ColdStarts(store, ["chat"]).signal("chat", 1.0) == Known(300.0, 1.0)


def test_the_largest_ramp_of_a_day_is_kept_once_the_day_is_over():
    store = MemoryStore()
    ramps = Ramps(store)
    for ramp in (0.001, 0.01, 0.002):
        ramps.take("chat", ramp, 1000.0)
    assert ramps.past("chat") == ()
    again = Ramps(store)
    again.take("chat", 0.0, DAY_S + 1000.0)
    assert again.past("chat") == (0.01,)
    again.take("chat", 0.5, 2 * DAY_S)
    assert again.past("chat") == (0.01, 0.0)


def test_every_gpu_second_is_charged_to_a_state_and_survives_a_restart():
    store = MemoryStore()
    meter = Meter(store, {"chat": 4})
    loading, ready = view("a", 1.0, ReplicaState.LOADING), view("b", 1.0)
    for now_s in (0.0, 10.0, 20.0):
        meter.count([loading, ready], now_s)
    meter.save()
    assert meter.gpu_seconds == {"chat": {"loading": 80.0, "ready": 80.0}}
    again = Meter(store, {"chat": 4})
    adopted, new = ready, ReplicaView("c", "chat", ReplicaState.READY, 0.0, 95.0)
    again.count([adopted, new], 100.0)
    assert again.gpu_seconds == {"chat": {"loading": 80.0, "ready": 80.0 + 4 * (100.0 - 20.0) + 4 * (100.0 - 95.0)}}


def test_a_machine_that_was_started_again_charges_nothing_for_the_past():
    store = MemoryStore()
    meter = Meter(store, {"chat": 1})
    meter.count([], 5000.0)
    meter.save()
    again = Meter(store, {"chat": 1})
    again.count([view("a", 1.0)], 3.0)
    again.count([view("a", 1.0)], 5.0)
    assert again.gpu_seconds == {"chat": {"ready": 2.0}}


def test_an_adopted_replica_is_not_measured_twice():
    store = MemoryStore()
    ColdStarts(store, ["chat"]).take([view("r", 300.0), view("s", 300.5)])
    again = ColdStarts(store, ["chat"])
    again.take([view("r", 300.0), view("t", 10.0)])
    again.take([view("r", 300.0), view("u", 300.0)])
    assert msgspec.json.decode(store.get("cold_starts/chat")) == [300.0, 300.5, 10.0, 300.0]
