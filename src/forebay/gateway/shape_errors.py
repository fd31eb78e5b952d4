"""How good the estimates are: estimated ÷ actual tokens of finished requests, by model."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from forebay.domain.shape import Shape, Usage

BUCKETS: Final[Sequence[float]] = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)
PARTS = ("prompt", "output")


class ShapeErrors:
    """Of one pool; only requests whose engine counted, and of those the sample that teaches the estimator."""

    __slots__ = ("counts", "sums")

    def __init__(self) -> None:
        self.counts = [[0] * (len(BUCKETS) + 1) for _ in PARTS]
        self.sums = [0.0] * len(PARTS)

    def observe(self, estimate: Shape, usage: Usage) -> None:
        """A request ended that took ``usage``."""
        self._observe(0, estimate.prompt_tokens, usage.prompt_tokens)
        self._observe(1, estimate.output_tokens, usage.output_tokens)

    def _observe(self, part: int, estimated: int, actual: int) -> None:
        if actual > 0:
            ratio = estimated / actual
            self.counts[part][bisect_left(BUCKETS, ratio)] += 1
            self.sums[part] += ratio


def rows(errors: list[ShapeErrors]) -> list[tuple[str, list[tuple[str, float]], float]]:
    """(part, cumulative buckets, sum) over several pools of one model, as Prometheus has it."""
    told = []
    for part, name in enumerate(PARTS):
        total = 0
        buckets: list[tuple[str, float]] = []
        for bucket, bound in enumerate((*map(str, BUCKETS), "+Inf")):
            total += sum(each.counts[part][bucket] for each in errors)
            buckets.append((bound, total))
        told.append((name, buckets, sum(each.sums[part] for each in errors)))
    return told
