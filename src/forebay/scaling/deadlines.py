"""The floor of work that may wait, but not for ever: replicas that start what waits of preemptible tiers before it expires.

Such work is no demand: it goes where interactive work leaves room. Only where that room is too little until its deadlines it takes
replicas of its own, beside what interactive work takes now. Those that serve have all the time that is left, a pending one what is left
when it serves, and one more what is left after a cold start; for what no start would serve in time, none is made.

So once a start is made the count stands: what is there when it serves is what it was made for.
"""

import math
from collections.abc import Sequence

from forebay.domain.due import Due
from forebay.domain.scaling import Term, TermKind
from forebay.domain.units import format_time
from forebay.scaling.capacity import PoolCapacity, whole_replicas
from forebay.scaling.sight import Sight

REQUESTS_MAX = 1e12
WORTH = 0.25
"""Of a cold start: no more are started at the last moment than as if they had so long to work. A start that loads for longer than four
times what it works is a waste, and a wrong rate must not buy a whole fleet in the last second."""
FAR = 2.0
SMALL_REPLICAS = 0.05
"""What is due later than FAR cold starts may wait and see while it takes less than this: every fleet leaves so much over some time."""


def dated(
    dues: Sequence[Due], sight: Sight, capacity: PoolCapacity, load_replicas: float, cold_start_s: float, interval_s: float
) -> Term | None:
    """The floor that ``dues`` take beside ``load_replicas`` of interactive work; None where nothing is due that needs one, or where what a
    replica serves isn't known. More requests due, or more load, never make it lower."""
    rate_per_s = capacity.rate_per_s
    if not rate_per_s:
        return None
    least_s = max(interval_s, WORTH * cold_start_s)
    most, chosen, requests = load_replicas, None, 0.0
    for due in sorted((due for due in dues if math.isfinite(due.in_s) and due.requests > 0), key=lambda due: due.in_s):
        requests = min(REQUESTS_MAX, requests + due.requests)
        needed, met = _needed(requests / rate_per_s, due.in_s, sight, load_replicas, cold_start_s, least_s)
        small = needed - load_replicas < SMALL_REPLICAS and due.in_s > FAR * cold_start_s
        if needed > most and not small:
            most, chosen = needed, (due.in_s, requests, met)
    if chosen is None:
        return None
    in_s, requests, met = chosen
    takes = f"that takes {most - load_replicas:.2f} replicas beside {load_replicas:.2f} for the rest"
    if not met:
        takes = "no start would be in time for all of them, and what is there stays"
    numbers = {
        "requests": requests,
        "in_s": in_s,
        "replica_rate_per_s": rate_per_s,
        "load_replicas": load_replicas,
        "needed_replicas": most,
        "cold_start_s": cold_start_s,
    }
    because = f"{requests:.0f} preemptible requests that wait must have begun in {format_time(max(0.0, in_s))}: {takes}"
    return Term("deadlines", TermKind.FLOOR, whole_replicas(most), because, numbers)


def _needed(
    replica_seconds: float, in_s: float, sight: Sight, load_replicas: float, cold_start_s: float, least_s: float
) -> tuple[float, bool]:
    """(the fewest replicas that do ``replica_seconds`` of work within ``in_s`` beside ``load_replicas``, whether they do). The load has
    those that serve first."""
    serving = float(sight.ready + sight.pending - len(sight.arriving_s))
    upto, left = 0.0, replica_seconds
    for count, start_s in ((serving, 0.0), *((1.0, min(each_s, cold_start_s)) for each_s in sight.arriving_s)):
        each_s = max(in_s, least_s) - start_s
        first, upto = max(upto, load_replicas), upto + count
        if each_s <= 0 or upto <= first:
            continue
        if left <= (upto - first) * each_s:
            return first + left / each_s, True
        left -= (upto - first) * each_s
    there = max(float(sight.supply), load_replicas)
    return (there + left / max(in_s - cold_start_s, least_s), True) if in_s > cold_start_s else (there, False)
