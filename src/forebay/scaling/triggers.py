"""The triggers: the safety net under the floors, for when demand was read too low or a replica serves less than was thought.

A trigger never asks again for what is on its way: it wants one replica more than are *ready* (or what the backlog takes,
as a total), and starts that are in time are part of that. And each replica that becomes ready gets time to show what
it relieves before the next one is asked for.
"""

from forebay.domain.scaling import Term, TermKind
from forebay.domain.units import format_duration
from forebay.scaling.arrivals import Demand
from forebay.scaling.capacity import PoolCapacity, whole_replicas
from forebay.scaling.memory import Memory
from forebay.scaling.sight import Sight
from forebay.spec.types import Scaling


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
            f"not pulled: {sight.waiting:.0f} waiting, {per_replica:.1f} per ready replica, for {format_duration(held_s)}"
            f" (more than {settings.out_waiting_per_replica:g} for {format_duration(settings.out_waiting_for_s)} pulls it)"
        )
        return Term("queue", TermKind.TRIGGER, 0, because, numbers)
    wanted = sight.ready + 1
    if capacity.rate_per_s and demand is not None:
        horizon_s = max(cold_start_s, settings.out_waiting_for_s, 1.0)
        wanted = max(wanted, whole_replicas(demand.proven + sight.waiting / (horizon_s * capacity.rate_per_s)))
    because = (
        f"{sight.waiting:.0f} waiting, {per_replica:.1f} per ready replica, for {format_duration(held_s)}:"
        f" {wanted} would work it off ({sight.ready} ready, {sight.pending} starting)"
    )
    return Term("queue", TermKind.TRIGGER, wanted, because, numbers)


def kv(sight: Sight, memory: Memory, settings: Scaling) -> Term:
    """The KV caches are nearly full: enough replicas to bring the mean back under the threshold, and one more at least."""
    settled = memory.ready_rose_s is None or sight.now_s - memory.ready_rose_s >= settings.out_waiting_for_s
    numbers = {"kv_usage": sight.kv_least, "ready": float(sight.ready)}
    full = sight.ready > 0 and sight.kv_least > settings.out_kv_usage
    if not full or not settled:
        why = "a new replica has yet to show its effect" if full else f"more than {settings.out_kv_usage:.0%} pulls it"
        return Term("kv", TermKind.TRIGGER, 0, f"not pulled: KV {sight.kv_least:.0%} used ({why})", numbers)
    sized = whole_replicas(sight.ready * sight.kv_least / settings.out_kv_usage) if settings.out_kv_usage > 0 else 0
    wanted = max(sight.ready + 1, sized)
    return Term("kv", TermKind.TRIGGER, wanted, f"KV {sight.kv_least:.0%} used over {sight.ready} ready replicas", numbers)
