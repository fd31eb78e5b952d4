"""Few replicas serve less each: what one is worth in a fleet of so many.

A promise to 99 of 100 requests is broken by coincidence: a prompt that is prefilled beside a short answer, three long ones
at a time. In a large fleet the next request goes to a replica that has none of that; a lone replica takes it all itself. So where the
same share may miss, each of few replicas can be used less: the square-root staffing of queues, whose
``1 - β ÷ √n`` (Halfin and Whitt, 1981) is meant for many servers and says nothing of one or two.

Measured instead, on the simulated fleet: the use at which just the allowed share misses goes as ``n ÷ (n + DRAG)``. So n replicas
are worth ``n² ÷ (n + DRAG)`` of those of an endless fleet: two are three times one, and from twenty on hardly anything is left of it.
"""

import math
from functools import lru_cache

import numpy as np

from forebay.scaling.spread import Values

DRAG = 1.7
"""Replicas. Measured of fleets of 1, 2, 3, 5, 10, 20 and 40 at steady rates, 60,000 requests each, with 1 % allowed: 1.9 (Llama-3.1-70B
on four H100, half of the answers under 50 tokens, Poisson arrivals), 0.5 to 0.8 (on one H200, Azure's conversations of 2023, Poisson
arrivals) and 1.5 to 3 (the same, gaps with a variation of 2). What a pool's own is beyond that, `scaling.sustained` learns, within its
bounds: long prompts with short answers (Azure's code of 2023, 2,055 + 28 tokens) lose several times as much."""
DRAG_ALLOWED = 0.01
DRAG_EXPONENT = 0.5
"""Rarer coincidences take more room: at 5 % allowed it is 0.6, 0.3 and 0.9 there."""
PROMISES_KEPT_MAX = 8
"""Promises whose numbers are kept: a pool has one."""
STATED_FOR = 20.0
"""Replicas of the fleet whose capacity each is worth 1."""


def worth(replicas: float, allowed: float) -> float:
    """What each of ``replicas`` serves ÷ what one of STATED_FOR does, where a share of ``allowed`` may miss; below one replica, that one's.

    At most ``1 + drag ÷ STATED_FOR``; rises with ``replicas``.
    """
    count, (drag, stated, _) = max(1.0, replicas), _lone(allowed)
    return count / (count + drag) * stated


def worths(replicas: Values, allowed: float) -> Values:
    """`worth` of each number of ``replicas``."""
    count, (drag, stated, _) = np.maximum(1.0, replicas), _lone(allowed)
    return np.asarray(count / (count + drag) * stated)


def needed(load: float, allowed: float) -> float:
    """Replicas that serve ``load``, in replicas of STATED_FOR: the ``n`` with ``n · worth(n) = load``. Rises with ``load``."""
    drag, stated, alone = _lone(allowed)
    if not load > alone:
        return load / alone
    endless = load / stated
    return (endless + math.sqrt(endless) * math.sqrt(endless + 4 * drag)) / 2


@lru_cache(maxsize=PROMISES_KEPT_MAX)
def _lone(allowed: float) -> tuple[float, float, float]:
    """The drag, how much more each of an endless fleet serves than one of STATED_FOR, and what a lone replica is worth."""
    drag = DRAG * math.pow(DRAG_ALLOWED / allowed, DRAG_EXPONENT)
    stated = 1 + drag / STATED_FOR
    return drag, stated, 1.0 / (1.0 + drag) * stated
