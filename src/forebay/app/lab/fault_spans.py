"""What a run's faults touched: when each held, by name, and how much of what was missed fell in those times.

A fault is felt for longer than it holds: replicas that were lost come back after a start, and what waited meanwhile is served
late. So each is counted to its end and RECOVERY_STARTS cold starts more, and on while minutes are under the promise without a gap.
"""

from collections.abc import Sequence

from forebay.app.report.content import FaultDrawn
from forebay.domain.units import format_duration, format_share
from forebay.simulation.values import Minute, NearFaults, Scenario

RECOVERY_STARTS = 2.0
"""One for a replica in place of a lost one, one for what had to be asked for meanwhile."""
SPANS_MAX = 200
"""Drawn on a page; more would be no picture."""


def spans(world: Scenario) -> tuple[FaultDrawn, ...]:
    """The faults of ``world`` that have a time, the earliest first; chance crashes have none beforehand."""
    found = [
        FaultDrawn(f"metrics {fault.kind}{_share(fault.share)}", fault.from_s, min(fault.until_s, world.duration_s), blind=True)
        for fault in world.metric_faults
    ]
    for outage in world.outages:
        count = f"{outage.replicas:.0%}" if outage.replicas < 1 else f"{outage.replicas:g}"
        found.append(FaultDrawn(f"{outage.kind} {count}", outage.at_s, min(outage.at_s + outage.notice_s, world.duration_s)))
    for shortage in world.shortages:
        found.append(
            FaultDrawn(
                f"at most {shortage.replicas_max} node{'s' * (shortage.replicas_max != 1)}",
                shortage.from_s,
                min(shortage.until_s, world.duration_s),
            )
        )
    return tuple(sorted(found, key=lambda span: span.from_s)[:SPANS_MAX])


def recovery_s(world: Scenario) -> float:
    """How long after its end a fault is felt at least."""
    return RECOVERY_STARTS * world.cold_start.unshared_s


def near(world: Scenario, rows: Sequence[Minute]) -> NearFaults | None:
    """What of ``rows`` was missed within the reach of the faults; None where no fault has a time."""
    holds = spans(world)
    if not holds:
        return None
    after_s = recovery_s(world)
    missed = judged = missed_near = judged_near = 0
    before_s, touched = 0.0, False
    for row in rows:
        count = row.both_met + row.missed
        under = count > 0 and row.both_met < world.promise_attainment * count
        inside = any(span.from_s < row.at_s and before_s < span.until_s + after_s for span in holds)
        touched = inside or (touched and under)
        missed, judged = missed + row.missed, judged + count
        if touched:
            missed_near, judged_near = missed_near + row.missed, judged_near + count
        before_s = row.at_s
    return NearFaults(missed, judged, missed_near, judged_near)


def apart(found: NearFaults) -> float:
    """The share of promises kept outside the reach of the faults; 1 where nothing was asked there."""
    judged = found.judged - found.judged_near
    return 1.0 - (found.missed - found.missed_near) / judged if judged else 1.0


def told(name: str, found: NearFaults, world: Scenario, holds: bool) -> str:
    """How much of what the policy ``name`` missed the faults account for, in words; empty where it missed nothing."""
    if not found.missed:
        return ""
    promise = world.promise_attainment
    share = format_share(apart(found), promise).replace("%", " %")
    requests, near_percent = f"{found.missed:,} request{'s' * (found.missed != 1)}", 100 * found.missed_near / found.missed
    words = (
        f"Of the {requests} that {name} missed, {near_percent:.0f} % fell within reach of the faults (to their end and "
        f"{format_duration(recovery_s(world))} more, two cold starts); apart from that it kept {share}."
    )
    if holds or apart(found) < promise:
        return words
    return (
        f"{words} It is the faults that break the promise: play it without `--faults` to compare. What helps against them is replicas "
        "that are there already, `spare: 1` or more, and a shorter cold start."
    )


def _share(share: float) -> str:
    return f" of {share:.0%}" if share < 1 else ""
