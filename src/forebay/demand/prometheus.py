"""What Prometheus answers to a range query, as a rate: ``/api/v1/query_range`` of requests per second, one series.

The sample at a time is taken for the mean of the step before it, as ``rate(…[1m])`` at a step of a minute is. Format of the
answer: prometheus.io/docs/prometheus/latest/querying/api, *range queries* (resultType ``matrix``).
"""

import itertools
from collections.abc import Iterable, Iterator

import msgspec

from forebay.demand.counts import Counts
from forebay.demand.series import Grid, RateSeries, Unit
from forebay.domain.errors import BadInput

SIGN = '"resultType"'
CHARS_MAX = 1 << 28
"""Of one answer; Prometheus gives at most 11,000 samples of a series, half a megabyte."""
COUNTER_SAMPLES_MIN = 10
"""So many whole numbers that never fall are a counter, not its rate."""
SHOWN_MAX = 3
TIME, RATE = "t_s", "requests_per_s"


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, frozen=True):
    resultType: str = ""
    result: list[msgspec.Raw] = []


class _Answer(msgspec.Struct, frozen=True):
    status: str = ""
    error: str = ""
    data: _Data = _Data()


def series(lines: Iterable[str], name: str, *, lenient: bool = False, counts: Counts | None = None) -> RateSeries:
    """The one series of an answer. Raises BadInput for one that failed, has no series or several, or is no rate.

    Samples that are missing or no numbers are refused, or ``lenient``: a line is drawn over them.
    """
    found = _one(_decoded("".join(_bounded(lines, name)), name), name)
    if not found.values:
        raise BadInput(f"{name}: found a series without samples, allowed: one with two or more")
    _refuse_counter(found, name)
    first_s = found.values[0][0]
    rows = (f"{at_s - first_s:.3f},{text}" for at_s, text in found.values)
    grid = Grid(itertools.chain((f"{TIME},{RATE}",), rows), f"{name} sample", TIME, 1.0, lenient, counts or Counts())
    grid.place.line = -1  # The header is ours: the first sample is number 1.
    read = grid.series(RATE, 1.0, Unit.REQUESTS)
    return read._replace(start_wall_s=max(0.0, first_s - read.step_s), name=name)


def _bounded(lines: Iterable[str], name: str) -> Iterator[str]:
    chars = 0
    for line in lines:
        chars += len(line)
        if chars > CHARS_MAX:
            raise BadInput(f"{name}: more than {CHARS_MAX} characters; ask for a longer step")
        yield line.lstrip("\ufeff")


def _decoded(text: str, name: str) -> _Data:
    try:
        answer = msgspec.json.decode(text, type=_Answer)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadInput(f"{name}: this is no answer of Prometheus' /api/v1/query_range ({error}); save the whole of it") from None
    if answer.status == "error":
        raise BadInput(f"{name}: Prometheus answered with an error: {answer.error}; mend the query")
    if answer.data.resultType != "matrix":
        raise BadInput(
            f"{name}: found a result of type {answer.data.resultType!r}, allowed: matrix; ask /api/v1/query_range, with start, end and step"
        )
    return answer.data


def _one(data: _Data, name: str) -> _Series:
    if not data.result:
        raise BadInput(f"{name}: found no series: nothing matched the query in that span; is the metric's name right?")
    try:
        found = [msgspec.json.decode(each, type=_Series) for each in data.result[: SHOWN_MAX + 1]]
    except msgspec.DecodeError as error:
        raise BadInput(f"{name}: found a series that is none ({error}); allowed: samples of a time and a number as text") from None
    if len(data.result) > 1:
        told = ", ".join("{" + ", ".join(f'{key}="{value}"' for key, value in each.metric.items()) + "}" for each in found[:SHOWN_MAX])
        more = ", …" if len(data.result) > SHOWN_MAX else ""
        raise BadInput(f"{name}: found {len(data.result)} series ({told}{more}), allowed: one; put sum( … ) around the query")
    return found[0]


def _refuse_counter(found: _Series, name: str) -> None:
    """A counter instead of its rate is the usual mistake, and would be played as millions of requests a second."""
    texts = [text for _, text in found.values]
    if len(texts) < COUNTER_SAMPLES_MIN or not all(text.isascii() and text.isdigit() for text in texts):
        return
    numbers = [int(text) for text in texts]
    if numbers[-1] > numbers[0] and all(one <= other for one, other in itertools.pairwise(numbers)):
        raise BadInput(f"{name}: found whole numbers that only rise, {numbers[0]} to {numbers[-1]}: a counter; put rate( …[1m]) around it")
