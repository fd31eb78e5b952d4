"""How many replicas demand is worth: each one is held for as long as what it saves is worth more than it costs.

Demand at the horizon is a distribution, and a fleet does not serve up to a limit and then no more: the fuller it is, the
more requests miss their promise, ``misses(use) = (1 - attainment)·exp(STEEPNESS·(use - 1))``, where at a use of 1 (the
capacity at the SLO) just the allowed share does. One replica more lowers everybody's use, so it saves, in replica-hours
of requests, ``use² · misses'(use)``, averaged over what demand may be. It is worth holding while that is more than
``idle ÷ miss``, the price of an idle replica-hour over that of a replica-hour of requests missed.

Where misses set in at once at the limit, this is the newsvendor's rule: hold the quantile ``1 - idle ÷ miss`` of demand.
Replica by replica, it rounds no fraction up that isn't worth a replica. And with the default price, at which keeping the
promise is just worth its cost, the mean share of misses comes out as the allowed one whatever demand does: where demand
is uncertain the rule holds more, where it is smooth hardly anything above it.

A start costs too: its node is paid while it loads. Spread over the time a replica is kept, that makes starting one a
little dearer than holding one, and letting one go a little less thrifty: a band in which nothing happens.
"""

import math

import msgspec
import numpy as np

from forebay.scaling.capacity import REPLICAS_MAX
from forebay.scaling.spread import RATIOS, Values
from forebay.spec.types import Scaling, Slo

STEEPNESS = 7.0
"""Growth of the logarithm of misses with use: measured on the simulated fleet (Llama-3.1-70B on H200, conversation lengths) from
1 % of misses to a third of them, within a few per cent."""
MISSES_SATURATE = 0.3
"""From this share on another replica saves no more than here: most requests are late anyhow."""
KEPT_S = 900.0
"""A start is paid off over this long: the time a replica that is started for a peak is used, in the benchmarks' traces."""
START_SHARE_MAX = 0.6
"""Of the price, that the start's cost moves at most: with cold starts of a quarter of an hour the band would swallow all."""
ALLOWED_MIN = 1e-4
"""Share of misses: a promise of 100 % is taken for 99.99 %."""


class Prices(msgspec.Struct, frozen=True):
    """Savings, in replica-hours of requests for one replica-hour held."""

    start: float
    """One more is started where it saves more than this."""
    keep: float
    """The last one is kept where it saves more than this."""
    allowed: float
    """Share of requests that may miss the promise."""
    idle_usd: float
    miss_usd: float


def prices(settings: Scaling, slo: Slo, replica_hour_usd: float, cold_start_s: float) -> Prices:
    """What ``settings`` make of the rule above.

    Prices that aren't set: idle is the replica's, miss the one at which the promise is just worth its cost.
    """
    allowed = max(ALLOWED_MIN, 1 - slo.attainment)
    idle = settings.idle_usd if settings.idle_usd is not None else replica_hour_usd or 1.0
    miss = settings.miss_usd if settings.miss_usd is not None else idle / (STEEPNESS * allowed)
    share = idle / miss
    band = min(START_SHARE_MAX, max(0.0, cold_start_s) / KEPT_S)
    return Prices(share * (1 + band), share * (1 - band), allowed, idle, miss)


def worth(counts: Values, expected: float, least_saving: float, allowed: float) -> int:
    """The replicas that save more than ``least_saving`` each where demand is ``expected`` (in replicas) × the ratios ``counts`` weigh.

    Monotone: more expected demand is never worth fewer.
    """
    if not expected > 0:
        return 0
    demand, weights = _demand(counts, expected)
    low, high = 0, min(REPLICAS_MAX, 2 * math.ceil(demand[-1]) + 2)
    while low < high:
        middle = (low + high + 1) // 2
        if _saving(demand, weights, middle, allowed) > least_saving:
            low = middle
        else:
            high = middle - 1
    return low


def saving(counts: Values, expected: float, replica: int, allowed: float) -> float:
    """Replica-hours of requests that the ``replica``-th replica saves in an hour from missing their promise."""
    return _saving(*_demand(counts, max(0.0, expected)), replica, allowed)


def _demand(counts: Values, expected: float) -> tuple[Values, Values]:
    some = counts > 0
    return np.minimum(RATIOS[some] * expected, float(REPLICAS_MAX)), counts[some] / counts.sum()


def _saving(demand: Values, weights: Values, replica: int, allowed: float) -> float:
    """The first replica saves everything; another one the slope of the misses, halfway between one fewer and this many."""
    if replica <= 1:
        return float(weights @ demand)
    use = np.minimum(demand / (replica - 0.5), 1 + math.log(MISSES_SATURATE / allowed) / STEEPNESS)
    return float(weights @ (use * use * np.exp(STEEPNESS * (use - 1)))) * STEEPNESS * allowed
