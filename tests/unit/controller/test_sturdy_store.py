from forebay.controller.sturdy import SturdyStore
from forebay.domain.events import Event
from forebay.testing.store import MemoryStore


def test_a_full_disk_is_said_once_and_stops_nothing():
    said = []
    beneath = MemoryStore()
    store = SturdyStore(beneath, lambda kind, message: said.append(kind))
    store.put("a", b"1")
    beneath.broken = True
    for _ in range(3):
        store.put("a", b"2")
        store.append_event(Event("e", 0.0, 0.0))
    assert said == ["store_failed"]
    beneath.broken = False
    store.put("a", b"3")
    assert (said, store.get("a"), store.dropped_total) == (["store_failed", "store_works"], b"3", 6)


def test_what_is_kept_is_what_the_store_beneath_has():
    beneath = MemoryStore()
    store = SturdyStore(beneath, lambda kind, message: None)
    store.append_event(Event("e", 0.0, 1.0))
    store.append_ramp("chat", "2026-01-01", 0.5)
    assert store.events() == beneath.events() != []
    assert list(store.ramps("chat")) == [0.5]
    assert store.decisions("chat") == []
