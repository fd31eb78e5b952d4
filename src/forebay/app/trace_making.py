"""Traces written to files: made-up ones, and changed ones; gzip by name, whole or not at all."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from pathlib import Path
from zoneinfo import ZoneInfo

from forebay.app import outputs
from forebay.app.traces import Chances
from forebay.demand import generator, synthesis
from forebay.demand.arrays import ArrivalSource
from forebay.demand.generator import Launch, Plan
from forebay.demand.writing import FORMATS, Writer
from forebay.domain.errors import BadInput

OnProgress = Callable[[float], None]


def parse_plan(
    *,
    kinds: Mapping[str, float],
    rate: float,
    start: date,
    duration_s: float,
    zone: str,
    growth_per_week: float,
    holidays: Mapping[date, float | None],
    launches: Sequence[tuple[datetime, float]],
    noise: float,
    day_noise: float,
    cv: float | None,
) -> Plan:
    """A plan that can be carried out; raises BadInput for all that is wrong with it."""
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError):
        raise BadInput(f"time zone {zone!r}; allowed: a name such as UTC, Europe/Berlin or America/New_York") from None
    plan = Plan(
        kinds=dict(kinds),
        rate=rate,
        start=start,
        duration_s=duration_s,
        zone=zone,
        growth_per_week=growth_per_week,
        holidays=dict(holidays),
        launches=tuple(Launch(at, factor) for at, factor in launches),
        noise=noise,
        day_noise=day_noise,
        cv=cv,
    )
    wrong = list(generator.problems(plan))
    if wrong:
        raise BadInput("; ".join(wrong))
    return plan


def unmade(plan: Plan) -> list[str]:
    """What of ``plan`` lies outside its span, as sentences: holidays and launches that change nothing, or all of it."""
    ends = datetime.fromtimestamp(generator.start_wall_s(plan) + plan.duration_s, ZoneInfo(plan.zone)).replace(tzinfo=None)
    span = f"the span, {plan.start} to {ends:%Y-%m-%dT%H:%M}"
    begins = datetime.combine(plan.start, time())
    found = [
        f"--holiday {day} changes nothing: it is outside {span}"
        for day in plan.holidays
        if not begins <= datetime.combine(day, time()) < ends
    ]
    for launch in plan.launches:
        if launch.at >= ends:
            found.append(f"--launch {launch.at:%Y-%m-%dT%H:%M} changes nothing: it is after {span}")
        elif launch.at < begins:
            found.append(f"--launch {launch.at:%Y-%m-%dT%H:%M} is before {span}: all of the traffic is multiplied by {launch.factor:g}")
    return found


def made(plan: Plan, tier_weights: Mapping[str, float], out: Path, seed: int, on_progress: OnProgress) -> tuple[int, int]:
    """Write the traffic of ``plan`` to ``out``; the number of requests and of bytes."""
    chances = Chances(seed)
    rows = generator.arrivals(plan, {name: chances(name) for name in plan.kinds})
    if tier_weights:
        rows = synthesis.tiered(rows, list(tier_weights.values()), chances("tiers"))
    return written(rows, out, tuple(tier_weights), generator.start_wall_s(plan), False, on_progress)


def written(
    rows: ArrivalSource, out: Path, tiers: Sequence[str], start_wall_s: float, prefixes: bool, on_progress: OnProgress
) -> tuple[int, int]:
    """Write ``rows`` to ``out`` in the format that its name says; the number of requests and of bytes.

    Raises BadInput for a place that can't be written, ForebayError where the disk refuses on the way.
    """
    packed = out.suffix == ".gz"
    text_format = (Path(out.stem) if packed else out).suffix.removeprefix(".")
    if text_format not in FORMATS:
        raise BadInput(f"{out}: allowed: a name that ends in .csv, .jsonl, .csv.gz or .jsonl.gz")
    try:
        writer = Writer(text_format, tiers, start_wall_s, prefixes)
    except ValueError as error:
        raise BadInput(f"{out}: {error}") from None
    count = 0
    outputs.check("--out", out)
    with outputs.whole(out, packed) as file:
        file.write(writer.head())
        for chunk in rows:
            file.write(writer.rows(chunk))
            count += len(chunk.at_s)
            on_progress(float(chunk.at_s[-1]))
    return count, out.stat().st_size
