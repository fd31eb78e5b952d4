"""What only a file can do: survive, be damaged, be full, be of another version, be read by two."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys

import msgspec
import pytest

from forebay.adapters.sqlite import SqliteStore, StoreCorrupt, StoreFailed, StoreFull, ledger
from forebay.adapters.sqlite import store as module
from forebay.domain.errors import BadInput
from forebay.domain.events import Event
from forebay.domain.roster import Finished
from forebay.domain.usage import COUNTS, UsageBatch, UsageRow, UsageTaken
from forebay.ports import DemandBucket

WRITER = """
import sys
from forebay.adapters.sqlite import SqliteStore
from forebay.domain.events import Event
store = SqliteStore(sys.argv[1])
for number in range(1_000_000):
    store.append_event(Event("tick", 0.0, float(number)))
    store.put("last", str(number).encode())
    print(number, flush=True)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a folder?#" / "history.db"


def test_what_was_acknowledged_survives_a_kill(path):
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        while int(writer.stdout.readline()) < 50:
            pass
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged = [int(line) for line in writer.stdout.read().splitlines()]
    last = acknowledged[-1] if acknowledged else 50
    store = SqliteStore(path)
    assert int(store.get("last")) >= last
    assert [event.wall_s for event in store.events(limit=10**6)][: last + 1] == [float(number) for number in range(last + 1)]
    store.close()


def test_it_is_there_after_closing(path):
    store = SqliteStore(path)
    store.put("key", b"value")
    store.close()
    again = SqliteStore(path)
    assert again.get("key") == b"value"
    again.close()


def test_every_commit_is_flushed(path):
    store = SqliteStore(path)
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    store.close()


def test_rows_beyond_the_bound_are_pruned(path, monkeypatch):
    monkeypatch.setattr(module, "PRUNE_EVERY", 10)
    monkeypatch.setattr(module, "RAMP_DAYS_MAX", 3)
    store = SqliteStore(path, rows_max=15)
    for number in range(9):
        store.append_ramp("chat", f"2026-01-0{number + 1}", number)
    for number in range(40):
        store.append_event(Event("tick", 0.0, float(number)))
    assert [event.wall_s for event in store.events()] == [float(number) for number in range(25, 40)]
    assert list(store.ramps("chat")) == [6.0, 7.0, 8.0]
    store.close()


def test_a_full_file_is_an_error_and_what_was_written_stays(path):
    store = SqliteStore(path, file_bytes_max=100_000)
    store.put("small", b"x")
    with pytest.raises(StoreFull, match=r"history\.db: database or disk is full; free space"):
        store.put("big", os.urandom(200_000))
    assert store.get("small") == b"x"
    assert store.get("big") is None
    store.close()


def test_a_file_that_is_no_database_is_said(path):
    path.parent.mkdir()
    path.write_bytes(b"not a database at all, " * 100)
    with pytest.raises(StoreCorrupt, match=r"history\.db is damaged .*move it away"):
        SqliteStore(path)


def test_a_damaged_page_is_said(path):
    store = SqliteStore(path)
    for number in range(200):
        store.append_event(Event("tick", 0.0, float(number), message=str(os.urandom(200))))
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match="move it away"):
        SqliteStore(path).events()


def test_a_damaged_body_is_said(path):
    store = SqliteStore(path)
    store.append_event(Event("tick", 0.0, 0.0))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET body = ?", (b"garbage",))
    connection.close()
    with pytest.raises(StoreCorrupt, match="holds a Event that can't be read"):
        store.events()
    store.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_moved_away_while_in_use_is_said_and_put_back_goes_on(path, replaced):
    """SQLite went on writing into the unlinked file without a word: nothing of it was there after a restart."""
    store = SqliteStore(path)
    store.put("key", b"before")
    aside = path.with_name("aside")
    path.rename(aside)
    if replaced:
        path.write_bytes(b"another")
    with pytest.raises(StoreFailed, match="moved or deleted"):
        store.put("key", b"lost")
    with pytest.raises(StoreFailed, match="moved or deleted"):
        store.append_event(Event("lost", 0.0, 0.0))
    assert store.get("key") == b"before"
    aside.rename(path)
    store.put("key", b"after")
    assert store.get("key") == b"after"
    store.close()


def test_a_newer_version_is_refused(path):
    SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(BadInput, match="newer Forebay"):
        SqliteStore(path)


def test_a_file_of_the_version_before_demand_is_read_as_it_is_and_brought_up_to_date_by_the_writer(path):
    bucket = DemandBucket(300.0, 300.0, 1.0, 2.0, 3.0)
    store = SqliteStore(path)
    store.put("key", b"old")
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE demand")
        connection.execute("PRAGMA user_version=1")
    connection.close()
    reader = SqliteStore(path, read_only=True)
    assert list(reader.demand("chat")) == []
    reader.close()
    writer = SqliteStore(path)
    writer.append_demand("chat", bucket)
    assert writer.get("key") == b"old"
    writer.close()
    again = SqliteStore(path, read_only=True)
    assert list(again.demand("chat")) == [bucket]
    again.close()


def test_a_reader_beside_the_writer_sees_what_is_committed_and_cannot_write(path):
    with pytest.raises(BadInput, match="no history"):
        SqliteStore(path, read_only=True)
    store = SqliteStore(path)
    store.put("key", b"one")
    reader = SqliteStore(path, read_only=True)
    assert reader.get("key") == b"one"
    store.put("key", b"two")
    assert reader.get("key") == b"two"
    with pytest.raises(StoreFailed, match="readonly"):
        reader.put("key", b"three")
    reader.close()
    store.close()


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFailed, match="state directory"):
        SqliteStore(tmp_path / "file" / "history.db")


# -- bounds of the ledger and of the records of requests -------------------------------------------------------------------


def ledger_totals(store):
    return [sum(column) for column in zip(*(row.counts for row in store.usage()), strict=True)]


def test_the_oldest_days_of_a_long_ledger_are_added_up_and_no_sum_changes(tmp_path):
    store = SqliteStore(tmp_path / "history.db")
    keys = [(team, "llama", "interactive", "chat") for team in ("a", "b")]
    for number, day in enumerate(range(100, 110)):
        rows = tuple(UsageRow(day, key, (day, *[1] * (COUNTS - 1))) for key in keys)
        store.append_usage(UsageBatch("gw", f"j-{number}", 0, 1, rows), float(number))
    before = ledger_totals(store)
    for _ in range(2):
        with store._writing() as connection:
            ledger.fold_usage(connection, rows_max=7, journals_max=3)
    assert [(row.day, row.key[0]) for row in store.usage()][:3] == [(0, "a"), (0, "b"), (107, "a")]
    assert ledger_totals(store) == before
    # A journal that is still heard of is remembered; those long gone are not.
    assert store.append_usage(UsageBatch("gw", "j-9", 0, 1, ()), 9.0).upto == 1
    assert store.append_usage(UsageBatch("gw", "j-0", 0, 5, ()), 9.0) == UsageTaken(5)
    store.close()


def test_what_is_only_a_sample_never_pushes_out_what_was_unusual(tmp_path):
    store = SqliteStore(tmp_path / "history.db")
    store.append_finished([Finished(f"r{number}", "t", 1.0, number % 2 == 0, msgspec.Raw(b"{}")) for number in range(20)])
    with store._writing() as connection:
        ledger.prune_finished(connection, unusual_max=5, sampled_max=2)
    kept = [number for number in range(20) if store.finished(f"r{number}")]
    assert kept == [10, 12, 14, 16, 17, 18, 19]
    store.close()


def test_a_history_from_before_the_ledger_is_read_without_one_and_gets_one(tmp_path):
    path = tmp_path / "history.db"
    SqliteStore(path).close()
    with sqlite3.connect(path) as old:
        old.executescript("DROP TABLE usage; DROP TABLE usage_journals; DROP TABLE requests; PRAGMA user_version=3")
    old.close()
    reading = SqliteStore(path, read_only=True)
    assert (list(reading.usage()), list(reading.finished("a"))) == ([], [])
    reading.close()
    writing = SqliteStore(path)
    assert writing.append_usage(UsageBatch("gw", "j", 0, 1, ()), 0.0) == UsageTaken(1)
    writing.close()


def test_a_history_that_is_made_is_its_owners_alone_and_one_that_is_there_keeps_its_mode(tmp_path):
    store = SqliteStore(tmp_path / "new.db")
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    store.close()
    (tmp_path / "new.db").chmod(0o640)
    SqliteStore(tmp_path / "new.db").close()
    assert stat.S_IMODE((tmp_path / "new.db").stat().st_mode) == 0o640
