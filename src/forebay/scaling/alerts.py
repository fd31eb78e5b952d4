"""What a person should hear of, and since when. An alert is a condition that holds now; whoever notifies tracks its ends."""

from forebay.domain.scaling import Alert, AlertKind, Term
from forebay.domain.units import format_time
from forebay.scaling.memory import Memory
from forebay.scaling.sight import Sight
from forebay.spec.types import Scaling, Slo

BREACH_FOR_S = 60.0
"""An SLO missed for less is a blip."""
IDS_NAMED_MAX = 3
FAILED_FOR_S = 60.0
"""A replica that has failed for less is being restarted, by Forebay or by whoever runs it."""
NONE_FOR_S = 10.0
"""A pool of which nothing is left is told sooner: what comes is held, and soon refused."""
FULL_FOR_S = 10.0
"""A pool of which there can be no more: what waits for so long is told. Patience spares replicas, and here there are none to spare."""


def starved(sight: Sight) -> bool:
    """Whether the pool gets no hardware: replicas are missing, and every start under way is overdue."""
    return sight.overdue > 0 and sight.pending == 0 and sight.ready < sight.desired


def raised(
    pool: str, sight: Sight, memory: Memory, settings: Scaling, slo: Slo, exhausted: str, asks: Term | None = None, needed: int = 0
) -> tuple[Alert, ...]:
    """The alerts that hold.

    ``exhausted``: why no more replicas come although they are wanted; empty if they do. ``asks``: the cap that waits for approval.
    ``needed``: replicas that would be wanted if there were no caps.
    """
    now_s = sight.now_s
    found: list[Alert] = []
    pending_since_s = (sight.oldest_overdue_s if sight.oldest_overdue_s is not None else now_s) + settings.pending_alert_s
    if sight.overdue and now_s >= pending_since_s:
        message = f"{sight.overdue} pending for longer than {format_time(settings.pending_alert_s)} and overdue; not counted as supply"
        found.append(Alert(AlertKind.PENDING_TOO_LONG, pool, message, pending_since_s))
    unknown = memory.unknown_since_s
    if unknown and (blind := {key: since_s for key, since_s in unknown.items() if now_s - since_s >= settings.unknown_alert_s}):
        since_s = min(blind.values()) + settings.unknown_alert_s
        found.append(Alert(AlertKind.SIGNALS_UNKNOWN, pool, _unknown(sight, sorted(key for key in blind if key)), since_s))
    if memory.breach.since_s is not None and now_s - memory.breach.since_s >= BREACH_FOR_S and not sight.unheard:
        message = f"{_late(sight)}, promised are {slo.attainment:.1%}"
        found.append(Alert(AlertKind.SLO_BREACH, pool, message, memory.breach.since_s + BREACH_FOR_S))
    if exhausted:
        since_s = memory.exhausted_since_s if memory.exhausted_since_s is not None else now_s
        found.append(Alert(AlertKind.POOL_EXHAUSTED, pool, exhausted, since_s))
    elif _full(sight, memory, settings):
        found.append(Alert(AlertKind.POOL_EXHAUSTED, pool, _waits(sight, settings, needed), (memory.waiting.since_s or 0.0) + FULL_FOR_S))
    if asks is not None:
        since_s = memory.asked_since_s if memory.asked_since_s is not None else now_s
        found.append(Alert(AlertKind.APPROVAL_WANTED, pool, f"held at {asks.replicas}: {asks.because}", since_s))
    return tuple(found + _failed(pool, sight)) if sight.failed else tuple(found)


def _late(sight: Sight) -> str:
    if sight.attainment is not None:
        return f"{sight.attainment:.1%} of first tokens in time"
    return "first tokens late when last seen" if sight.late is None else f"{sight.late:.0f} first tokens late, too few for a share"


def _failed(pool: str, sight: Sight) -> list[Alert]:
    """That replicas have failed, and that all have: two alerts, since who was told of one must hear of the last one too."""
    failed, others = len(sight.failed), sight.ready + sight.pending + sight.overdue + sight.draining
    found = []
    if (last_s := sight.failed[-1][0]) + NONE_FOR_S <= sight.now_s and not others:
        found.append(Alert(AlertKind.NO_REPLICAS, pool, "no replica is left: what comes is held, then refused", last_s + NONE_FOR_S))
    if (first_s := sight.failed[0][0]) + FAILED_FOR_S <= sight.now_s:
        message = f"{failed} of {failed + others} failed: {_named([each for _, each in sight.failed])}"
        found.append(Alert(AlertKind.REPLICAS_FAILED, pool, message, first_s + FAILED_FOR_S))
    return found


def _full(sight: Sight, memory: Memory, settings: Scaling) -> bool:
    """Whether more than is allowed waits in a pool whose size is given."""
    fixed = settings.min_replicas == settings.max_replicas and sight.ready > 0
    return fixed and memory.waiting.since_s is not None and memory.waiting.for_s(sight.now_s) >= FULL_FOR_S


def _waits(sight: Sight, settings: Scaling, needed: int) -> str:
    most = settings.max_replicas
    words = f"{sight.waiting:.0f} requests wait, and there are never more than {most} {'replica' if most == 1 else 'replicas'}"
    words += f"; {needed} would be needed" if needed > most else ""
    if sight.in_engines <= sight.waiting / 2:
        return words
    return (
        f"{words}; {sight.in_engines:.0f} wait inside the engines, where no tier goes first: these run fewer at once than they are taken to"
    )


def _unknown(sight: Sight, ids: list[str]) -> str:
    parts = [f"{sight.missing} not known: replicas are held, not fewer and not zero"] if sight.missing else []
    if ids:
        parts.append(f"no signals of {_named(ids)}")
    return "; ".join(parts) or "signals come back"


def _named(ids: list[str]) -> str:
    return ", ".join(ids[:IDS_NAMED_MAX]) + (f" and {len(ids) - IDS_NAMED_MAX} more" if len(ids) > IDS_NAMED_MAX else "")
