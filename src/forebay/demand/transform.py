"""What may be done to arrivals on their way: cut, multiplied, lengthened, joined; streaming, in order of time, seeded.

A rate that changes by a factor over time (a spike, a ramp, a region's traffic arriving at once) is one thing, `multiplied`, with
the factor as a function of time: `spike`, `ramp` and `step` make such functions.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from forebay.demand.arrays import Arrivals, ArrivalSource, by_time, empty, in_chunks, joined, taken
from forebay.demand.lengths import whole
from forebay.demand.span import COPY_JITTER_S, HELD_MAX
from forebay.domain.errors import BadInput

Floats = npt.NDArray[np.float64]
FactorAt = Callable[[Floats], Floats]
"""By how much the rate is multiplied at each of some times."""


def window(source: ArrivalSource, start_s: float, duration_s: float) -> ArrivalSource:
    """The rows of ``[start_s, start_s + duration_s)``, their times counted from ``start_s``; reads no further."""
    for chunk in source:
        first, last = np.searchsorted(chunk.at_s, (start_s, start_s + duration_s))
        if first < last:
            part = taken(chunk, slice(first, last))
            yield part._replace(at_s=part.at_s - start_s)
        if last < len(chunk.at_s):
            return


def multiplied(source: ArrivalSource, factor_at: FactorAt, chance: np.random.Generator) -> ArrivalSource:
    """``factor_at(t)`` times as many rows: each is kept, dropped or repeated, the remainder by chance.

    Every copy but the first comes up to ``COPY_JITTER_S`` later. Raises BadInput where more than ``HELD_MAX`` copies wait at once,
    ValueError for a factor that is negative or not finite.
    """

    def change(chunk: Arrivals) -> tuple[Arrivals, Arrivals]:
        factor = factor_at(chunk.at_s)
        if not np.all((factor >= 0) & np.isfinite(factor)):
            raise ValueError("a rate can be multiplied by finite numbers of at least 0 only")
        copies = np.floor(factor + chance.random(len(factor))).astype(np.int64)
        again = np.repeat(np.arange(len(copies)), np.maximum(copies - 1, 0))
        return taken(chunk, copies > 0), _later(taken(chunk, again), chance)

    return _with_late_rows(source, change)


def resampled(source: ArrivalSource, factor: float, chance: np.random.Generator) -> ArrivalSource:
    """``factor`` times as many rows, the shape of the load kept; 1 changes nothing."""
    return source if factor == 1 else multiplied(source, lambda at_s: np.full(len(at_s), factor), chance)


def long_context(
    source: ArrivalSource, share: float, prompt_tokens: int, from_s: float, chance: np.random.Generator, output_tokens: int | None = None
) -> ArrivalSource:
    """A tenant with prompts of ``prompt_tokens`` joins at ``from_s``: ``share`` of all requests from then on are its.

    They come as others do (each up to ``COPY_JITTER_S`` after one), with that one's answer length unless ``output_tokens`` says another.
    Raises ValueError for a share outside ``[0, 1)``.
    """
    if not 0 <= share < 1:
        raise ValueError(f"a share of requests is at least 0 and below 1, not {share}")

    def change(chunk: Arrivals) -> tuple[Arrivals, Arrivals]:
        copies = np.where(chunk.at_s >= from_s, np.floor(share / (1 - share) + chance.random(len(chunk.at_s))), 0).astype(np.int64)
        added = _later(taken(chunk, np.repeat(np.arange(len(copies)), copies)), chance)
        count = len(added.at_s)
        output = added.output_tokens if output_tokens is None else np.full(count, output_tokens, np.int32)
        return chunk, Arrivals(
            added.at_s, np.full(count, prompt_tokens, np.int32), output, added.tier, np.full(count, -1, np.int64), np.zeros(count, np.int32)
        )

    return _with_late_rows(source, change)


def lengthened(source: ArrivalSource, prompt_factor: float, output_factor: float, from_s: float) -> ArrivalSource:
    """From ``from_s`` on, prompts and answers are that many times as long (rounded, at least 1)."""
    for chunk in source:
        first = int(np.searchsorted(chunk.at_s, from_s))
        if first < len(chunk.at_s):
            prompt, output = chunk.prompt_tokens.copy(), chunk.output_tokens.copy()
            prompt[first:] = whole(prompt[first:] * np.float64(prompt_factor))
            output[first:] = whole(output[first:] * np.float64(output_factor))
            chunk = chunk._replace(prompt_tokens=prompt, output_tokens=output, shared_tokens=np.minimum(chunk.shared_tokens, prompt))
        yield chunk


def stretched(source: ArrivalSource, factor: float) -> ArrivalSource:
    """The same rows over ``factor`` times the time: the rate is divided by it."""
    for chunk in source:
        yield chunk._replace(at_s=chunk.at_s * factor)


def spliced(first: ArrivalSource, second: ArrivalSource, at_s: float) -> ArrivalSource:
    """``first`` until ``at_s``, from then on ``second`` from its beginning. Groups of the two are told apart."""
    for chunk in window(first, 0.0, at_s):
        yield _told_apart(chunk, second=False)
    for chunk in second:
        yield _told_apart(chunk, second=True)._replace(at_s=chunk.at_s + at_s)


def merged(first: ArrivalSource, second: ArrivalSource, from_s: float = 0.0) -> ArrivalSource:
    """Both at once, ``second`` only from ``from_s`` on (a lost region's traffic). Groups of the two are told apart."""
    held, ends = [empty(), empty()], [-np.inf, -np.inf]
    sources = [
        (_told_apart(chunk, second=False) for chunk in first),
        (_told_apart(taken(chunk, chunk.at_s >= from_s), second=True) for chunk in second),
    ]
    while held[0].at_s.size or held[1].at_s.size or min(ends) < np.inf:
        behind = int(ends[1] < ends[0])
        if ends[behind] < np.inf:
            chunk = next(sources[behind], None)
            if chunk is None:
                ends[behind] = np.inf
            elif len(chunk.at_s):
                held[behind] = joined(held[behind], chunk)
                ends[behind] = float(chunk.at_s[-1])
        upto_s = min(ends)
        counts = [int(np.searchsorted(part.at_s, upto_s, "right" if upto_s == np.inf else "left")) for part in held]
        ready = joined(taken(held[0], slice(0, counts[0])), taken(held[1], slice(0, counts[1])))
        held = [taken(part, slice(count, None)) for part, count in zip(held, counts, strict=True)]
        yield from in_chunks(by_time(ready))


def spike(at_s: float, factor: float, ramp_s: float, hold_s: float) -> FactorAt:
    """1, then straight up to ``factor`` within ``ramp_s`` from ``at_s`` on, held for ``hold_s``, and down again as fast."""
    up_s, down_s = at_s + ramp_s, at_s + ramp_s + hold_s
    return lambda times_s: np.interp(times_s, (at_s, up_s, down_s, down_s + ramp_s), (1.0, factor, factor, 1.0))


def ramp(from_s: float, until_s: float, factor: float) -> FactorAt:
    """1, then straight to ``factor`` between the two times, and it stays there."""
    return lambda times_s: np.interp(times_s, (from_s, until_s), (1.0, factor))


def step(at_s: float, factor: float) -> FactorAt:
    """1, and ``factor`` from ``at_s`` on."""
    return lambda times_s: np.where(times_s >= at_s, factor, 1.0)


def _with_late_rows(source: ArrivalSource, change: Callable[[Arrivals], tuple[Arrivals, Arrivals]]) -> ArrivalSource:
    """Each chunk becomes rows in their place and rows that come later, which wait for their time."""
    held = empty()
    for chunk in source:
        if len(chunk.at_s) == 0:
            continue
        kept, late = change(chunk)
        waiting = joined(held, late)
        due = waiting.at_s <= chunk.at_s[-1]
        held = taken(waiting, ~due)
        if len(held.at_s) > HELD_MAX:
            raise BadInput(f"more than {HELD_MAX} copies of rows within {COPY_JITTER_S:g} s; multiply the rate by less")
        yield from in_chunks(by_time(joined(kept, taken(waiting, due))))
    yield from in_chunks(by_time(held))


def _later(rows: Arrivals, chance: np.random.Generator) -> Arrivals:
    return rows._replace(at_s=rows.at_s + chance.uniform(0.0, COPY_JITTER_S, len(rows.at_s)))


def _told_apart(rows: Arrivals, second: bool) -> Arrivals:
    """Groups of the first of two sources become even, those of the second odd."""
    return rows._replace(group=np.where(rows.group < 0, rows.group, 2 * rows.group + second))
