"""How many warm nodes to hold: headroom at a share of the price, for the part of a surprise that a quicker start still catches.

A warm node is provisioned and runs no engine. Of a surprise that comes within the reach of a cold start (the horizon, and as
long again as the level looks back) the part ``caught = 1 - reach of a warm start ÷ reach of a cold one`` can be served in time
by starting on one: before that, it is no better than nothing. So with ``r`` held running and ``w`` warm, in multiples of the
expected demand, ``late`` the misses by what is held and ``miss`` their price in idle replica-hours, what is paid is

    r + share·w + miss·((1 - caught)·late(r) + caught·late(r + w))

which falls apart into a price for each: hold *running* up to where ``miss·(1 - caught) ÷ (1 - share)`` is what a replica more saves,
and *in all* up to where ``miss·caught ÷ share`` is. A place is worth a warm node only between the two, so there are none unless
``share < caught``. Where misses set in at once at a limit these are two newsvendor's quantiles of demand,
``1 - (1 - share) ÷ (miss·(1 - caught))`` and ``1 - share ÷ (miss·caught)``. Where fewer nodes are held than that, running replicas
stand for the rest, by the same sum.

What is expected is always held running (or as much of it as is held without warm nodes, in an hour without surprises). Running
replicas are given up only for nodes that are held, and a limit on concurrent starts (`scaling.starts`) is not counted in.
"""

import math

import msgspec
import numpy as np

from forebay.domain.scaling import Observation, Term
from forebay.domain.signal import Known
from forebay.scaling import spread
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.economics import HEADROOMS, Prices, late_by_headroom, whole
from forebay.scaling.memory import Learnt
from forebay.scaling.outlook import AHEAD_S, Outlook
from forebay.scaling.spread import Values
from forebay.spec.types import Scaling

CAUGHT_MAX = 0.99
"""Of a surprise: no start is so quick that it catches all."""
FORECAST = "forecast"


class Reserve(msgspec.Struct, frozen=True):
    """What is worth holding, in multiples of the expected demand."""

    caught: float
    running_start: float
    running_keep: float
    total_start: float
    """Running and warm, up to which a warm node more is worth asking for."""
    total_keep: float
    """The same, up to which one that is held is worth keeping."""
    expected_replicas: float


def start_s(observation: Observation, capacity: PoolCapacity, cold_start_s: float) -> float:
    """Seconds of a start on a warm node: measured, else the profile's part of ``cold_start_s``; never more than that."""
    measured = observation.warm_start_s
    seconds = measured.value if isinstance(measured, Known) else math.nan
    return min(cold_start_s, seconds if seconds >= 0 else cold_start_s * capacity.warm_part)


def caught(cold_start_s: float, warm_start_s: float, interval_s: float) -> float:
    """Part of a surprise that a warm start still catches, 0 to CAUGHT_MAX; both starts reach as far as the outlook's horizon does."""
    looks_s = interval_s + AHEAD_S
    return min(CAUGHT_MAX, max(0.0, 1 - (warm_start_s + looks_s) / (cold_start_s + looks_s)))


def reserve(settings: Scaling, learnt: Learnt, outlook: Outlook, prices: Prices, expected: float, held: int, part: float) -> Reserve | None:
    """What is worth holding where ``held`` warm nodes are; ``expected`` in replicas, ``part``: what a warm start catches.

    None where a warm node is never worth its price.
    """
    if not settings.warm_max or settings.warm_share >= part or not 0 < expected < math.inf:
        return None
    counts = spread.unpacked(learnt.spread)
    late = late_by_headroom(spread.of_ratios(counts if counts is not None else spread.prior(), learnt.swing), prices.allowed)
    width = max(0, min(held, settings.warm_max)) / expected
    found = [split(late, price, settings.warm_share, part, width) for price in (prices.start, prices.keep)]
    (start, total_start), (keep, total_keep) = found
    # What is expected runs, and no more of it than would without warm nodes.
    start = min(outlook.headroom_start, max(start, min(1.0, outlook.headroom_start)))
    keep = min(outlook.headroom_keep, max(start, keep, min(1.0, outlook.headroom_keep)))
    return Reserve(part, start, keep, total_start, max(total_start, total_keep), expected)


def split(late: Values, price: float, share: float, part: float, width: float) -> tuple[float, float]:
    """(running, in all), in multiples of the expected demand, where no more than ``width`` of it can be warm.

    ``late``: what misses with each of HEADROOMS held; ``price``: of a miss, in idle replica-hours. Needs ``0 < share < part < 1``.
    In all is what would be worth holding with as many warm nodes as one likes.
    """
    total = float(HEADROOMS[int(np.argmin(late * (price * part / share) + HEADROOMS))])
    warm = np.clip(total - HEADROOMS, 0.0, width)
    with_warm = np.interp(HEADROOMS + warm, HEADROOMS, late)
    paid = HEADROOMS + share * warm + price * ((1 - part) * late + part * with_warm)
    return float(HEADROOMS[int(np.argmin(paid))]), total


def nodes(found: Reserve, settings: Scaling, replicas: int, spares: int, most: int, held: int) -> int:
    """Warm nodes to hold beside ``replicas`` wanted, ``spares`` of them for failures, of which ``most`` may ever run.

    ``held`` ones are kept for as long as they are worth keeping.
    """
    serving = replicas - spares
    ask, keep = (whole(found.expected_replicas * total) - serving for total in (found.total_start, found.total_keep))
    return max(0, min(settings.warm_max, most - replicas, max(ask, min(held, keep))))


def told(terms: tuple[Term, ...], found: Reserve, settings: Scaling, count: int) -> tuple[Term, ...]:
    """``terms`` with what is held warm beside the replicas, said by the forecast's."""
    noun = "node" if count == 1 else "nodes"
    because = (
        f"; beside that {count} warm {noun} (up to × {found.total_start:.2f}, {settings.warm_max} at most): at {settings.warm_share:g} of "
        f"the price, a start on one still catches {found.caught:.0%} of a surprise"
    )
    numbers = {"warm": float(count), "warm_caught": found.caught, "warm_share": settings.warm_share, "headroom_total": found.total_start}
    return tuple(
        msgspec.structs.replace(term, because=term.because + because, numbers={**term.numbers, **numbers})
        if term.name == FORECAST
        else term
        for term in terms
    )
