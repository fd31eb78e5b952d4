"""What admission is told to do with work that can wait: nothing, hold it back for a scheduled event, or refuse it.

A scheduled minimum announces a crowd. Preemptible streams that have begun keep their place, so from a minute before the event none is
started any more: most that run have ended by then, and the room is there. Once the event's replicas serve they are started again.
"""

import math

from forebay.domain.roster import Posture
from forebay.scaling.schedule import Schedule

EVENT_LEAD_S = 60.0
"""Before an event's start; the calendar asks for its replicas a whole cold start ahead, which is longer."""
EVENT_LATE_S = 300.0
"""After its start, where its replicas are late; then the held work may have waited long enough."""


def held_for(schedule: Schedule, ready: int, wall_s: float) -> str:
    """The event for which preemptible work is held back, with why; empty: for none."""
    if not len(schedule) or not math.isfinite(wall_s):
        return ""
    try:
        active = schedule.active(wall_s, EVENT_LEAD_S)
    except (ValueError, OverflowError):
        return ""
    if active is None or wall_s - active.start_s > EVENT_LATE_S:
        return ""
    name, least = active.entry.name, active.entry.min_replicas
    if wall_s < active.start_s:
        return f"{name} begins in {active.start_s - wall_s:.0f} s: what is preemptible waits"
    return f"{name} has begun with {ready} of {least} replicas ready: what is preemptible waits" if ready < least else ""


def posture(exhausted: str, event: str) -> tuple[Posture, str]:
    """The posture, and why it isn't open; what is exhausted refuses, which holds back as well."""
    if exhausted:
        return Posture.SHED_PREEMPTIBLE, exhausted
    return (Posture.HOLD_PREEMPTIBLE, event) if event else (Posture.OPEN, "")
