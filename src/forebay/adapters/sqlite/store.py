"""History, policy memory and the fleet's notes in one SQLite file.

Write-ahead log with ``synchronous=FULL``: a commit is on the disk when the call returns, so that power loss forgets
nothing that was acted on; it costs one flush per decision (0.3 ms on an SSD), which a control loop that decides once a
second can afford. A command that only reads (``explain``) may do so beside the controller.

Bounded twice: rows beyond ``rows_max`` are pruned, oldest first, and the file never grows past ``file_bytes_max``; there, or
on a full disk, a write raises and nothing is lost silently.
"""

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, Table, create_engine, delete, event, func, insert, select, text
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from forebay.adapters.sqlite import ledger, schema
from forebay.adapters.sqlite.bodies import DecisionPacker, DecisionUnpacker, packed, unpacked
from forebay.domain.errors import BadInput, ForebayError
from forebay.domain.events import Event
from forebay.domain.roster import Finished
from forebay.domain.usage import UsageBatch, UsageRow, UsageTaken
from forebay.ports.store import DEMAND_BUCKETS_MAX, DecisionRecord, DemandBucket

ROWS_MAX = 200_000
"""Decisions, and events, each: two days of one pool that decides every second."""
FILE_BYTES_MAX = 4 * 2**30
PRUNE_EVERY = 500
"""Appends between two prunings."""
RAMP_DAYS_MAX = 400
"""Days of ramps kept per pool: a year and a little."""
_PRIVATE = 0o600
"""Of a file that is made: records of requests are for their team and the operator. SQLite gives its log the same."""
BUSY_S = 5.0
"""How long a write waits for another process's."""


class StoreCorrupt(ForebayError):
    """The history file is damaged."""


class StoreFull(ForebayError):
    """The history file cannot grow."""


class StoreFailed(ForebayError):
    """The history file could not be read or written."""


class SqliteStore:
    """`ports.Store` on the file ``path``. Every method may raise StoreCorrupt, StoreFull or StoreFailed, each naming the file."""

    def __init__(
        self,
        path: Path | str,
        *,
        read_only: bool = False,
        rows_max: int = ROWS_MAX,
        file_bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        """Open (and, unless ``read_only``, make) the file. Raises BadInput where there is none to read, or it is a newer version's."""
        self._path = Path(path)
        self._rows_max = rows_max
        self._appends = 0
        self._packer = DecisionPacker()
        self._version = 0
        self._engine = self._open(read_only, file_bytes_max)
        try:
            with self._errors_told():
                self._prepare(read_only)
            self._file = _identity(self._path)
        except ForebayError:
            self._engine.dispose()
            raise

    def append_decision(self, record: DecisionRecord) -> None:
        """Durable when it returns."""
        row = {"pool": record.decision.pool, "at_wall_s": record.at_wall_s, "body": self._packer.packed(record)}
        self._packer.written(record, self._append(schema.decisions, row))

    def decisions(self, pool: str, until_wall_s: float | None = None, limit: int = 1) -> list[DecisionRecord]:
        """Newest first: as they were appended, or, until a time, by their times (an accelerated world's wall starts anew with each run)."""
        table = schema.decisions
        query = select(table.c.seq, table.c.body).where(table.c.pool == pool)
        if until_wall_s is None:
            query = query.order_by(table.c.seq.desc())
        else:
            query = query.where(table.c.at_wall_s <= until_wall_s).order_by(table.c.at_wall_s.desc(), table.c.seq.desc())
        rows = self._rows(query.limit(limit))
        bodies = {row.seq: row.body for row in rows}
        unpacker = DecisionUnpacker(lambda seq: bodies[seq] if seq in bodies else self._decision_body(seq))
        with self._unreadable_told("DecisionRecord"):
            return [unpacker.record(row.body) for row in rows]

    def append_event(self, event: Event) -> None:
        """Durable when it returns."""
        self._append(schema.events, {"kind": event.kind, "wall_s": event.wall_s, "body": packed(event)})

    def events(self, since_wall_s: float = 0.0, kind: str | None = None, limit: int = 1000) -> list[Event]:
        """The newest ``limit``, oldest first."""
        table = schema.events
        query = select(table.c.body).where(table.c.wall_s >= since_wall_s)
        if kind is not None:
            query = query.where(table.c.kind == kind)
        rows = self._rows(query.order_by(table.c.seq.desc()).limit(limit))
        with self._unreadable_told("Event"):
            return [unpacked(row.body, Event) for row in reversed(rows)]

    def put(self, key: str, value: bytes) -> None:
        """Replaces; durable when it returns."""
        statement = upsert(schema.values).values(key=key, value=value)
        self._write(statement.on_conflict_do_update(index_elements=["key"], set_={"value": statement.excluded.value}))

    def get(self, key: str) -> bytes | None:
        """The value put last, or None."""
        rows = self._rows(select(schema.values.c.value).where(schema.values.c.key == key))
        return bytes(rows[0].value) if rows else None

    def append_ramp(self, pool: str, day: str, ramp_per_s2: float) -> None:
        """The day keeps its largest; durable when it returns."""
        table = schema.ramps
        statement = upsert(table).values(pool=pool, day=day, ramp_per_s2=ramp_per_s2)
        larger = func.max(table.c.ramp_per_s2, statement.excluded.ramp_per_s2)
        self._write(statement.on_conflict_do_update(index_elements=["pool", "day"], set_={"ramp_per_s2": larger}))

    def ramps(self, pool: str, limit: int = 28) -> Sequence[float]:
        """By day, oldest first."""
        table = schema.ramps
        query = select(table.c.ramp_per_s2).where(table.c.pool == pool).order_by(table.c.day.desc()).limit(limit)
        return [row.ramp_per_s2 for row in reversed(self._rows(query))]

    def append_demand(self, pool: str, bucket: DemandBucket) -> None:
        """In place of one that begins at the same time; durable when it returns. The last DEMAND_BUCKETS_MAX written of a pool stay."""
        table = schema.demand
        own = table.c.pool == pool
        newest = select(table.c.seq).where(own).order_by(table.c.seq.desc()).offset(DEMAND_BUCKETS_MAX).limit(1)
        with self._errors_told(), self._writing() as connection:
            connection.execute(insert(table).prefix_with("OR REPLACE").values(pool=pool, **msgspec.structs.asdict(bucket)))
            connection.execute(delete(table).where(own, table.c.seq <= newest.scalar_subquery()))

    def demand(self, pool: str, since_wall_s: float = 0.0, until_wall_s: float | None = None) -> Sequence[DemandBucket]:
        """By time, oldest first."""
        if self._version < schema.DEMAND_SINCE:
            return []
        table = schema.demand
        columns = [table.c[name] for name in DemandBucket.__struct_fields__]
        query = select(*columns).where(table.c.pool == pool, table.c.start_wall_s >= since_wall_s)
        if until_wall_s is not None:
            query = query.where(table.c.start_wall_s < until_wall_s)
        return [DemandBucket(**row._mapping) for row in self._rows(query.order_by(table.c.start_wall_s))]

    def append_usage(self, batch: UsageBatch, wall_s: float) -> UsageTaken:
        """Rows and mark in one transaction; durable when it returns."""
        with self._errors_told(), self._writing() as connection:
            taken = ledger.add_usage(connection, batch, wall_s)
            self._prune_now_and_then(connection)
        return taken

    def usage(self, since_day: int = 0, until_day: int | None = None) -> Sequence[UsageRow]:
        """By day and key."""
        if self._version < schema.USAGE_SINCE:
            return []
        return [ledger.usage_row(row) for row in self._rows(ledger.usage_query(since_day, until_day))]

    def append_finished(self, requests: Sequence[Finished]) -> None:
        """Durable when it returns."""
        with self._errors_told(), self._writing() as connection:
            ledger.add_finished(connection, requests)
            self._prune_now_and_then(connection)

    def finished(self, request_id: str) -> Sequence[Finished]:
        """Newest first."""
        if self._version < schema.USAGE_SINCE:
            return []
        rows = self._rows(ledger.finished_query(request_id))
        with self._unreadable_told("record of a request"):
            return [ledger.finished_row(row) for row in rows]

    def close(self) -> None:
        """Flush and release; idempotent."""
        self._engine.dispose()

    def _open(self, read_only: bool, file_bytes_max: int) -> Engine:
        if read_only and not self._path.is_file():
            raise BadInput(
                f"there is no history at {self._path}; run `forebay up` with this configuration first, "
                "or name the state folder of one that ran"
            )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreFailed(f"{self._path.parent}: {error.strerror}; the state directory must be writable") from error
        if not read_only:
            with contextlib.suppress(OSError):  # which SQLite meets too, and is told of there
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, _PRIVATE))
        mode = "ro" if read_only else "rwc"
        location = f"file:{self._path.resolve().as_posix().replace('%', '%25').replace('?', '%3f').replace('#', '%23')}?mode={mode}"
        engine = create_engine(
            "sqlite://",
            poolclass=StaticPool,
            creator=lambda: sqlite3.connect(location, uri=True, timeout=BUSY_S, check_same_thread=False),
        )

        def configure(connection: Any, _: Any) -> None:
            cursor = connection.cursor()
            cursor.execute("PRAGMA synchronous=FULL")
            if not read_only:
                cursor.execute("PRAGMA journal_mode=WAL")
                page_bytes = cursor.execute("PRAGMA page_size").fetchone()[0]
                cursor.execute(f"PRAGMA max_page_count={max(1, file_bytes_max // page_bytes)}")
            cursor.close()

        event.listen(engine, "connect", configure)
        return engine

    def _prepare(self, read_only: bool) -> None:
        with self._engine.begin() as connection:
            version = connection.execute(text("PRAGMA user_version")).scalar_one()
            if version > schema.SCHEMA_VERSION:
                raise BadInput(
                    f"{self._path} was written by a newer Forebay (schema {version}, this one knows {schema.SCHEMA_VERSION}): "
                    "use that version, or move the file away to begin a new history"
                )
            if not read_only and version < schema.SCHEMA_VERSION:
                schema.metadata.create_all(connection)
                connection.execute(text(f"PRAGMA user_version={schema.SCHEMA_VERSION}"))
                version = schema.SCHEMA_VERSION
            self._version = version

    def _append(self, table: Table, row: dict[str, Any]) -> int:
        """The new row's number."""
        with self._errors_told(), self._writing() as connection:
            (seq,) = connection.execute(insert(table).values(**row)).inserted_primary_key or (0,)
            self._prune_now_and_then(connection)
        return int(seq)

    def _prune_now_and_then(self, connection: Connection) -> None:
        """All tables at once: counted apart, one that is written in step with another might never be the one that is due."""
        self._appends += 1
        if self._appends % PRUNE_EVERY:
            return
        ledger.fold_usage(connection)
        ledger.prune_finished(connection)
        for table in (schema.decisions, schema.events):
            newest = connection.execute(select(func.max(table.c.seq))).scalar_one_or_none()
            if newest is not None:
                connection.execute(delete(table).where(table.c.seq <= newest - self._rows_max))
        days = schema.ramps
        kept = select(days.c.day).distinct().order_by(days.c.day.desc()).limit(RAMP_DAYS_MAX)
        connection.execute(delete(days).where(days.c.day.not_in(kept)))

    def _write(self, statement: Any) -> None:
        with self._errors_told(), self._writing() as connection:
            connection.execute(statement)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction, unless the file was moved or deleted under it: SQLite writes on into a file that nobody can find again."""
        if _identity(self._path) != self._file:
            raise StoreFailed(f"{self._path} was moved or deleted while in use; stop `forebay up`, put it back (or not) and start again")
        with self._engine.begin() as connection:
            yield connection

    def _rows(self, query: Any) -> Sequence[Row[Any]]:
        with self._errors_told(), self._engine.connect() as connection:
            return connection.execute(query).all()

    def _decision_body(self, seq: int) -> bytes | None:
        rows = self._rows(select(schema.decisions.c.body).where(schema.decisions.c.seq == seq))
        return bytes(rows[0].body) if rows else None

    @contextlib.contextmanager
    def _unreadable_told(self, kind: str) -> Iterator[None]:
        try:
            yield
        except (zlib.error, msgspec.MsgspecError) as error:
            raise StoreCorrupt(f"{self._path} holds a {kind} that can't be read ({error}){_MOVE_AWAY}") from error

    @contextlib.contextmanager
    def _errors_told(self) -> Iterator[None]:
        """Third-party errors stop here, with what to do in their words."""
        try:
            yield
        except DBAPIError as error:
            words = str(error.orig)
            if "full" in words:
                raise StoreFull(f"{self._path}: {words}; free space, or move the file away") from error
            if "malformed" in words or "not a database" in words:
                raise StoreCorrupt(f"{self._path} is damaged ({words}){_MOVE_AWAY}") from error
            raise StoreFailed(f"{self._path}: {words}") from error
        except SQLAlchemyError as error:
            raise StoreFailed(f"{self._path}: {error}") from error


_MOVE_AWAY = ": stop `forebay up`, move it away (with its -wal and -shm) and start again; only history is lost"
# A controller that comes up over a new file while engines run knows none of them, and ends them all.


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells the file at ``path`` from any other; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
