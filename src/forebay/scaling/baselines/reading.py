"""How other autoscalers read what Forebay says is Unknown: by why it is not known, since some of them read an outage as zero.

Kept apart are kinds of gap: *error* (the question failed), *empty* (it was answered, and there was no such series: a
renamed metric looks like that too), *nan*, and *frozen*. What each law makes of a gap is written in the law.

None of these autoscalers notices that a page stands still: a Known counts whatever its age, and where Forebay has noticed,
the law does nothing, which is what it would do on the same numbers again.
"""

import math
from collections.abc import Iterable
from enum import StrEnum

from forebay.domain.scaling import Term, TermKind
from forebay.domain.signal import Known, Signal
from forebay.scaling.baselines.frame import Seen

VALUE_MAX = 1e12
EMPTY = frozenset({"never", "missing", "empty", "renamed", "stale", "no_gateway", "short", "few"})
"""Prometheus and its kin have no sample, or too few, or none younger than five minutes."""
NAN = frozenset({"nan", "negative"})
FROZEN = frozenset({"frozen", "wedged"})


class Gap(StrEnum):
    """Why there is no number."""

    ERROR = "error"
    EMPTY = "empty"
    NAN = "nan"
    FROZEN = "frozen"


Reading = float | Gap


def read(signal: Signal) -> Reading:
    """The number in ``signal``, at most VALUE_MAX, or the kind of gap there is instead."""
    if isinstance(signal, Known):
        if not math.isfinite(signal.value) or signal.value < 0:
            return Gap.NAN
        return min(float(signal.value), VALUE_MAX)
    for gap, reasons in ((Gap.EMPTY, EMPTY), (Gap.NAN, NAN), (Gap.FROZEN, FROZEN)):
        if signal.why in reasons:
            return gap
    return Gap.ERROR


def known(signal: Signal) -> float | None:
    """The number in ``signal``, or None."""
    value = read(signal)
    return None if isinstance(value, Gap) else value


def total(readings: Iterable[Reading]) -> Reading:
    """Their sum, as Prometheus sums the series that it has; where it has none, the first gap (empty if there are no readings).

    A frozen one goes before the other gaps: there are numbers, and they are the old ones.
    """
    gap: Gap | None = None
    value, found = 0.0, False
    for reading in readings:
        if isinstance(reading, Gap):
            gap = reading if gap is None or reading is Gap.FROZEN else gap
        else:
            value, found = value + reading, True
    return value if found else (gap or Gap.EMPTY)


def waiting(seen: Seen) -> Reading:
    """Requests that wait, in lanes and engines."""
    return total([read(seen.observation.lanes_waiting), *(read(replica.waiting) for replica in seen.ready)])


def running(seen: Seen) -> Reading:
    """Requests in flight on engines: as the gateways count them, or else as the engines do."""
    value = read(seen.observation.running)
    if isinstance(value, Gap) and seen.ready:
        told = total(read(replica.running) for replica in seen.ready)
        return value if isinstance(told, Gap) else told
    return value


def in_flight(seen: Seen) -> Reading:
    """Requests that a proxy in front would count as ongoing: running ones and all that wait."""
    return total([running(seen), waiting(seen)])


def lanes_share(seen: Seen) -> float:
    """Requests that each ready engine would hold besides its own if the lanes were not there; 0 where that is not known.

    These autoscalers know engines whose queue is their own. Where the requests wait at the gateway instead, each engine
    is taken to hold an even share of them: else every law that reads an engine's queue would be blind by construction.
    """
    lanes = known(seen.observation.lanes_waiting)
    return lanes / len(seen.ready) if lanes is not None and seen.ready else 0.0


def engine_waiting(seen: Seen) -> list[Reading]:
    """What waits for each ready engine, its even share of the lanes included."""
    share = lanes_share(seen)
    told = [read(replica.waiting) for replica in seen.ready]
    return [value if isinstance(value, Gap) else value + share for value in told]


def hold(seen: Seen, name: str, because: str) -> Term:
    """The stage of a law that does nothing on this tick."""
    return Term(name, TermKind.HOLD, seen.current, because)
