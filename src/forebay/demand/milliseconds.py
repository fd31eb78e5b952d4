"""Times that are taken for seconds and look like milliseconds: told, not refused, since a quiet service may have such times too."""

import math
from collections.abc import Iterable, Mapping
from itertools import islice, pairwise

from forebay.demand.counts import Counts
from forebay.demand.trace import in_order

ROWS_MAX = 4096
"""Rows that are looked at: the first ones."""
ROWS_MIN = 100
GAP_S_MIN = 100.0
"""Requests that are further apart than this on average hardly need a fleet; as milliseconds they come up to ten a second."""
GRID_S = 60
"""Times that are all multiples of so much, or more, are a log of minutes: no clock of milliseconds ticks like that."""
FORMATS = ("csv", "jsonl", "ledger")
"""Those in which one's own seconds may stand; of the published ones the unit is known."""


def told(lines: Iterable[str], trace_format: str, name: str, columns: Mapping[str, str] | None = None) -> str:
    """What to say of the trace ``name`` that begins with ``lines``; "" where its times may well be seconds."""
    if trace_format not in FORMATS:
        return ""
    rows, place = in_order(islice(lines, ROWS_MAX), trace_format, name, Counts(), lenient=True, columns=columns)
    times_s = [row.at_s for row in rows]
    if len(times_s) < ROWS_MIN or place.since.origin_us is not None or any(at_s != int(at_s) for at_s in times_s):
        return ""
    gap_s = (times_s[-1] - times_s[0]) / (len(times_s) - 1)
    grid_s = math.gcd(*(int(after - before) for before, after in pairwise(times_s)))
    if gap_s < GAP_S_MIN or grid_s >= GRID_S:
        return ""
    return (
        f"{name}: its times look like milliseconds: the first {len(times_s):,} are whole numbers, {gap_s:,.0f} apart on average, which as "
        f"seconds is {3600 / gap_s:.2g} requests an hour. If they are milliseconds, divide them by 1000; they are read as seconds"
    )
