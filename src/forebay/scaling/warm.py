"""How many warm nodes to hold: headroom at a share of the price, for the part of a surprise that a quicker start still catches.

A warm node is provisioned and runs no engine. Of a surprise that comes within the reach of a cold start (the horizon, and as
long again as the level looks back) the part ``caught = 1 - reach of a warm start ÷ reach of a cold one`` can be served in time
by starting on one: before that, it is no better than nothing. And it is started on only where more comes than was expected: so
many are then wanted as go with what came. With ``r`` running and ``w`` warm, in multiples of the expected demand, a demand
of ``x`` times that meets ``r`` at first and ``started = min(max(r, r·x), r + w)`` then, and what is paid is

    r + share·w + miss·E[x·((1 - caught)·misses(x ÷ r) + caught·misses(x ÷ started))]

with ``E`` over the outlook's histogram, and ``miss`` in idle replica-hours. The split that costs least is held. A place more is
worth a warm node while ``miss·caught·(what it saves of the demand that comes so high)`` is above ``share``, which is the newsvendor's
rule at their price; nothing is held warm where demand has no surprises, or where ``share ≥ caught``.

What is expected always runs (or as much of it as is held without warm nodes, in an hour without surprises). Running replicas
are given up only for nodes that are held, and a limit on concurrent starts (`scaling.starts`) is not counted in.
"""

import math
from typing import Final

import msgspec
import numpy as np

from forebay.domain.scaling import Observation, Term
from forebay.domain.signal import Known
from forebay.scaling import spread
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.economics import HEADROOMS, Prices, misses, misses_held, pooled
from forebay.scaling.memory import Learnt
from forebay.scaling.outlook import Outlook, ahead_s
from forebay.scaling.spread import RATIOS, Values
from forebay.spec.types import Scaling

CAUGHT_MAX = 0.99
"""Of a surprise: no start is so quick that it catches all."""
FORECAST = "forecast"
_APART: Final = np.arange(80)
"""Places of HEADROOMS between what runs and what is held in all: up to 2.2 times."""
_FROM: Final = np.searchsorted(RATIOS, HEADROOMS[_APART] / HEADROOMS[0])
"""The first ratio of demand that is above what is held in all, once what runs was right for what was expected."""
_EXPECTED: Final = int(_FROM[0])
_LAST: Final = len(HEADROOMS) - len(_APART)
"""More than this runs only where demand is wild beyond measure: then nothing is held warm."""


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
    allowed: float
    """Share of requests that may miss the promise."""


def start_s(observation: Observation, capacity: PoolCapacity, cold_start_s: float) -> float:
    """Seconds of a start on a warm node: measured, else the profile's part of ``cold_start_s``; never more than that."""
    measured = observation.warm_start_s
    seconds = measured.value if isinstance(measured, Known) else math.nan
    return min(cold_start_s, seconds if seconds >= 0 else cold_start_s * capacity.warm_part)


def caught(cold_start_s: float, warm_start_s: float, interval_s: float, swing: float = 1.0) -> float:
    """Part of a surprise that a warm start still catches, 0 to CAUGHT_MAX; both starts reach as far as the outlook's horizon does.

    ``swing``: by how much the forecast strays.
    """
    looks_s = interval_s + ahead_s(cold_start_s + interval_s, swing)
    return min(CAUGHT_MAX, max(0.0, 1 - (warm_start_s + looks_s) / (cold_start_s + looks_s)))


def reserve(settings: Scaling, learnt: Learnt, outlook: Outlook, prices: Prices, expected: float, held: int, part: float) -> Reserve | None:
    """What is worth holding where ``held`` warm nodes are; ``expected`` in replicas, ``part``: what a warm start catches.

    None where a warm node is never worth its price.
    """
    wild = outlook.headroom_keep > HEADROOMS[_LAST]
    if not settings.warm_max or settings.warm_share >= part or wild or not 0 < expected < math.inf:
        return None
    counts = spread.unpacked(learnt.spread)
    surprises = _Surprises(spread.of_ratios(counts if counts is not None else spread.prior(), learnt.swing), prices.allowed, part)
    widths = (max(0, min(held, settings.warm_max)) / expected, settings.warm_max / expected)
    start, total_start = surprises.split(prices.start, settings.warm_share, outlook.headroom_start, widths)
    keep, total_keep = surprises.split(prices.keep, settings.warm_share, outlook.headroom_keep, widths)
    keep = max(start, keep)
    return Reserve(part, start, keep, total_start, max(total_start, total_keep), expected, prices.allowed)


class _Surprises:
    """What misses with so much running and so much warm, where demand comes as the ratios that ``counts`` weigh."""

    def __init__(self, counts: Values, allowed: float, part: float) -> None:
        weights = counts / counts.sum() * RATIOS
        each = weights[:, None] * misses_held(allowed)
        self._part = part
        self._over = np.zeros((len(RATIOS) + 1, len(HEADROOMS)))
        """What misses of the demand from each ratio on, by what is held."""
        self._over[:-1] = each[::-1].cumsum(axis=0)[::-1]
        self._comes = np.concatenate(([0.0], weights.cumsum()))
        """The demand that comes below each ratio."""
        self._as_planned = misses(1 / HEADROOMS, allowed)

    def split(self, price: float, share: float, most: float, widths: tuple[float, float]) -> tuple[float, float]:
        """(running, in all) that cost least, running between what is expected and ``most``.

        No more than the first of ``widths`` is warm for the one, and than the second for the other.
        """
        last = int(np.argmin(abs(HEADROOMS - most)))
        running = np.arange(min(last, int(np.argmin(abs(HEADROOMS - 1.0)))), last + 1)[:, None]
        # Headrooms grow by a fixed factor: how many times what runs is held in all depends on the places between them alone.
        total = running + _APART[None, :]
        late = self._over[0][running]
        caught_up = (
            (late - self._over[_EXPECTED, running])
            + self._as_planned[running] * (self._comes[_FROM] - self._comes[_EXPECTED])[None, :]
            + self._over[_FROM[None, :], total]
        )
        held, warm = HEADROOMS[running], HEADROOMS[total] - HEADROOMS[running]
        paid = held + share * warm + price * ((1 - self._part) * late + self._part * caught_up)
        best = [np.unravel_index(int(np.argmin(np.where(warm <= width + 1e-9, paid, np.inf))), paid.shape) for width in widths]
        (row, _), (place, apart) = best
        return float(HEADROOMS[running[row, 0]]), float(HEADROOMS[running[place, 0] + apart])


def nodes(found: Reserve, settings: Scaling, capacity: PoolCapacity, replicas: int, spares: int, most: int, held: int) -> int:
    """Warm nodes to hold beside ``replicas`` wanted, ``spares`` of them for failures, of which ``most`` may ever run.

    ``held`` ones are kept for as long as they are worth keeping.
    """
    serving = replicas - spares
    totals = (found.total_start, found.total_keep)
    ask, keep = (pooled(found.expected_replicas * total, capacity, found.allowed) - serving for total in totals)
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
