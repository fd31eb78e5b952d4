"""The triggers: the safety net under the floors, for when demand was read too low or a replica serves less than was thought.

A trigger never asks again for what is on its way: it wants one replica more than are *ready* (or what the backlog takes,
as a total), and starts that are in time are part of that. And each replica that becomes ready gets time to show what
it relieves before the next one is asked for.
"""

from itertools import pairwise

from forebay.domain.scaling import Term, TermKind
from forebay.domain.units import format_time
from forebay.scaling.arrivals import Demand
from forebay.scaling.capacity import PoolCapacity, whole_replicas
from forebay.scaling.memory import Memory
from forebay.scaling.sight import Sight
from forebay.spec.types import Scaling

TOKENS_TIMES = 1.25
"""Times the tokens in flight at the promise: the coming and going of a fleet that is just full stays under it."""
TOKENS_GROWTH_MAX = 1.5
"""Of the ready replicas, that one pull asks for at most: what piled up in an overload is not demand that lasts."""


def too_long(sight: Sight, settings: Scaling) -> bool | None:
    """Whether more waits per ready replica than is allowed; None where what is known does not settle it."""
    if sight.waiting / max(1, sight.ready) > settings.out_waiting_per_replica:
        return True
    return False if sight.known and not sight.silent else None


def queue(sight: Sight, memory: Memory, settings: Scaling, capacity: PoolCapacity, demand: Demand | None, cold_start_s: float) -> Term:
    """Requests wait for too long: one more than are ready, or what serves demand and the backlog within one cold start."""
    held_s = memory.waiting.for_s(sight.now_s)
    per_replica = sight.waiting / max(1, sight.ready)
    numbers = {"waiting": sight.waiting, "waiting_per_replica": per_replica, "held_s": held_s, "ready": float(sight.ready)}
    from_zero = sight.ready == 0 and sight.waiting > 0
    if not from_zero and (memory.waiting.since_s is None or held_s < settings.out_waiting_for_s):
        because = (
            f"not pulled: {sight.waiting:.0f} waiting{_inside(sight)}, {per_replica:.1f} per ready replica, for {format_time(held_s)}"
            f" (more than {settings.out_waiting_per_replica:g} for {format_time(settings.out_waiting_for_s)} pulls it)"
        )
        return Term("queue", TermKind.TRIGGER, 0, because, numbers)
    wanted = sight.ready + 1
    coming = f"{sight.pending} starting"
    if capacity.rate_per_s and demand is not None:
        horizon_s = max(cold_start_s, settings.out_waiting_for_s, 1.0)
        backlog_s = sight.waiting / capacity.rate_per_s
        spared_s = min(backlog_s, worked_off_s(sight, demand, horizon_s))
        wanted = max(wanted, whole_replicas(demand.proven + (backlog_s - spared_s) / horizon_s))
        numbers |= {"backlog_replica_s": backlog_s, "worked_off_replica_s": spared_s}
        if spared_s > 0:
            coming += f", which will have worked off {spared_s / backlog_s:.0%} by the time a new one serves"
    because = (
        f"{sight.waiting:.0f} waiting{_inside(sight)}, {per_replica:.1f} per ready replica, for {format_time(held_s)}:"
        f" {wanted} would work it off ({sight.ready} ready, {coming})"
    )
    return Term("queue", TermKind.TRIGGER, wanted, because, numbers)


def _inside(sight: Sight) -> str:
    return f" ({sight.in_engines:.0f} of them in engines)" if sight.in_engines >= 1 else ""


def worked_off_s(sight: Sight, demand: Demand, horizon_s: float) -> float:
    """Replica-seconds of a backlog that the starts under way work off up to ``horizon_s`` from now.

    Each counts from when it is expected to serve, after what present demand lacks on the ready ones. Those ones' own spare
    doesn't count: that a queue stands says that they have none. A start that is late, or expected after the horizon, gives nothing.
    """
    free_s = 0.0
    times_s = [in_s for in_s in sight.arriving_s if in_s < horizon_s]
    for count, (from_s, to_s) in enumerate(pairwise((*times_s, horizon_s)), start=1):
        free_s += (to_s - from_s) * min(float(count), max(0.0, sight.ready + count - demand.proven))
    return free_s


def tokens(sight: Sight, memory: Memory, settings: Scaling, capacity: PoolCapacity) -> Term | None:
    """More tokens in flight than keep the promise, and first tokens late with it; None where either can't be known.

    Tokens lead: they say how many are missing, before KV is full and while little waits. Late first tokens only confirm; alone they
    never pull, for some are late at any number of replicas. The replica in the middle speaks for the pool: long contexts on
    a few of them are no reason for more.
    """
    if capacity.profile is None or not capacity.tokens_in_flight or sight.attainment is None or not sight.ready:
        return None
    in_flight = sight.kv_middle * capacity.profile.kv_tokens
    times = in_flight / capacity.tokens_in_flight
    late_s = memory.breach.for_s(sight.now_s)
    numbers = {"in_flight": in_flight, "promised": capacity.tokens_in_flight, "times": times, "late_s": late_s, "ready": float(sight.ready)}
    said = f"{in_flight:.0f} tokens in flight on the middle replica, {times:.2f} times those at the promise"
    confirmed = memory.breach.since_s is not None and late_s >= settings.out_waiting_for_s
    if times <= TOKENS_TIMES or not confirmed or not _settled(sight, memory, settings):
        pulls = f"more than {TOKENS_TIMES:g} with first tokens late for {format_time(settings.out_waiting_for_s)} pulls it"
        return Term("tokens", TermKind.TRIGGER, 0, f"not pulled: {said} ({pulls})", numbers)
    wanted = max(sight.ready + 1, whole_replicas(sight.ready * min(times, TOKENS_GROWTH_MAX)))
    because = f"{said}, and first tokens late for {format_time(late_s)} ({sight.ready} ready, {sight.pending} starting)"
    return Term("tokens", TermKind.TRIGGER, wanted, because, numbers)


def kv(sight: Sight, memory: Memory, settings: Scaling) -> Term:
    """The KV caches are nearly full: enough replicas to bring the mean back under the threshold, and one more at least."""
    settled = _settled(sight, memory, settings)
    numbers = {"kv_usage": sight.kv_least, "ready": float(sight.ready)}
    full = sight.ready > 0 and sight.kv_least > settings.out_kv_usage
    if not full or not settled:
        why = "a new replica has yet to show its effect" if full else f"more than {settings.out_kv_usage:.0%} pulls it"
        return Term("kv", TermKind.TRIGGER, 0, f"not pulled: KV {sight.kv_least:.0%} used ({why})", numbers)
    sized = whole_replicas(sight.ready * sight.kv_least / settings.out_kv_usage) if settings.out_kv_usage > 0 else 0
    wanted = max(sight.ready + 1, sized)
    return Term("kv", TermKind.TRIGGER, wanted, f"KV {sight.kv_least:.0%} used over {sight.ready} ready replicas", numbers)


def _settled(sight: Sight, memory: Memory, settings: Scaling) -> bool:
    """Whether the last replica that became ready has had time to show its effect."""
    return memory.ready_rose_s is None or sight.now_s - memory.ready_rose_s >= settings.out_waiting_for_s
