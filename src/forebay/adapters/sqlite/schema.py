"""The tables of one machine's history, and the mark of their version in the file's header.

Bodies (`bodies`) are compressed: an observation of two hundred replicas repeats itself. What is queried is in columns.
"""

from sqlalchemy import Boolean, Column, Float, Index, Integer, LargeBinary, MetaData, String, Table

from forebay.domain.usage import COUNT_NAMES

SCHEMA_VERSION = 4
"""3: bodies of decisions may build on the row before; those that were written earlier are read as they are. 4: the ledger, and requests."""
DEMAND_SINCE = 2
"""The version that brought the table of demand; an older file that is only read has none."""
USAGE_SINCE = 4
"""The version that brought the ledger and the records of requests."""
metadata = MetaData()

decisions = Table(
    "decisions",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("pool", String, nullable=False),
    Column("at_wall_s", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
Index("decisions_by_pool", decisions.c.pool, decisions.c.at_wall_s, decisions.c.seq)

events = Table(
    "events",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    Column("wall_s", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
Index("events_by_kind", events.c.kind, events.c.seq)

values = Table(
    "key_values",
    metadata,
    Column("key", String, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

ramps = Table(
    "ramps",
    metadata,
    Column("pool", String, primary_key=True),
    Column("day", String, primary_key=True),
    Column("ramp_per_s2", Float, nullable=False),
)

demand = Table(
    "demand",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("pool", String, nullable=False),
    Column("start_wall_s", Float, nullable=False),
    Column("bucket_s", Float, nullable=False),
    Column("requests", Float, nullable=False),
    Column("prompt_tokens", Float, nullable=False),
    Column("output_tokens", Float, nullable=False),
)
Index("demand_by_pool", demand.c.pool, demand.c.start_wall_s, unique=True)

KEY_NAMES = ("team", "model", "tier", "pool")
usage = Table(
    "usage",
    metadata,
    Column("day", Integer, primary_key=True),
    *(Column(name, String, primary_key=True) for name in KEY_NAMES),
    *(Column(name, Integer, nullable=False) for name in COUNT_NAMES),
)
journals = Table(
    "usage_journals",
    metadata,
    Column("journal", String, primary_key=True),
    Column("gateway", String, nullable=False),
    Column("upto", Integer, nullable=False),
    Column("heard_wall_s", Float, nullable=False),
)

requests = Table(
    "requests",
    metadata,
    Column("seq", Integer, primary_key=True),
    Column("id", String, nullable=False),
    Column("team", String, nullable=False),
    Column("ended_unix_s", Float, nullable=False),
    Column("unusual", Boolean, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
Index("requests_by_id", requests.c.id)
Index("requests_by_kind", requests.c.unusual, requests.c.seq)
