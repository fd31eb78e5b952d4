"""A rate over time on an even grid, as published: requests or prompt tokens per second, one mean value a step.

Three public shapes are read line by line: the digitised Azure week (``minute,rpm``), the O365 week (prompt tokens per
minute, a column a model and tenant) and ServeGen's totals (``t_s,rate_rps``).
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.demand.counts import Counts
from forebay.demand.trace import FOUND_CHARS_MAX, Place, strictly
from forebay.domain.errors import BadInput

STEPS_MAX = 10_000_000
"""Steps of a series: nineteen years of minutes."""
RATE_MAX = 1e9
"""A rate per second beyond it is a mistake."""
_BEGINNING = re.compile(r"(?:[Mm]inute 0 ?=|[Ff]rom|[Ss]tart(?:s|ing)?(?: at)?:?) ?(\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?)?)")


class Unit(StrEnum):
    """What is counted."""

    REQUESTS = "requests/s"
    PROMPT_TOKENS = "prompt tokens/s"


class RateSeries(NamedTuple):
    """Mean rates per second of consecutive steps."""

    start_wall_s: float
    """Unix time at which the first step begins; 0.0 where it isn't known."""
    step_s: float
    values: npt.NDArray[np.float64]
    """Shape (steps,): finite, at least 0."""
    unit: Unit = Unit.REQUESTS
    name: str = ""

    @property
    def duration_s(self) -> float:
        """All steps."""
        return self.step_s * len(self.values)

    @property
    def mean(self) -> float:
        """Per second, over all steps; 0 for none."""
        return float(self.values.mean()) if len(self.values) else 0.0

    def in_requests(self, prompt_tokens_mean: float) -> "RateSeries":
        """As requests per second, where a request brings ``prompt_tokens_mean`` prompt tokens."""
        if self.unit is Unit.REQUESTS:
            return self
        return self._replace(values=self.values / prompt_tokens_mean, unit=Unit.REQUESTS)


def azure2024_rate(lines: Iterable[str], name: str, *, lenient: bool = False, counts: Counts | None = None) -> RateSeries:
    """``minute,rpm,…``: requests per minute at minutes of an even grid; comments may say when minute 0 was."""
    grid = Grid(lines, name, "minute", 60.0, lenient, counts or Counts())
    return grid.series("rpm", 1 / 60, Unit.REQUESTS)


def o365(lines: Iterable[str], column: str, name: str, *, lenient: bool = False, counts: Counts | None = None) -> RateSeries:
    """``minute,A_prod,…``: prompt tokens per minute of the column named ``column``."""
    grid = Grid(lines, name, "minute", 60.0, lenient, counts or Counts())
    return grid.series(column, 1 / 60, Unit.PROMPT_TOKENS)


def servegen_totals(lines: Iterable[str], name: str, *, lenient: bool = False, counts: Counts | None = None) -> RateSeries:
    """``t_s,rate_rps``: requests per second from each time to the next; windows that are left out had no requests."""
    grid = Grid(lines, name, "t_s", 1.0, lenient, counts or Counts())
    return grid.series("rate_rps", 1.0, Unit.REQUESTS, gaps_are_zero=True)


class Grid:
    """The rows of a small CSV with a time in its first named column; comments start with ``#``."""

    def __init__(self, lines: Iterable[str], name: str, time_column: str, unit_s: float, lenient: bool, counts: Counts) -> None:
        self.place = Place(name)
        self._lines = lines
        self._time_column, self._unit_s = time_column, unit_s
        self._lenient, self._counts = lenient, counts
        self._start_wall_s = 0.0

    def series(self, column: str, factor: float, unit: Unit, gaps_are_zero: bool = False) -> RateSeries:
        times: list[float] = []
        values: list[float] = []
        read: Callable[[str], tuple[float, float]] | None = None
        for line in self._data():
            if read is None:
                read = self._reader(line, column)
                continue
            try:
                at, value = read(line)
                if times and at <= times[-1]:
                    what = "time comes twice" if at == times[-1] else "time goes back"
                    raise self.place.error(what, f"{at:g}", f"a {self._time_column} above {times[-1]:g}")
            except BadInput as error:
                if not self._lenient:
                    raise strictly(error) from None
                self._counts.skip(error)
                continue
            times.append(at)
            values.append(value * factor)
            self._counts.rows += 1
            if len(times) > STEPS_MAX:
                raise BadInput(f"{self.place.name}: more than {STEPS_MAX} steps; give a coarser series")
        name = f"{self.place.name} {column}" if unit is Unit.PROMPT_TOKENS else self.place.name
        return self._even(np.array(times), np.array(values), gaps_are_zero, RateSeries(self._start_wall_s, 0.0, np.empty(0), unit, name))

    def _data(self) -> Iterable[str]:
        for raw in self._lines:
            self.place.line += 1
            line = raw.lstrip("\ufeff").strip()
            if line.startswith("#"):
                self._note_beginning(line)
            elif line:
                yield line

    def _note_beginning(self, comment: str) -> None:
        match = _BEGINNING.search(comment)
        if match is not None and not self._start_wall_s:
            try:
                self._start_wall_s = datetime.fromisoformat(match[1]).replace(tzinfo=UTC).timestamp()
            except ValueError:
                raise self.place.error("not a date", match[1], "a date such as 2024-05-12 00:00") from None

    def _reader(self, header: str, column: str) -> Callable[[str], tuple[float, float]]:
        names = [name.strip().strip('"') for name in header.split(",")]
        if self._time_column not in names:
            raise self.place.error(
                f"the header lacks {self._time_column}", header, f"a first line such as {self._time_column},{column or '…'}"
            )
        others = [name for name in names if name != self._time_column]
        if not column:
            raise BadInput(f"{self.place.name}: say which column to take: {', '.join(others)}")
        if column not in others:
            raise self.place.error("no such column", column, ", ".join(others))
        at, value, width = names.index(self._time_column), names.index(column), len(names)

        def read(line: str) -> tuple[float, float]:
            cells = line.split(",")
            if len(cells) != width:
                raise self.place.error(f"a row of {len(cells)} fields", line, f"{width} fields, as in the header")
            return self._number(cells[at], self._time_column, math.inf), self._number(cells[value], column, RATE_MAX)

        return read

    def _number(self, text: str, what: str, most: float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= most or math.isinf(value):
            raise self.place.error(what, text, "a number of at least 0" if math.isinf(most) else f"a number from 0 to {most:g}")
        return value

    def _even(self, times: npt.NDArray[np.float64], values: npt.NDArray[np.float64], gaps_are_zero: bool, bare: RateSeries) -> RateSeries:
        if len(times) < 2:
            raise BadInput(f"{self.place.name}: found {len(times)} rows; a rate over time needs at least 2")
        step = float(np.min(np.diff(times)))
        places = (times - times[0]) / step
        whole = np.rint(places)
        off = np.flatnonzero(np.abs(places - whole) > 1e-6)
        if len(off):
            raise BadInput(
                f"{self.place.name}: {self._time_column} {times[off[0]]:g} is off the even grid of {step:g} that the others stand on; "
                "resample the series"
            )
        if whole[-1] >= STEPS_MAX:
            raise BadInput(f"{self.place.name}: from {times[0]:g} to {times[-1]:g} in steps of {step:g} is more than {STEPS_MAX} steps")
        full = np.zeros(int(whole[-1]) + 1)
        full[whole.astype(np.int64)] = values
        missing = len(full) - len(values)
        if missing and not gaps_are_zero:
            if not self._lenient:
                after = float(times[int(np.argmax(np.diff(times) > 1.5 * step))])
                raise BadInput(
                    f"{self.place.name}: rows are missing after {self._time_column} {after:g} ({missing} in all); "
                    "fill them in, or give --lenient: a line is drawn over each gap"
                )
            full = np.interp(np.arange(len(full)), whole, values)
            self._counts.filled += missing
        wall_s = self._start_wall_s + float(times[0]) * self._unit_s if self._start_wall_s else 0.0
        return bare._replace(start_wall_s=wall_s, step_s=step * self._unit_s, values=full)


def first_data_line(lines: Sequence[str]) -> str:
    """The first of ``lines`` that is neither empty nor a comment, cut to a sane length; "" for none."""
    for raw in lines:
        line = raw.lstrip("\ufeff").strip()
        if line and not line.startswith("#"):
            return line[: 50 * FOUND_CHARS_MAX]
    return ""
