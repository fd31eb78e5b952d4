"""Work that may wait, and until when: how many requests must have been started within how many seconds.

Preemptible work is no demand: what interactive work leaves is enough for it, until its deadlines say otherwise. They are told in
a few slots, a little too early and never too late.
"""

import math
from collections.abc import Iterable, Mapping

import msgspec

DUE_SLOTS_MAX = 16
"""Of one lane, and of one pool."""
DUE_SLOTS = 12
"""Of the longest wait of a tier: a deadline is told up to a twelfth of that too early."""
DEADLINE_S_MAX = 1e12
"""A world second that never comes: what may wait for ever is due then."""


class Due(msgspec.Struct, frozen=True, gc=False):
    """``requests`` that wait must have been started within ``in_s``; those that are due sooner are not among them."""

    in_s: float
    requests: int


def slot_width_s(longest_wait_s: float) -> float:
    """The seconds of one slot; 0: nothing of this tier is ever due."""
    return longest_wait_s / DUE_SLOTS if 0 < longest_wait_s < math.inf else 0.0


def slot_of(deadline_s: float, width_s: float) -> int:
    """The slot in which a deadline lies."""
    return int(min(deadline_s, DEADLINE_S_MAX) // width_s)


def of_slots(slots: Mapping[int, int], width_s: float, now_s: float) -> tuple[Due, ...]:
    """``slots``: requests by `slot_of`. Each is due when its slot begins: now, where it has begun."""
    return gathered((max(0.0, slot * width_s - now_s), requests) for slot, requests in slots.items())


def gathered(dues: Iterable[tuple[float, int]]) -> tuple[Due, ...]:
    """(seconds, requests) in any order: the soonest first, those of one instant as one. Of more than DUE_SLOTS_MAX neighbours are put
    together, and are due as the first of them."""
    at: dict[float, int] = {}
    for in_s, requests in dues:
        at[in_s] = at.get(in_s, 0) + requests
    times = sorted(at)
    each = -(-len(times) // DUE_SLOTS_MAX) or 1
    return tuple(Due(times[first], sum(at[in_s] for in_s in times[first : first + each])) for first in range(0, len(times), each))
