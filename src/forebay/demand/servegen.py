"""ServeGen's clients: many streams, each with its own rate, burstiness and lengths, superposed.

A row of its ``clients`` file says how many requests a client sent in a window of 600 s and how their gaps were
distributed. That many are laid out here: gaps of the client's gamma or Weibull shape around a circle as long as the window,
turned by a random angle, so that counts are exactly the recorded ones (times the scale) and bursts are kept within windows.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.demand.arrays import CHUNK_ROWS, Arrivals, ArrivalSource
from forebay.demand.counts import Counts
from forebay.demand.lengths import Lengths, LengthSampler, by_score, mean_of, pieces
from forebay.demand.synthesis import bare
from forebay.demand.trace import TOKENS_MAX, Place, strictly
from forebay.domain.errors import BadInput

WINDOW_S = 600.0
EPOCH_S = 21_600.0
"""Lengths are given for six hours at a time."""
WINDOWS_MAX = 1_000_000
ROWS_MAX = 20_000_000
RATE_MAX = 1e6
SHAPE_RANGE = (1e-4, 1e6)
CLIENT_COLUMNS = ("client", "t_s", "rate_rps", "cv", "pattern", "shape", "scale")
LENGTH_COLUMNS = ("client", "t_s", "requests", "in_p50", "in_p90", "in_p99", "out_p50", "out_p90", "out_p99")
COUNT_TOLERANCE = 0.05
_GAMMA, _WEIBULL, _EXPONENTIAL = 0, 1, 2
_PATTERNS = {"G": _GAMMA, "W": _WEIBULL, "E": _EXPONENTIAL}


class Clients(NamedTuple):
    """Rows of a clients file in order of window; columns of equal length."""

    window: npt.NDArray[np.int64]
    """Number of the window of ``WINDOW_S``."""
    client: npt.NDArray[np.int64]
    rate: npt.NDArray[np.float64]
    """Requests per second in the window."""
    pattern: npt.NDArray[np.int8]
    shape: npt.NDArray[np.float64]

    @property
    def windows(self) -> int:
        """How many windows there are, empty ones included."""
        return int(self.window[-1]) + 1 if len(self.window) else 0

    def part(self, first: int, last: int) -> "Clients":
        """Rows ``first`` to ``last``."""
        rows = slice(first, last)
        return Clients(self.window[rows], self.client[rows], self.rate[rows], self.pattern[rows], self.shape[rows])

    def totals(self) -> npt.NDArray[np.float64]:
        """Requests per second of all clients, a value a window."""
        return np.bincount(self.window, self.rate, self.windows).astype(np.float64)


def clients(lines: Iterable[str], name: str, *, lenient: bool = False, counts: Counts | None = None) -> Clients:
    """Read a clients file. Raises BadInput naming the line, unless lenient for a broken row."""
    place = Place(name)
    counts = counts or Counts()
    rows: list[tuple[float, ...]] = []
    seen: set[tuple[float, float]] = set()
    for cells in _rows(lines, CLIENT_COLUMNS, place):
        try:
            row = _client_row(cells, place)
            if row[:2] in seen:
                raise place.error("a window of one client comes twice", ",".join(cells[:2]), "each once")
        except BadInput as error:
            if not lenient:
                raise strictly(error) from None
            counts.skip(error)
            continue
        seen.add((row[0], row[1]))
        rows.append(row)
        counts.rows += 1
        if len(rows) > ROWS_MAX:
            raise BadInput(f"{name}: more than {ROWS_MAX} rows; take fewer clients or windows")
    if not rows:
        raise BadInput(f"{name}: the file has no rows")
    table = np.array(rows)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    return Clients(table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2], table[:, 3].astype(np.int8), table[:, 4])


def _client_row(cells: list[str], place: Place) -> tuple[float, ...]:
    at_s = _number(cells[1], "t_s", 0.0, WINDOWS_MAX * WINDOW_S, place)
    if at_s % WINDOW_S:
        raise place.error("t_s", cells[1], f"a multiple of {WINDOW_S:g}")
    if cells[4] not in _PATTERNS:
        raise place.error("pattern", cells[4], ", ".join(_PATTERNS))
    pattern = _PATTERNS[cells[4]]
    shape = 1.0 if pattern == _EXPONENTIAL else _number(cells[5], "shape", *SHAPE_RANGE, place)
    client = _number(cells[0], "client", 0, 1e9, place)
    return (at_s // WINDOW_S, client, _number(cells[2], "rate_rps", 0.0, RATE_MAX, place), pattern, shape)


def _rows(lines: Iterable[str], columns: tuple[str, ...], place: Place) -> Iterator[list[str]]:
    """The wanted cells of each row; a header's ``pattern(G=…)`` counts as ``pattern``."""
    wanted: list[int] | None = None
    width = 0
    for raw in lines:
        place.line += 1
        line = raw.lstrip("\ufeff").strip()
        if not line or line.startswith("#"):
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if wanted is None:
            names = [cell.partition("(")[0] for cell in cells]
            missing = [column for column in columns if column not in names]
            if missing:
                raise place.error(f"the header lacks {', '.join(missing)}", line, f"a first line with {', '.join(columns)}")
            wanted, width = [names.index(column) for column in columns], len(names)
            continue
        # A row that is too short is given as empty cells, which no number is.
        yield [cells[at] for at in wanted] if len(cells) == width else [""] * len(columns)


def _number(text: str, what: str, least: float, most: float, place: Place) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise place.error(what, text, f"a number from {least:g} to {most:g}")
    return value


class ClientLengths:
    """Percentiles of lengths by client and six hours; a client without any is given those of a random request of that time.

    Between percentiles lengths are lognormal piece by piece (`lengths.pieces`).
    """

    def __init__(self, lines: Iterable[str], name: str, *, lenient: bool = False, counts: Counts | None = None) -> None:
        """Raises BadInput naming the line for what can't be used (skipped and counted where lenient), or for a file without rows."""
        place, counts = Place(name), counts or Counts()
        rows: list[list[float]] = []
        for cells in _rows(lines, LENGTH_COLUMNS, place):
            try:
                rows.append(_length_row(cells, place))
            except BadInput as error:
                if not lenient:
                    raise strictly(error) from None
                counts.skip(error)
        if not any(row[2] for row in rows):
            raise BadInput(f"{name}: the file has no rows with requests")
        table = np.array(rows)
        self._epoch, self._weight = table[:, 1].astype(np.int64), table[:, 2]
        self._prompt, self._output = pieces(table[:, 3:6]), pieces(table[:, 6:9])
        self._row: dict[int, dict[int, int]] = {}
        for number, (client, epoch) in enumerate(table[:, :2].astype(np.int64).tolist()):
            self._row.setdefault(client, {})[epoch] = number
        self._mean: float | None = None

    @property
    def prompt_tokens_mean(self) -> float:
        """By even quantiles of each row, weighted by its requests."""
        if self._mean is None:
            means = np.array([mean_of(one) for one in self._prompt])
            self._mean = float(np.average(means, weights=self._weight))
        return self._mean

    def draw(self, count: int, chance: np.random.Generator) -> tuple[Lengths, Lengths]:
        """As a plain sampler: of a random request, whoever's and whenever."""
        upto = np.cumsum(self._weight)
        return self._of_rows(np.searchsorted(upto, chance.random(count) * upto[-1], "right"), chance)

    def draw_for(self, client: npt.NDArray[np.int64], at_s: float, chance: np.random.Generator) -> tuple[Lengths, Lengths]:
        """For requests of these clients in the window at ``at_s``."""
        epoch = int(at_s // EPOCH_S)
        known, where = np.unique(client, return_inverse=True)
        row = np.array([self._nearest(int(one), epoch) for one in known], np.int64)[where]
        lost = np.flatnonzero(row < 0)
        if len(lost):
            now = np.flatnonzero(self._epoch == epoch)
            now = now if len(now) else np.arange(len(self._epoch))
            upto = np.cumsum(self._weight[now])
            row[lost] = now[np.searchsorted(upto, chance.random(len(lost)) * upto[-1], "right")]
        return self._of_rows(row, chance)

    def _nearest(self, client: int, epoch: int) -> int:
        of_client = self._row.get(client)
        if of_client is None:
            return -1
        return of_client[min(of_client, key=lambda one: (abs(one - epoch), one))]

    def _of_rows(self, row: npt.NDArray[np.int64], chance: np.random.Generator) -> tuple[Lengths, Lengths]:
        prompt = by_score(self._prompt[row], chance.standard_normal(len(row)))
        return prompt, by_score(self._output[row], chance.standard_normal(len(row)))


def _length_row(cells: list[str], place: Place) -> list[float]:
    row = [_number(cells[0], "client", 0, 1e9, place), _number(cells[1], "t_s", 0.0, WINDOWS_MAX * WINDOW_S, place) // EPOCH_S]
    row.append(_number(cells[2], "requests", 0.0, 1e12, place))
    for at in (3, 6):
        row += [_number(cells[k], LENGTH_COLUMNS[k], 0.0, TOKENS_MAX, place) for k in range(at, at + 3)]
        if not row[-3] <= row[-2] <= row[-1]:
            raise place.error(LENGTH_COLUMNS[at], ",".join(cells[at : at + 3]), "percentiles that rise")
    return row


def arrivals(
    sent: Clients, lengths: LengthSampler, scale: float, start_s: float, duration_s: float, chance: np.random.Generator
) -> ArrivalSource:
    """Requests of all clients from ``start_s`` on, ``scale`` times as many, their times counted from there.

    Lengths are each client's own where ``lengths`` are ``ClientLengths``.
    """
    end_s = min(start_s + duration_s, sent.windows * WINDOW_S)
    for window in range(int(start_s // WINDOW_S), math.ceil(end_s / WINDOW_S)):
        first, last = np.searchsorted(sent.window, (window, window + 1))
        rows = sent.part(int(first), int(last))
        sent_then = rows.rate * WINDOW_S
        # Rates are published with six digits: what is nearly whole was a count.
        sent_then = np.where(np.abs(sent_then - np.rint(sent_then)) < COUNT_TOLERANCE, np.rint(sent_then), sent_then)
        # The remainder of a scaled count is drawn: no small client is lost by rounding.
        number = np.floor(sent_then * scale + chance.random(last - first)).astype(np.int64)
        at_s = window * WINDOW_S + _around(number, rows, chance)
        client = np.repeat(rows.client, number)
        order = np.argsort(at_s, kind="stable")
        order = order[np.searchsorted(at_s[order], start_s) : np.searchsorted(at_s[order], end_s)]
        for at in range(0, len(order), CHUNK_ROWS):
            part = order[at : at + CHUNK_ROWS]
            yield _chunk(at_s[part] - start_s, client[part], window * WINDOW_S, lengths, chance)


def _chunk(
    at_s: npt.NDArray[np.float64], client: npt.NDArray[np.int64], window_at_s: float, lengths: LengthSampler, chance: np.random.Generator
) -> Arrivals:
    if isinstance(lengths, ClientLengths):
        return bare(at_s, *lengths.draw_for(client, window_at_s, chance))
    return bare(at_s, *lengths.draw(len(at_s), chance))


def _around(number: npt.NDArray[np.int64], rows: Clients, chance: np.random.Generator) -> npt.NDArray[np.float64]:
    """Seconds into the window of each request, client after client: ``number`` of them each."""
    total = int(number.sum())
    shape = np.repeat(rows.shape, number)
    gaps = np.empty(total)
    weibull = np.repeat(rows.pattern == _WEIBULL, number)
    gaps[~weibull] = chance.standard_gamma(shape[~weibull])
    gaps[weibull] = chance.standard_exponential(int(weibull.sum())) ** (1 / shape[weibull])
    # A gap of nothing (a shape near 0 underflows) would leave a client of one request without a circle.
    np.maximum(gaps, 1e-300, out=gaps)
    upto = np.cumsum(number)
    first = upto - number
    turned = np.empty(total)
    some = number > 0
    sums = np.add.reduceat(gaps, first[some]) if total else np.empty(0)
    gaps /= np.repeat(sums, number[some])
    along = np.cumsum(gaps)
    before = np.concatenate((np.zeros(1), along))[first]
    np.subtract(along, np.repeat(before, number), out=turned)
    turned += np.repeat(chance.random(len(number)), number)
    into: npt.NDArray[np.float64] = (turned % 1.0) * WINDOW_S
    return np.minimum(into, np.nextafter(WINDOW_S, 0.0))
