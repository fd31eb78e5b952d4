"""`forebay trace make`: weeks of made-up traffic, from a few words about it."""

from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from forebay.cli import output
from forebay.cli.stopping import stoppable
from forebay.cli.trace_words import duration_s, weights
from forebay.domain.errors import BadInput
from forebay.domain.units import format_bytes, format_duration, parse_rate_per_s

KINDS = ("conversation", "code", "reasoning", "long-context")


@stoppable()
def command(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="NAME.csv, NAME.jsonl, or either with .gz.")],
    rate: Annotated[str, typer.Option(help="Mean rate of an ordinary week, such as 45/s or 600/min.")] = "10/s",
    duration: Annotated[str, typer.Option(help="How long, such as 4w or 36h.")] = "4w",
    kinds: Annotated[
        str, typer.Option(metavar="KIND=SHARE,…", help=f"Kinds of work by share of requests: {', '.join(KINDS)}.")
    ] = "conversation",
    start: Annotated[str, typer.Option(metavar="DATE", help="First day; begins at its midnight.")] = "2026-01-05",
    zone: Annotated[str, typer.Option("--time-zone", help="Whose clock days follow, such as Europe/Berlin.")] = "UTC",
    growth: Annotated[float, typer.Option(help="Growth a week: 0.02 is 2 %.")] = 0.0,
    holiday: Annotated[
        list[str] | None,
        typer.Option(metavar="DATE[=FACTOR]", help="A holiday: like a weekend, or FACTOR of a weekday. Repeatable."),
    ] = None,
    launch: Annotated[
        list[str] | None,
        typer.Option(metavar="DATETIME=FACTOR", help="From then on (local time) FACTOR times the traffic. Repeatable."),
    ] = None,
    tiers: Annotated[str, typer.Option(metavar="TIER=WEIGHT,…", help="Draw a tier for each request.")] = "",
    cv: Annotated[float | None, typer.Option(help="Variation of gaps (1: Poisson). Default: each kind's own.")] = None,
    noise: Annotated[float, typer.Option(help="Variation of the rate from minute to minute.")] = 0.05,
    day_noise: Annotated[float, typer.Option(help="Variation from day to day that no calendar explains.")] = 0.04,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.", min=0)] = 0,
) -> None:
    """Make up weeks of traffic: daily and weekly cycles, holidays, growth, launches, bursts, lengths fitted to public traces."""
    from forebay.app.trace_making import made, parse_plan, unmade

    plan = parse_plan(
        kinds=weights("--kinds", kinds),
        rate=_rate(rate),
        start=_date("--start", start),
        duration_s=duration_s("--duration", duration),
        zone=zone,
        growth_per_week=growth,
        holidays=dict(_holiday(text) for text in holiday or ()),
        launches=[_launch(text) for text in launch or ()],
        noise=noise,
        day_noise=day_noise,
        cv=cv,
    )
    for told in unmade(plan):
        output.aside(told)
    console = output.console(stderr=True)
    columns = (TextColumn("making {task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(out.name, total=plan.duration_s)
        rows, size = made(plan, weights("--tiers", tiers), out, seed, lambda at_s: progress.update(task, completed=at_s))
    console.print(f"{out}: {rows:,} requests over {format_duration(plan.duration_s)}, {format_bytes(size)}", markup=False, highlight=False)


def _rate(text: str) -> float:
    try:
        return parse_rate_per_s(text)
    except ValueError as error:
        raise BadInput(f"--rate: {error}") from None


def _date(option: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{option}: found {text!r}, allowed: a date such as 2026-01-05") from None


def _holiday(text: str) -> tuple[date, float | None]:
    day, equals, factor = text.partition("=")
    return _date("--holiday", day.strip()), _factor("--holiday", text, factor) if equals else None


def _launch(text: str) -> tuple[datetime, float]:
    at, _, factor = text.partition("=")
    try:
        moment = datetime.fromisoformat(at.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is not None:
        raise BadInput(f"--launch: found {text!r}, allowed: a local date and time and a factor, such as 2026-01-14T10:00=1.5")
    return moment, _factor("--launch", text, factor)


def _factor(option: str, text: str, factor: str) -> float:
    try:
        return float(factor)
    except ValueError:
        raise BadInput(f"{option}: found {text!r}, allowed: a number after the =, such as 1.5") from None
