"""The ledger and the records of requests: SQL over an open transaction, told apart from how a file is opened and its errors said."""

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, delete, func, insert, literal, select
from sqlalchemy.dialects.sqlite import insert as upsert

from forebay.adapters.sqlite import schema
from forebay.adapters.sqlite.bodies import packed_bytes, unpacked_bytes
from forebay.domain.roster import Finished
from forebay.domain.usage import COUNT_NAMES, UsageBatch, UsageRow, UsageTaken
from forebay.ports.store import JOURNALS_MAX, SAMPLED_MAX, UNUSUAL_MAX, USAGE_ROWS_MAX

_USAGE = schema.usage
_KEYS = [_USAGE.c.day, *(_USAGE.c[name] for name in schema.KEY_NAMES)]
_SUMS = [_USAGE.c[name] for name in COUNT_NAMES]


def add_usage(connection: Connection, batch: UsageBatch, wall_s: float) -> UsageTaken:
    """Rows and mark in the one transaction of ``connection``, or neither."""
    journals = schema.journals
    known = connection.execute(select(journals.c.upto).where(journals.c.journal == batch.journal)).scalar_one_or_none()
    has = 0 if known is None else int(known)
    if batch.after < has or batch.upto <= batch.after:
        return UsageTaken(has)
    if batch.rows:
        connection.execute(_added(), [_values(row) for row in batch.rows])
    mark = upsert(journals).values(journal=batch.journal, gateway=batch.gateway, upto=batch.upto, heard_wall_s=wall_s)
    mark = mark.on_conflict_do_update(index_elements=["journal"], set_={"upto": mark.excluded.upto, "heard_wall_s": wall_s})
    connection.execute(mark)
    return UsageTaken(batch.upto, batch.after - has)


def fold_usage(connection: Connection, rows_max: int = USAGE_ROWS_MAX, journals_max: int = JOURNALS_MAX) -> None:
    """Keep the bounds: the oldest days are added up under day 0, and journals not heard of for longest are forgotten."""
    over = connection.execute(select(func.count()).select_from(_USAGE).where(_USAGE.c.day > 0)).scalar_one() - rows_max
    if over > 0:
        last = select(_USAGE.c.day).where(_USAGE.c.day > 0).order_by(_USAGE.c.day).offset(over - 1).limit(1)
        day = connection.execute(last).scalar_one()
        old = (_USAGE.c.day > 0) & (_USAGE.c.day <= day)
        columns = [literal(0), *_KEYS[1:], *(func.sum(column) for column in _SUMS)]
        sums = select(*columns).where(old).group_by(*_KEYS[1:])
        connection.execute(_added(sums))
        connection.execute(delete(_USAGE).where(old))
    journals = schema.journals
    kept = select(journals.c.journal).order_by(journals.c.heard_wall_s.desc()).limit(journals_max)
    connection.execute(delete(journals).where(journals.c.journal.not_in(kept)))


def usage_query(since_day: int, until_day: int | None) -> Select[Any]:
    """The ledger's rows of these days."""
    query = select(*_KEYS, *_SUMS).where(_USAGE.c.day >= since_day)
    if until_day is not None:
        query = query.where(_USAGE.c.day < until_day)
    return query.order_by(*_KEYS)


def usage_row(row: Row[Any]) -> UsageRow:
    """One of them."""
    day, team, model, tier, pool, *counts = tuple(row)
    return UsageRow(day, (team, model, tier, pool), tuple(counts))


def add_finished(connection: Connection, requests: Sequence[Finished]) -> None:
    """Records of requests."""
    rows = [
        {
            "id": one.id,
            "team": one.team,
            "ended_unix_s": one.ended_unix_s,
            "unusual": one.unusual,
            "body": packed_bytes(bytes(one.record)),
        }
        for one in requests
    ]
    if rows:
        connection.execute(insert(schema.requests), rows)


def prune_finished(connection: Connection, unusual_max: int = UNUSUAL_MAX, sampled_max: int = SAMPLED_MAX) -> None:
    """The oldest of each kind go, beyond its bound."""
    table = schema.requests
    for unusual, most in ((True, unusual_max), (False, sampled_max)):
        own = table.c.unusual == unusual
        newest = select(table.c.seq).where(own).order_by(table.c.seq.desc()).offset(most).limit(1)
        connection.execute(delete(table).where(own, table.c.seq <= newest.scalar_subquery()))


def finished_query(request_id: str) -> Select[Any]:
    """The records under this id, newest first."""
    table = schema.requests
    columns = [table.c[name] for name in ("id", "team", "ended_unix_s", "unusual", "body")]
    return select(*columns).where(table.c.id == request_id).order_by(table.c.seq.desc())


def finished_row(row: Row[Any]) -> Finished:
    """One of them. Raises zlib.error where it is damaged."""
    return Finished(row.id, row.team, row.ended_unix_s, row.unusual, msgspec.Raw(unpacked_bytes(row.body)))


def _values(row: UsageRow) -> dict[str, str | int]:
    names = ("day", *schema.KEY_NAMES, *COUNT_NAMES)
    return dict(zip(names, (row.day, *row.key, *row.counts), strict=True))


def _added(rows: Select[Any] | None = None) -> Any:
    """An insert that adds to what is there."""
    statement = upsert(_USAGE)
    if rows is not None:
        statement = statement.from_select([column.name for column in (*_KEYS, *_SUMS)], rows)
    sums = {column.name: column + statement.excluded[column.name] for column in _SUMS}
    return statement.on_conflict_do_update(index_elements=[column.name for column in _KEYS], set_=sums)
