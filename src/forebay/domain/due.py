"""Work that may wait, and until when: how many requests must have been started within how many seconds.

Preemptible work is no demand: what interactive work leaves is enough for it, until its deadlines say otherwise. They are told in
a few slots, a little too early and never too late.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

DUE_SLOTS_MAX = 32
"""That are told of one lane, and of one pool."""
DUE_SLOTS = 12
"""Of what is left to a request when it begins to wait: its deadline is told up to a twelfth of that too early."""
SLOT_S_MIN = 1.0
"""No slot is made narrower than that. Each is half as wide as the next, so a lane counts in at most 2 × DUE_SLOTS + 1 slots of each of
log2(longest wait ÷ DUE_SLOTS) + 1 widths: 350 where a day may be waited."""
DUST = 1e-9
DEADLINE_S_MAX = 1e12
"""A world second that never comes: what may wait for ever is due then."""
HALVINGS = 12


class Due(msgspec.Struct, frozen=True, gc=False):
    """``requests`` that wait must have been started within ``in_s``; those that are due sooner are not among them."""

    in_s: float
    requests: int


def slot_width_s(longest_wait_s: float) -> float:
    """The seconds of a slot of what has all of its tier's longest wait left; 0: nothing of this tier is ever due."""
    return longest_wait_s / DUE_SLOTS if 0 < longest_wait_s < math.inf else 0.0


def slot_of(deadline_s: float, left_s: float, width_s: float) -> float:
    """When the slot begins in which a deadline lies, of one that had ``left_s`` when it began to wait: the widest, of ``width_s`` or a half
    of it, a quarter, …, that is no more than a twelfth of that. A client that waits ten minutes is not told to be due now as it comes."""
    width_max_s = max(left_s / DUE_SLOTS * (1 + DUST), SLOT_S_MIN)
    while width_s > width_max_s:
        width_s /= 2
    return min(deadline_s, DEADLINE_S_MAX) // width_s * width_s


def of_slots(slots: Mapping[float, int], now_s: float) -> tuple[Due, ...]:
    """``slots``: requests by `slot_of`. Each is due when its slot begins: now, where it has begun."""
    return gathered((max(0.0, begin_s - now_s), requests) for begin_s, requests in slots.items())


def gathered(dues: Iterable[tuple[float, int]]) -> tuple[Due, ...]:
    """(seconds, requests) in any order: the soonest first, those of one instant as one. Of more than DUE_SLOTS_MAX those are put together
    that are nearest to each other for how far they are, and are due as the first of them: the least share of the time left that does it."""
    at: dict[float, int] = {}
    for in_s, requests in dues:
        at[in_s] = at.get(in_s, 0) + requests
    times = sorted(at)
    if len(times) <= DUE_SLOTS_MAX:
        return tuple(Due(in_s, at[in_s]) for in_s in times)
    low, high, firsts = 0.0, 1.0, _firsts(times, 1.0)
    for _ in range(HALVINGS):
        share = (low + high) / 2
        found = _firsts(times, share)
        if len(found) <= DUE_SLOTS_MAX:
            high, firsts = share, found
        else:
            low = share
    ends = [*firsts[1:], len(times)]
    return tuple(Due(times[first], sum(at[in_s] for in_s in times[first:end])) for first, end in zip(firsts, ends, strict=True))


def _firsts(times: list[float], share: float) -> list[int]:
    """Where groups begin in which nothing is due earlier than it is by more than ``share`` of the time it has."""
    firsts, first_s = [0], times[0]
    for index, in_s in enumerate(times):
        if in_s - first_s > share * in_s:
            firsts.append(index)
            first_s = in_s
    return firsts
