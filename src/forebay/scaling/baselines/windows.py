"""Windows over the past, as laws remember them: pairs of time and value, oldest first, bounded in length.

A look at the same instant as the last replaces it, so asking twice adds nothing.
"""

from collections.abc import Iterable

SAMPLES_MAX = 1024
"""A window is never longer, whatever its span: at 19 bytes each, three of them fit a policy's memory."""

Samples = tuple[tuple[float, float], ...]


def pushed(samples: Samples, now_s: float, value: float, span_s: float) -> Samples:
    """``samples`` with one more, without those that are ``span_s`` old or older."""
    kept = [sample for sample in samples if now_s - span_s < sample[0] < now_s]
    return (*kept[-(SAMPLES_MAX - 1) :], (now_s, value))


def within(samples: Samples, now_s: float, span_s: float) -> list[float]:
    """Values younger than ``span_s``."""
    return [value for at_s, value in samples if at_s > now_s - span_s]


def mean(values: Iterable[float]) -> float:
    """Their mean; 0 of none, as in every one of these sources."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0


def counts(samples: Samples, now_s: float, span_s: float) -> list[int]:
    """The same as ``within``, for windows of recommendations."""
    return [int(value) for value in within(samples, now_s, span_s)]
