"""Windows of a trace held in memory, spread over all of it: so that many schedules can be tried without reading the trace again."""

from typing import NamedTuple

import numpy as np

from forebay.demand.arrays import Arrivals

WINDOW_S = 960.0
"""Many times as long as a request, so that beginning with idle engines says little; whole slots of a schedule."""
ROWS_MAX = 1_000_000
"""Rows held, but for the chunk at hand."""
THINNING = 3
"""Every third window stays when there are too many: no divisor of a day, so that all hours are met."""


class Window(NamedTuple):
    """Arrivals from ``start_s`` to ``end_s`` of the trace; their times count from ``start_s``."""

    start_s: float
    end_s: float
    chunks: tuple[Arrivals, ...]


class Sampler:
    """Keeps as many windows as its memory has room for, evenly spread, without knowing how long the trace will be."""

    def __init__(self, duration_s: float, rows_max: int = ROWS_MAX, window_s: float = WINDOW_S) -> None:
        self._duration_s = duration_s
        self._rows_max = rows_max
        self._window_s = window_s
        self._stride = 1
        self._rows = 0
        self._held: dict[int, list[Arrivals]] = {}

    @property
    def whole(self) -> bool:
        """Whether nothing was left out."""
        return self._stride == 1

    def take(self, chunk: Arrivals) -> None:
        """Keep what of ``chunk`` falls into windows that are kept."""
        at = 0
        while at < len(chunk.at_s):
            index = int(chunk.at_s[at] // self._window_s)
            end = at + int(np.searchsorted(chunk.at_s[at:], (index + 1) * self._window_s))
            if self._keeps(index) and chunk.at_s[at] < self._duration_s:
                part = Arrivals._make(column[at:end].copy() for column in chunk)
                self._held.setdefault(index, []).append(part)
                self._rows += end - at
            at = max(end, at + 1)
        while self._rows > self._rows_max and len(self._held) > 1:
            self._thin()

    def windows(self) -> list[Window]:
        """What was kept, in order of time; one window where nothing was left out."""
        if self.whole:
            return [Window(0.0, self._duration_s, tuple(chunk for index in sorted(self._held) for chunk in self._held[index]))]
        found = []
        for index in sorted(self._held):
            start_s = index * self._window_s
            chunks = tuple(chunk._replace(at_s=chunk.at_s - start_s) for chunk in self._held[index])
            found.append(Window(start_s, min(self._duration_s, start_s + self._window_s), chunks))
        return found

    def _keeps(self, index: int) -> bool:
        return index % self._stride == self._stride // 2

    def _thin(self) -> None:
        self._stride *= THINNING
        self._held = {index: chunks for index, chunks in self._held.items() if self._keeps(index)}
        self._rows = sum(len(chunk.at_s) for chunks in self._held.values() for chunk in chunks)
