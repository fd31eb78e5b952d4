"""Words that the verbs of ``forebay trace`` share: formats, durations, weights of tiers, and what became of rows."""

from collections.abc import Mapping
from pathlib import Path

from forebay.cli import output
from forebay.demand.counts import Counts
from forebay.demand.trace import FORMATS as REQUEST_FORMATS
from forebay.demand.trace import RATE_FORMATS
from forebay.domain.errors import BadInput
from forebay.domain.units import parse_duration_s

WEIGHT_MAX = 1e9
FORMATS = (*REQUEST_FORMATS, *RATE_FORMATS)


def duration_s(option: str, text: str) -> float:
    """Seconds; raises BadInput naming the option."""
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None


def weights(option: str, text: str) -> dict[str, float]:
    """``a=3,b=1`` (a bare name counts 1); raises BadInput naming the option."""
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (piece.strip() for piece in part.partition("="))
        try:
            value = float(number or "1")
        except ValueError:
            value = float("nan")
        if not name or name in found or not 0 < value <= WEIGHT_MAX:
            raise BadInput(f"{option}: found {part!r}, allowed: NAME=NUMBER,NAME=NUMBER, each name once, numbers above 0 to {WEIGHT_MAX:g}")
        found[name] = value
    return found


def say_doubts(
    file: Path,
    trace_format: str,
    column: str,
    lengths: Path | None = None,
    drawing: Mapping[str, tuple[float, float]] | None = None,
    *,
    pool_said: bool = False,
) -> None:
    """Say on stderr, before anybody waits, what is not used of the options given, and times that look like milliseconds.

    ``drawing``: values and defaults of options that say how requests are drawn. Raises BadInput for a file that can't be used.
    """
    from forebay.app.trace_doubts import doubts  # numpy and its like: not for verbs that don't count

    given = [f"{option} {value:g}" for option, (value, default) in (drawing or {}).items() if value != default]
    for told in doubts(file, trace_format, column=column, lengths=lengths, drawing=given, pool_said=pool_said):
        output.aside(told)


def say_counts(counts: Counts, of: str = "") -> None:
    """Say on stderr which rows were left out or put in order, if any; ``of``: of which file, where there are several."""
    for told in counts.told():
        output.aside(f"{of}: {told}" if of else told)
