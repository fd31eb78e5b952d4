"""Decisions whose memories build on each other come back as they were, cost little, and lose little where something is lost."""

import random
import sqlite3
import zlib

import msgspec
import pytest

from forebay.adapters.sqlite import SqliteStore, bodies, schema
from forebay.adapters.sqlite import store as module
from forebay.adapters.sqlite.bodies import CHAIN_MAX, KNOWN_MAX
from forebay.domain.scaling import Decision, Observation, Term, TermKind
from forebay.ports import DecisionRecord

MEMORY_BYTES = 15_000


def record(number, before, after, pool="chat"):
    term = Term("floor", TermKind.FLOOR, number, "as it is", binding=True)
    observation = Observation(pool, float(number), 1000.0 + number, number, (), memory=before)
    return DecisionRecord(1000.0 + number, observation, Decision(pool, float(number), number, "floor", (term,), memory=after))


def memories(chance, size=MEMORY_BYTES):
    """Noise of which a little is new each time."""
    memory = bytearray(chance.randbytes(size))
    while True:
        place = chance.randrange(max(1, size - 100))
        memory[place : place + 100] = chance.randbytes(min(100, size))
        yield bytes(memory)


def life(count, chance, pool="chat", **options):
    made = memories(chance, **options)
    return [record(number, next(made), next(made), pool) for number in range(1, count + 1)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


def kept(path, *records, **options):
    store = SqliteStore(path, **options)
    for each in records:
        store.append_decision(each)
    return store


@pytest.mark.parametrize("size", [0, 3, MEMORY_BYTES, 65_536])
def test_whatever_a_policy_remembers_comes_back(path, size):
    told = life(CHAIN_MAX + 3, random.Random(1), size=size)
    others = life(3, random.Random(2), "other")
    store = kept(path, told[0], *(each for both in zip(told[1:4], others, strict=True) for each in both), *told[4:])
    assert store.decisions("chat", limit=1000) == told[::-1]
    for place, each in enumerate(told):
        assert store.decisions("chat", each.at_wall_s, 2) == told[max(0, place - 1) : place + 1][::-1]
    assert store.decisions("other", limit=9) == others[::-1]
    store.close()


def rows_of(told):
    packer, rows = bodies.DecisionPacker(), {}
    for seq, each in enumerate(told, 1):
        rows[seq] = packer.packed(each)
        packer.written(each, seq)
    return rows


def test_a_memory_that_is_much_the_same_costs_little():
    sizes = [len(body) for body in rows_of(life(10 * CHAIN_MAX, random.Random(1))).values()]
    assert sum(size > MEMORY_BYTES for size in sizes) == 10, "one for each chain"
    assert sum(sizes) < len(sizes) * MEMORY_BYTES / 8


def test_a_writer_that_comes_after_another_begins_a_chain_of_its_own(path):
    told = life(6, random.Random(1))
    kept(path, *told[:3]).close()
    store = kept(path, *told[3:])
    assert store.decisions("chat", limit=6) == told[::-1]
    store.close()


def test_rows_of_an_earlier_version_are_read_as_they_are(path):
    told = life(4, random.Random(1))
    kept(path).close()
    with sqlite3.connect(path) as connection:
        for each in told[:2]:
            old = zlib.compress(msgspec.msgpack.encode(each), 1)
            connection.execute("INSERT INTO decisions (pool, at_wall_s, body) VALUES ('chat', ?, ?)", (each.at_wall_s, old))
        connection.execute("PRAGMA user_version=2")
    connection.close()
    reader = SqliteStore(path, read_only=True)
    assert reader.decisions("chat", limit=9) == told[1::-1]
    reader.close()
    store = kept(path, *told[2:])
    assert store.decisions("chat", limit=9) == told[::-1]
    store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (schema.SCHEMA_VERSION,)
    connection.close()


def forgotten(each):
    return record(each.decision.replicas, b"", b"")


def test_where_the_row_before_was_pruned_or_damaged_only_memories_are_lost_and_not_for_long(path, monkeypatch):
    monkeypatch.setattr(module, "PRUNE_EVERY", 10)
    told = life(3 * CHAIN_MAX, random.Random(1))
    pruned = kept(path, *told[:30], rows_max=CHAIN_MAX + 4)
    found = pruned.decisions("chat", limit=1000)[::-1]
    assert found == [*map(forgotten, told[10:CHAIN_MAX]), *told[CHAIN_MAX:30]]
    pruned.close()
    path.unlink()
    store = kept(path, *told)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE decisions SET body = ? WHERE seq = 4", (b"garbage",))
    connection.close()
    assert store.decisions("chat", told[4].at_wall_s) == [forgotten(told[4])]
    assert store.decisions("chat", told[CHAIN_MAX].at_wall_s) == [told[CHAIN_MAX]]
    store.close()


def test_a_row_that_says_it_builds_on_itself_ends():
    packer = bodies.DecisionPacker()
    first, second = life(2, random.Random(1))
    packer.packed(first)
    packer.written(first, 1)
    loop = packer.packed(second)
    unpacker = bodies.DecisionUnpacker(lambda seq: loop)
    assert unpacker.record(loop) == forgotten(second)


def test_what_is_known_while_reading_is_bounded(path):
    told = life(3 * KNOWN_MAX, random.Random(1), size=200)
    rows = rows_of(told)
    unpacker = bodies.DecisionUnpacker(rows.get)
    assert [unpacker.record(rows[seq]) for seq in sorted(rows, reverse=True)] == told[::-1]
    assert [unpacker.record(rows[seq]) for seq in sorted(rows)] == told
    assert len(unpacker._known) <= KNOWN_MAX
