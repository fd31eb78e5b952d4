"""Changes to a trace by their words (``spike at=2h factor=10``): what they do to its arrivals, and to the rates behind them.

Changes are made one after the other, each to what the one before made of the trace; times are seconds of the span.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from forebay.app.traces import Chances, OpenedTrace
from forebay.demand import transform
from forebay.demand.arrays import ArrivalSource
from forebay.demand.intensity import Intensity
from forebay.demand.trace import TOKENS_MAX
from forebay.demand.transform import FactorAt
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration, parse_duration_s
from forebay.spec.problems import did_you_mean

CELL_S = 10.0
"""Rates under a factor that changes are taken as straight within it."""
CHANGES_MAX = 30
FACTOR_MAX = 10_000.0
OpenOther = Callable[[str], OpenedTrace]
"""Another trace by file name."""


class Change(NamedTuple):
    """What one change does."""

    words: str
    arrivals: Callable[[ArrivalSource, np.random.Generator], ArrivalSource]
    rates: Callable[[Intensity], Intensity]
    begins_s: float = 0.0
    """From when on it changes anything."""


def edited(opened: OpenedTrace, changes: Sequence[Change], seed: int) -> OpenedTrace:
    """``opened`` after all ``changes``, in their order. The same seed gives the same bytes."""
    if len(changes) > CHANGES_MAX:
        raise BadInput(f"{len(changes)} changes of a trace; allowed: {CHANGES_MAX}")
    chances = Chances(seed)
    rates = opened.rates
    for change in changes:
        if change.begins_s >= rates.duration_s:
            found, end = (format_duration(round(at_s, 3)) for at_s in (change.begins_s, rates.duration_s))
            raise BadInput(f"change {change.words!r}: found {found}, allowed: a time before the end of what is changed, {end}")
        rates = change.rates(rates)

    def source() -> ArrivalSource:
        rows = opened.source()
        for number, change in enumerate(changes):
            rows = change.arrivals(rows, chances(f"change {number}"))
        return rows

    return opened.with_source(source, rates)


def parse(words: str, other: OpenOther) -> Change:
    """The change that ``words`` ask for, ``other`` opening the traces they name. Raises BadInput that says what is allowed."""
    name, *rest = words.split()[:20] or [""]
    if name not in KINDS:
        raise BadInput(f"change {words!r}: allowed: {', '.join(KINDS)}; {did_you_mean(name, KINDS)}".removesuffix("; "))
    given = dict(part.split("=", 1) for part in rest if "=" in part)
    make, required, optional = KINDS[name]
    allowed = (*required, *optional)
    if len(given) != len(rest) or not set(required) <= set(given) <= set(allowed):
        shape = " ".join([*(f"{key}=…" for key in required), *(f"[{key}={value}]" for key, value in optional.items())])
        raise BadInput(f"change {words!r}: write {name} {shape}")
    return make(words, _Words(words, {**optional, **given}), other)


class _Words:
    """The values of a change, read as what they should be."""

    def __init__(self, words: str, given: Mapping[str, str]) -> None:
        self._words, self._given = words, given

    def text(self, key: str) -> str:
        return self._given[key]

    def time_s(self, key: str) -> float:
        try:
            return parse_duration_s(self._given[key])
        except ValueError as error:
            raise BadInput(f"change {self._words!r}: {key}: {error}") from None

    def number(self, key: str, least: float, most: float, above: bool = False) -> float:
        text = self._given[key]
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most or (above and value == least):
            raise BadInput(
                f"change {self._words!r}: {key}: found {text!r}, allowed: a number {'above' if above else 'from'} {least:g} to {most:g}"
            )
        return value

    def factor(self, key: str = "factor") -> float:
        return self.number(key, 0.0, FACTOR_MAX)

    def tokens(self, key: str) -> int:
        return round(self.number(key, 1, TOKENS_MAX))


def _by_factor(words: str, factor_at: FactorAt, begins_s: float) -> Change:
    return Change(
        words,
        lambda rows, chance: transform.multiplied(rows, factor_at, chance),
        lambda rates: rates.multiplied(factor_at, CELL_S),
        begins_s,
    )


def _scale(words: str, of: _Words, _: OpenOther) -> Change:
    factor = of.number("factor", 0.0, FACTOR_MAX, above=True)
    return Change(words, lambda rows, chance: transform.resampled(rows, factor, chance), lambda rates: rates.scaled(factor))


def _stretch(words: str, of: _Words, _: OpenOther) -> Change:
    factor = of.number("factor", 0.0, FACTOR_MAX, above=True)
    return Change(words, lambda rows, _: transform.stretched(rows, factor), lambda rates: rates.stretched(factor))


def _spike(words: str, of: _Words, _: OpenOther) -> Change:
    at_s = of.time_s("at")
    return _by_factor(words, transform.spike(at_s, of.factor(), of.time_s("ramp"), of.time_s("hold")), at_s)


def _ramp(words: str, of: _Words, _: OpenOther) -> Change:
    start_s, end_s = of.time_s("from"), of.time_s("until")
    if not start_s < end_s:
        raise BadInput(f"change {words!r}: the ramp ends before it begins; write until= later than from=")
    return _by_factor(words, transform.ramp(start_s, end_s, of.factor()), start_s)


def _step(words: str, of: _Words, _: OpenOther) -> Change:
    at_s = of.time_s("at")
    return _by_factor(words, transform.step(at_s, of.factor()), at_s)


def _long_context(words: str, of: _Words, _: OpenOther) -> Change:
    share, prompt, from_s = of.number("share", 0.0, 0.99), of.tokens("prompt"), of.time_s("from")
    output = of.tokens("output") if of.text("output") != "same" else None
    return Change(
        words,
        lambda rows, chance: transform.long_context(rows, share, prompt, from_s, chance, output),
        lambda rates: rates.multiplied(transform.step(from_s, 1 / (1 - share)), CELL_S),
        from_s,
    )


def _lengths(words: str, of: _Words, _: OpenOther) -> Change:
    prompt, output, from_s = of.factor("prompt"), of.factor("output"), of.time_s("from")
    return Change(words, lambda rows, _: transform.lengthened(rows, prompt, output, from_s), lambda rates: rates, from_s)


def _splice(words: str, of: _Words, other: OpenOther) -> Change:
    second, at_s = other(of.text("with")), of.time_s("at")
    if at_s <= 0:
        raise BadInput(f"change {words!r}: at: write a time after 0s")
    return Change(
        words,
        lambda rows, _: transform.spliced(rows, second.source(), at_s),
        lambda rates: rates.window(0.0, at_s).padded(at_s).then(second.rates),
    )


def _merge(words: str, of: _Words, other: OpenOther) -> Change:
    second, from_s = other(of.text("with")), of.time_s("from")

    late = _from(second.rates, from_s)
    return Change(words, lambda rows, _: transform.merged(rows, second.source(), from_s), lambda rates: rates.plus(late))


def _from(rates: Intensity, from_s: float) -> Intensity:
    fine = rates.cut(np.array([from_s], np.float64))
    on = fine.edges_s[:-1] >= from_s
    return Intensity(fine.edges_s, fine.left * on, fine.right * on)


_Maker = Callable[[str, _Words, OpenOther], Change]
KINDS: Mapping[str, tuple[_Maker, tuple[str, ...], Mapping[str, str]]] = {
    "scale": (_scale, ("factor",), {}),
    "stretch": (_stretch, ("factor",), {}),
    "spike": (_spike, ("at",), {"factor": "10", "ramp": "2m", "hold": "10m"}),
    "ramp": (_ramp, ("from", "until", "factor"), {}),
    "step": (_step, ("at", "factor"), {}),
    "long-context": (_long_context, ("share", "prompt"), {"output": "same", "from": "0s"}),
    "lengths": (_lengths, ("from",), {"prompt": "1", "output": "1"}),
    "splice": (_splice, ("with", "at"), {}),
    "merge": (_merge, ("with",), {"from": "0s"}),
}
"""By name: how it is made, what must be said, and what else may be, with its default."""
