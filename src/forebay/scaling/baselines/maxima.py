"""The largest KV usage and queue of each replica over the last minute, as ``max_over_time(...[1m])`` gives them.

Kept in 8 bytes a replica and look, so that a fleet of a thousand fits into a policy's memory; what is beyond the bound is
read as it is now, without its past.
"""

import math
import struct
import zlib

from forebay.scaling.baselines.frame import Seen
from forebay.scaling.baselines.reading import Gap, engine_waiting, read

WINDOW_S = 60.0
LOOKS_MAX = 4
"""At a tick of 15 s, those of a minute besides the present one."""
REPLICAS_MAX = 1500
_ROW = struct.Struct("<IHH")
_UNITS = 65_535

Past = tuple[tuple[float, bytes], ...]
"""Looks of the last minute, oldest first: time, and the rows of all replicas that told both."""


def over_the_minute(seen: Seen, past: Past, with_lanes: bool) -> tuple[list[tuple[float, float]], Past]:
    """Per ready replica that tells both: its largest KV usage (0 to 1) and queue of the minute; and the past for the next look.

    ``with_lanes``: each engine holds an even share of what waits in the lanes.
    """
    waits = engine_waiting(seen) if with_lanes else [read(replica.waiting) for replica in seen.ready]
    now: dict[int, tuple[float, float]] = {}
    for replica, waiting in zip(seen.ready, waits, strict=True):
        kv = read(replica.kv_usage)
        if not isinstance(kv, Gap) and not isinstance(waiting, Gap):
            now[zlib.crc32(replica.id.encode("utf-8", "replace"))] = (kv, waiting)
    recent = tuple(look for look in past if seen.now_s - WINDOW_S < look[0] < seen.now_s)[-LOOKS_MAX:]
    most = dict(now)
    for _, rows in recent:
        for key, kv_units, waiting in _ROW.iter_unpack(rows[: len(rows) // _ROW.size * _ROW.size]):
            if key in most:
                kv, queue = most[key]
                most[key] = (max(kv, kv_units / _UNITS), max(queue, float(waiting)))
    rows = b"".join(
        _ROW.pack(key, int(min(kv, 1.0) * _UNITS), min(math.floor(waiting), _UNITS))
        for key, (kv, waiting) in list(now.items())[:REPLICAS_MAX]
    )
    return list(most.values()), (*recent[-(LOOKS_MAX - 1) :], (seen.now_s, rows))
