"""A measured quantity is Known with its time, or Unknown with a reason; nothing turns Unknown into a number.

An outage of the metrics must never look like an idle fleet, so absence is a type of its own: arithmetic on a
``Signal`` is only possible after asking which of the two it is.
"""

import math
from collections.abc import Callable, Iterable

import msgspec


class Known(msgspec.Struct, frozen=True, tag="known", gc=False):
    """A finite reading ``value`` taken at ``at_s`` (world seconds)."""

    value: float
    at_s: float


class Unknown(msgspec.Struct, frozen=True, tag="unknown", gc=False):
    """No reading; ``why`` is short and of low cardinality (``never``, ``timeout``, ``refused``, ``missing``, ``stale``, ``nan``)."""

    why: str = "never"


Signal = Known | Unknown


def reading(value: float | None, at_s: float, why_missing: str = "missing") -> Signal:
    """``Known(value, at_s)``, or ``Unknown`` where ``value`` is absent, NaN, infinite or negative."""
    if value is None:
        return Unknown(why_missing)
    if not math.isfinite(value):
        return Unknown("nan")
    if value < 0:
        return Unknown("negative")
    return Known(value, at_s)


def fresh(signal: Signal, now_s: float, age_s_max: float) -> Signal:
    """``signal`` itself, or ``Unknown("stale")`` where it is older than ``age_s_max``."""
    if isinstance(signal, Known) and now_s - signal.at_s > age_s_max:
        return Unknown("stale")
    return signal


def combine(signals: Iterable[Signal], join: Callable[[list[float]], float]) -> Signal:
    """``join`` of all values if every one is Known (time: the oldest), else the first Unknown. Empty joins to Unknown."""
    values: list[float] = []
    at_s = math.inf
    for signal in signals:
        if isinstance(signal, Unknown):
            return signal
        values.append(signal.value)
        at_s = min(at_s, signal.at_s)
    if not values:
        return Unknown("never")
    return Known(join(values), at_s)
