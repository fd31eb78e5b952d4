"""A rate of arrivals as straight pieces over time, its integral, and the inverse of that: where made-up arrivals stand.

The integral counts *expected arrivals*; a renewal process laid out on that axis and bent back to seconds has exactly
this rate, whatever its burstiness (the same construction as `demand.arrivals`, over arrays).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Intensity(NamedTuple):
    """Pieces from ``edges_s[i]`` to ``edges_s[i + 1]`` on which the rate goes straight from ``left[i]`` to ``right[i]`` per second."""

    edges_s: Floats
    """Shape (pieces + 1,), rising, from 0."""
    left: Floats
    right: Floats

    @property
    def duration_s(self) -> float:
        """The end of the last piece."""
        return float(self.edges_s[-1])

    def cumulated(self) -> Floats:
        """Expected arrivals before each edge; shape (pieces + 1,)."""
        areas = (self.left + self.right) / 2 * np.diff(self.edges_s)
        return np.concatenate((np.zeros(1), np.cumsum(areas)))

    def expected(self, marks_s: Floats) -> Floats:
        """Expected arrivals between consecutive ``marks_s`` (rising; outside the pieces there are none); shape (marks - 1,)."""
        return np.diff(self._before(np.clip(marks_s, 0.0, self.duration_s)))

    def _before(self, at_s: Floats) -> Floats:
        piece = np.clip(np.searchsorted(self.edges_s, at_s, "right") - 1, 0, len(self.left) - 1)
        into_s = at_s - self.edges_s[piece]
        slope = (self.right - self.left) / np.diff(self.edges_s)
        before: Floats = self.cumulated()[piece] + into_s * (self.left[piece] + slope[piece] * into_s / 2)
        return before

    def scaled(self, factor: float) -> "Intensity":
        """``factor`` times the rate."""
        return self._replace(left=self.left * factor, right=self.right * factor)

    def cut(self, marks_s: Floats) -> "Intensity":
        """The same rate with edges also at ``marks_s``."""
        inside = marks_s[(marks_s > 0) & (marks_s < self.duration_s)]
        edges = np.unique(np.concatenate((self.edges_s, inside)))
        piece = np.clip(np.searchsorted(self.edges_s, edges[:-1], "right") - 1, 0, len(self.left) - 1)
        slope = (self.right - self.left) / np.diff(self.edges_s)
        left = self.left[piece] + slope[piece] * (edges[:-1] - self.edges_s[piece])
        right = self.left[piece] + slope[piece] * (edges[1:] - self.edges_s[piece])
        return Intensity(edges, np.maximum(left, 0.0), np.maximum(right, 0.0))

    def window(self, start_s: float, duration_s: float) -> "Intensity":
        """The part from ``start_s`` on, at most ``duration_s`` long, counted from its beginning. Raises ValueError where it is empty."""
        end_s = min(start_s + duration_s, self.duration_s)
        if not 0 <= start_s < end_s:
            raise ValueError(f"from {start_s:g} s to {end_s:g} s of {self.duration_s:g} s there is nothing")
        fine = self.cut(np.array([start_s, end_s], np.float64))
        first, last = np.searchsorted(fine.edges_s, (start_s, end_s))
        return Intensity(fine.edges_s[first : last + 1] - start_s, fine.left[first:last], fine.right[first:last])

    def noisy(self, variation: float, cell_s: float, chance: np.random.Generator) -> "Intensity":
        """Each cell of ``cell_s`` times a lognormal factor of mean 1 and coefficient of variation ``variation``."""
        if variation == 0:
            return self
        cells = math.ceil(self.duration_s / cell_s)
        sigma = math.sqrt(math.log1p(variation * variation))
        factors = np.exp(chance.normal(-sigma * sigma / 2, sigma, cells))
        fine = self.cut(np.arange(1, cells, dtype=np.float64) * cell_s)
        middle = (fine.edges_s[:-1] + fine.edges_s[1:]) / 2
        factor = factors[np.minimum((middle / cell_s).astype(np.int64), cells - 1)]
        return Intensity(fine.edges_s, fine.left * factor, fine.right * factor)

    def multiplied(self, factor_at: Callable[[Floats], Floats], cell_s: float) -> "Intensity":
        """Times a factor that changes with time, taken as straight within pieces of ``cell_s``."""
        fine = self.cut(np.arange(1, math.ceil(self.duration_s / cell_s), dtype=np.float64) * cell_s)
        # A factor that jumps at an edge counts for the piece after it.
        left, right = factor_at(fine.edges_s[:-1]), factor_at(np.nextafter(fine.edges_s[1:], 0.0))
        return Intensity(fine.edges_s, fine.left * left, fine.right * right)

    def stretched(self, factor: float) -> "Intensity":
        """The same arrivals over ``factor`` times the time."""
        return Intensity(self.edges_s * factor, self.left / factor, self.right / factor)

    def then(self, other: "Intensity") -> "Intensity":
        """``other`` after the end of this."""
        edges = np.concatenate((self.edges_s, self.duration_s + other.edges_s[1:]))
        return Intensity(edges, np.concatenate((self.left, other.left)), np.concatenate((self.right, other.right)))

    def plus(self, other: "Intensity") -> "Intensity":
        """Both at once, until the later end."""
        end_s = max(self.duration_s, other.duration_s)
        pair = [one.padded(end_s) for one in (self, other)]
        first, second = pair[0].cut(pair[1].edges_s), pair[1].cut(pair[0].edges_s)
        return Intensity(first.edges_s, first.left + second.left, first.right + second.right)

    def padded(self, end_s: float) -> "Intensity":
        """With nothing after its end, until ``end_s``."""
        nothing = Intensity(np.array([0.0, end_s - self.duration_s]), np.zeros(1), np.zeros(1))
        return self if end_s <= self.duration_s else self.then(nothing)

    def times(self, due: Floats, cumulated: Floats) -> Floats:
        """Where the integral reaches each of ``due`` (rising, within the total): the stable root of a quadratic a piece."""
        piece = np.searchsorted(cumulated, due, "right") - 1
        np.clip(piece, 0, len(self.left) - 1, out=piece)
        area = due - cumulated[piece]
        left = self.left[piece]
        width = self.edges_s[piece + 1] - self.edges_s[piece]
        slope = (self.right[piece] - left) / width
        root = np.sqrt(np.maximum(left * left + 2 * slope * area, 0.0))
        below = left + root
        into_s = np.divide(2 * area, below, out=np.zeros_like(area), where=below > 0)
        result: Floats = self.edges_s[piece] + np.minimum(into_s, width)
        # Rounding must not put one arrival of a piece a hair before the last of the piece before.
        np.maximum.accumulate(result, out=result)
        return result


def smooth(values: Floats, step_s: float) -> Intensity:
    """Through mean rates of even steps: continuous, and its mean over each step is exactly the value given.

    Each step has a corner at its edges and one in its middle. An edge lies halfway between its neighbours, but no higher
    than twice the lower one, so that the middle (twice the mean less the mean of the edges) is never below zero.
    """
    inner = np.minimum((values[:-1] + values[1:]) / 2, 2 * np.minimum(values[:-1], values[1:]))
    corners = np.concatenate((values[:1], inner, values[-1:]))
    middles = np.maximum(2 * values - (corners[:-1] + corners[1:]) / 2, 0.0)
    edges = np.arange(2 * len(values) + 1, dtype=np.float64) * (step_s / 2)
    left, right = np.empty(2 * len(values)), np.empty(2 * len(values))
    left[0::2], right[0::2], left[1::2], right[1::2] = corners[:-1], middles, middles, corners[1:]
    return Intensity(edges, left, right)


def level(values: Floats, step_s: float) -> Intensity:
    """Steps: each value holds for its whole step."""
    return Intensity(np.arange(len(values) + 1, dtype=np.float64) * step_s, values, values)
