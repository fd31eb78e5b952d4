"""One suite for every Store: the real file and the fake must not differ in anything a caller can see."""

import msgspec
import pytest

from forebay.adapters.sqlite import SqliteStore
from forebay.adapters.sqlite import store as sqlite_store
from forebay.domain.events import Event
from forebay.domain.replica import ReplicaState
from forebay.domain.roster import Finished
from forebay.domain.scaling import Decision, Observation, ReplicaObservation, Term, TermKind
from forebay.domain.signal import Known, Unknown
from forebay.domain.usage import COUNTS, UsageBatch, UsageRow, UsageTaken
from forebay.ports.store import DEMAND_BUCKETS_MAX, DecisionRecord, DemandBucket
from forebay.testing import store as memory_store
from forebay.testing.store import MemoryStore


@pytest.fixture(params=["sqlite", "memory"])
def store(request, tmp_path):
    store = SqliteStore(tmp_path / "history.db") if request.param == "sqlite" else MemoryStore()
    yield store
    store.close()


def record(pool, at_wall_s, replicas=1):
    replica = ReplicaObservation("r1", ReplicaState.READY, 0.0, 0.0, waiting=Known(3.0, 1.0), running=Unknown("timeout"))
    observation = Observation(pool, 5.0, at_wall_s, replicas, (replica,), memory=b"\x00before")
    term = Term("warm buffer", TermKind.FLOOR, replicas, "ramp x cold start", {"ramp": 0.5}, binding=True)
    return DecisionRecord(at_wall_s, observation, Decision(pool, 5.0, replicas, "warm buffer", (term,), memory=b"\xffafter"))


def event(kind, wall_s, **detail):
    return Event(kind, wall_s / 2, wall_s, "chat", f"{kind} happened", detail)


def test_an_empty_store_answers(store):
    assert store.decisions("chat") == []
    assert store.events() == []
    assert store.get("nothing") is None
    assert list(store.ramps("chat")) == []
    assert list(store.demand("chat")) == []


def test_a_decision_comes_back_as_it_was(store):
    store.append_decision(record("chat", 100.0))
    assert store.decisions("chat") == [record("chat", 100.0)]


def test_decisions_are_newest_first_of_their_pool_and_limited(store):
    for at_wall_s in (100.0, 101.0, 102.0):
        store.append_decision(record("chat", at_wall_s))
        store.append_decision(record("other", at_wall_s))
    assert [found.at_wall_s for found in store.decisions("chat", limit=2)] == [102.0, 101.0]
    assert [found.at_wall_s for found in store.decisions("chat", until_wall_s=101.5, limit=9)] == [101.0, 100.0]
    assert store.decisions("chat", until_wall_s=99.0) == []


def test_the_newest_is_the_last_appended_even_if_an_earlier_run_was_ahead_of_time(store):
    store.append_decision(record("chat", 5000.0))
    store.append_decision(record("chat", 100.0))
    assert store.decisions("chat")[0].at_wall_s == 100.0
    assert store.decisions("chat", until_wall_s=9000.0)[0].at_wall_s == 5000.0


def test_of_two_decisions_at_one_time_the_later_is_newer(store):
    store.append_decision(record("chat", 100.0, replicas=1))
    store.append_decision(record("chat", 100.0, replicas=2))
    assert [found.decision.replicas for found in store.decisions("chat", until_wall_s=100.0, limit=2)] == [2, 1]


def test_events_are_the_newest_oldest_first(store):
    for number in range(5):
        store.append_event(event("scale" if number % 2 else "alert", 100.0 + number, count=number, real=0.5, on=True, word="x"))
    assert [found.wall_s for found in store.events(limit=2)] == [103.0, 104.0]
    assert [found.wall_s for found in store.events(since_wall_s=102.0)] == [102.0, 103.0, 104.0]
    assert store.events(kind="scale", limit=1) == [event("scale", 103.0, count=3, real=0.5, on=True, word="x")]
    assert store.events(limit=0) == []


def test_put_replaces_and_keeps_bytes(store):
    store.put("key", b"one")
    store.put("key", b"\x00\xff")
    store.put("other", b"")
    assert store.get("key") == b"\x00\xff"
    assert store.get("other") == b""


def test_a_day_keeps_its_largest_ramp_and_days_come_in_order(store):
    for day, ramp in (("2026-11-02", 2.0), ("2026-11-01", 1.0), ("2026-11-02", 5.0), ("2026-11-02", 3.0), ("2026-11-03", 0.0)):
        store.append_ramp("chat", day, ramp)
    store.append_ramp("other", "2026-11-01", 9.0)
    assert list(store.ramps("chat")) == [1.0, 5.0, 0.0]
    assert list(store.ramps("chat", limit=2)) == [5.0, 0.0]


def bucket(start_wall_s, requests=1.0):
    return DemandBucket(start_wall_s, 300.0, requests, 1000 * requests, 100 * requests)


def test_demand_comes_in_order_of_time_for_its_pool_and_span(store):
    for start_wall_s in (600.0, 0.0, 300.0):
        store.append_demand("chat", bucket(start_wall_s, 2.5))
    store.append_demand("other", bucket(900.0))
    assert list(store.demand("chat")) == [bucket(0.0, 2.5), bucket(300.0, 2.5), bucket(600.0, 2.5)]
    assert [found.start_wall_s for found in store.demand("chat", 300.0, 600.0)] == [300.0]
    assert [found.start_wall_s for found in store.demand("chat", until_wall_s=300.0)] == [0.0]


def test_a_bucket_that_begins_at_the_same_time_replaces(store):
    for requests in (1.0, 7.0):
        store.append_demand("chat", bucket(300.0, requests))
    assert list(store.demand("chat")) == [bucket(300.0, 7.0)]


def test_the_last_buckets_written_of_each_pool_are_kept(store, monkeypatch):
    """By when they were written: a world that ran ahead of time must not push out what comes after it."""
    for module in (sqlite_store, memory_store):
        monkeypatch.setattr(module, "DEMAND_BUCKETS_MAX", 3)
    store.append_demand("other", bucket(0.0))
    for start_wall_s in (9e9, 0.0, 300.0, 0.0, 600.0):
        store.append_demand("chat", bucket(start_wall_s))
    assert [found.start_wall_s for found in store.demand("chat")] == [0.0, 300.0, 600.0]
    assert len(store.demand("other")) == 1
    assert DEMAND_BUCKETS_MAX == 28 * 288


def test_close_twice(store):
    store.close()
    store.close()


# -- the ledger ------------------------------------------------------------------------------------------------------------

KEY = ("search", "llama", "interactive", "chat")
OTHER = ("mail", "llama", "batch", "chat")


def usage_row(count, key=KEY, day=20_000):
    return UsageRow(day, key, tuple(count + place for place in range(COUNTS)))


def usage_batch(after, upto, *rows, journal="j-1"):
    return UsageBatch("gw", journal, after, upto, rows)


def summed(*rows):
    return tuple(map(sum, zip(*(row.counts for row in rows), strict=True)))


def test_batches_add_up_and_none_is_taken_twice(store):
    first, second = usage_batch(0, 3, usage_row(1), usage_row(5, OTHER)), usage_batch(3, 4, usage_row(7))
    assert store.append_usage(first, 1.0) == UsageTaken(3)
    assert store.append_usage(first, 2.0) == UsageTaken(3)
    assert store.append_usage(second, 3.0) == UsageTaken(4)
    assert store.append_usage(usage_batch(1, 9, usage_row(99)), 4.0) == UsageTaken(4)
    assert store.append_usage(usage_batch(0, 2, usage_row(4, day=19_999), journal="j-2"), 5.0) == UsageTaken(2)
    assert list(store.usage()) == [
        usage_row(4, day=19_999),
        usage_row(5, OTHER),
        UsageRow(20_000, KEY, summed(usage_row(1), usage_row(7))),
    ]
    assert [row.day for row in store.usage(20_000)] == [20_000, 20_000]
    assert [row.day for row in store.usage(0, 20_000)] == [19_999]


def test_a_ledger_that_lacks_what_another_took_takes_the_rest_and_says_how_much_it_lacks(store):
    assert store.append_usage(usage_batch(10, 12, usage_row(1)), 1.0) == UsageTaken(12, missing=10)
    assert store.append_usage(usage_batch(12, 13, usage_row(1)), 1.0) == UsageTaken(13)


def test_records_of_requests_are_found_by_id_the_newest_first(store):
    one = Finished("a", "search", 1.0, True, msgspec.Raw(b'{"id":"a"}'))
    two = Finished("a", "mail", 2.0, False, msgspec.Raw(b'{"id":"a","n":2}'))
    store.append_finished([one, Finished("b", "search", 1.5, False, msgspec.Raw(b"{}"))])
    store.append_finished([two])
    assert [(found.team, found.unusual, bytes(found.record)) for found in store.finished("a")] == [
        ("mail", False, bytes(two.record)),
        ("search", True, bytes(one.record)),
    ]
    assert list(store.finished("c")) == []
    store.append_finished([])
