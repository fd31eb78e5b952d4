from forebay.controller.sturdy import WRITES_WELL, SturdyStore
from forebay.domain.events import Event
from forebay.ports import DemandBucket
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
    assert "history is not kept, scaling goes on" in store.problem
    beneath.broken = False
    for _ in range(WRITES_WELL):
        store.put("a", b"3")
    assert (said, store.get("a"), store.dropped_total) == (["store_failed", "store_works"], b"3", 6)
    assert store.problem == ""


def test_a_full_disk_that_can_be_read_is_not_said_to_work_again():
    said = []
    beneath = MemoryStore()
    store = SturdyStore(beneath, lambda kind, message: said.append(kind))
    for _ in range(3):
        beneath.broken = True
        store.put("a", b"1")
        beneath.broken = False
        assert store.get("a") is None
    assert said == ["store_failed"]
    for _ in range(WRITES_WELL):
        store.put("a", b"2")
    assert said == ["store_failed", "store_works"]


def test_one_write_that_passes_on_a_full_disk_does_not_say_that_it_works_again():
    """A batch that the ledger has already is no write at all: every ten seconds the log said that history was kept again."""
    said = []
    beneath = MemoryStore()
    store = SturdyStore(beneath, lambda kind, message: said.append(kind))
    for _ in range(5):
        beneath.broken = True
        store.put("a", b"1")
        beneath.broken = False
        for _ in range(WRITES_WELL - 1):
            store.put("b", b"1")
    assert said == ["store_failed"]
    assert store.problem


class Unreadable(MemoryStore):
    """Fails to read as well."""

    def get(self, key):
        self._writable()
        return super().get(key)

    def decisions(self, pool, until_wall_s=None, limit=1):
        self._writable()
        return super().decisions(pool, until_wall_s, limit)

    def events(self, since_wall_s=0.0, kind=None, limit=1000):
        self._writable()
        return super().events(since_wall_s, kind, limit)

    def ramps(self, pool, limit=28):
        self._writable()
        return super().ramps(pool, limit)

    def demand(self, pool, since_wall_s=0.0, until_wall_s=None):
        self._writable()
        return super().demand(pool, since_wall_s, until_wall_s)


def test_a_store_that_can_not_be_read_is_as_if_nothing_was_there():
    said = []
    beneath = Unreadable()
    store = SturdyStore(beneath, lambda kind, message: said.append(kind))
    beneath.broken = True
    assert (store.get("a"), store.decisions("chat"), store.events(), store.ramps("chat")) == (None, [], [], ())
    assert store.demand("chat") == ()
    beneath.broken = False
    store.get("a")
    assert said == ["store_failed", "store_works"]
    assert store.dropped_total == 5


def test_what_is_kept_is_what_the_store_beneath_has():
    beneath = MemoryStore()
    store = SturdyStore(beneath, lambda kind, message: None)
    store.append_event(Event("e", 0.0, 1.0))
    store.append_ramp("chat", "2026-01-01", 0.5)
    store.append_demand("chat", DemandBucket(0.0, 300.0, 1.0, 2.0, 3.0))
    assert store.events() == beneath.events() != []
    assert list(store.ramps("chat")) == [0.5]
    assert store.demand("chat") == beneath.demand("chat") != []
    assert store.decisions("chat") == []
