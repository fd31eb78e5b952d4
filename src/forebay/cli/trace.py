"""``forebay trace``: what a trace is like, made-up weeks of traffic, and traces changed on purpose."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from forebay.app import outputs
from forebay.app.lab.clock import Clock
from forebay.cli import output, trace_edit, trace_make
from forebay.cli.stopping import stoppable
from forebay.cli.trace_words import FORMATS, duration_s, say_counts, say_doubts
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration

if TYPE_CHECKING:
    from forebay.demand.statistics import Tokens, TraceStatistics

app = typer.Typer(name="trace", help="Recorded and made-up traffic: what it is like, making it, changing it.", no_args_is_help=True)
app.command("make")(trace_make.command)
app.command("edit")(trace_edit.command)


@app.command("stats")
@stoppable()
def stats(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Trace, plain or gzip; or a state folder of `forebay up`.")],
    trace_format: Annotated[str, typer.Option(help=f"{' | '.join(FORMATS)}; auto looks at the first line.")] = "auto",
    start: Annotated[str, typer.Option(help="Where in the trace to begin, such as 10m.")] = "0s",
    duration: Annotated[str | None, typer.Option(help="How much of the trace to look at. Default: the rest.")] = None,
    column: Annotated[
        str,
        typer.Option(
            help="Column of an o365 file (A_prod, …); of a csv or jsonl: at_s=ITS NAME,prompt_tokens=…; of a state folder: a pool."
        ),
    ] = "",
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip and count broken rows; sort rows a little out of order.")] = False,
    json: Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write the statistics as JSON to PATH (- for stdout).")] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="PATH", help="Draw rates, days and lengths into PATH.")] = None,
) -> None:
    """Rates and their seasons, bursts, lengths, shared prefixes. A trace of rates is told as it was published.

    Exit code 2: a file, row or span that can't be used; the line is named.
    """
    from forebay.app.trace_study import studied  # numpy and its like: not for verbs that don't count

    output.check_json(json)
    if png is not None:
        if png.suffix != ".png":
            raise BadInput(f"--png: found {str(png)!r}; allowed: a name that ends in .png, in a folder that exists")
        outputs.check("--png", png)
    outputs.check_apart({"--json": output.file_of(json), "--png": png}, {"the trace": file})
    span = (duration_s("--start", start), None if duration is None else duration_s("--duration", duration))
    say_doubts(file, trace_format, column)
    console = output.console(stderr=True)
    columns = (TextColumn("reading {task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(file.name, total=1.0)
        study = studied(file, trace_format, span, column, lenient, lambda done: progress.update(task, completed=done))
    if json is not None:
        output.write_json(study.statistics, json)
    if png is not None:
        from forebay.app.trace_picture import draw

        draw(study, png)
    output.console(stderr=json == "-").print(render(study.statistics))
    say_counts(study.counts)


def render(found: "TraceStatistics") -> RenderableType:
    """The statistics for people; fits 80 columns."""
    rates = _table("Rate", ("", found.unit))
    rates.add_row("mean", _number(found.rates.mean))
    clock = Clock(found.start_wall_s)
    at = f" at {clock.told(found.rates.peak_minute_at_s)}" if found.rates.peak_minute_at_s is not None else ""
    coarse = found.rates.peak_minute is not None and found.rates.peak_minute_at_s is None
    rates.add_row("busiest step" if coarse else f"busiest minute{at}", _number(found.rates.peak_minute))
    rates.add_row("busiest hour ÷ mean", _number(found.rates.hourly_peak_to_mean))
    rates.add_row("busiest hour ÷ quietest", _number(found.rates.hourly_peak_to_valley))
    for name, value in found.rates.acf.items():
        rates.add_row(f"correlation with {name} before", _number(value))
    if found.bursts is not None:
        rates.add_row("variation of gaps (1: Poisson)", _number(found.bursts.gap_cv))
        for name, value in found.bursts.dispersion.items():
            rates.add_row(f"dispersion of counts, {name} (1: Poisson)", _number(value))
        rates.add_row("busiest second, requests", str(found.bursts.busiest_second))
    parts: list[RenderableType] = [Text(_head(found)), rates]
    if found.prompt_tokens is not None and found.output_tokens is not None:
        tokens = _table("Tokens", ("", "mean", "p50", "p90", "p99", "max"))
        for what, lengths in (("prompt", found.prompt_tokens), ("output", found.output_tokens)):
            tokens.add_row(what, *_lengths(lengths))
        parts.append(tokens)
    return Group(*parts, Text(_remarks(found)))


def _head(found: "TraceStatistics") -> str:
    size = f"{found.requests:,} {'request' if found.requests == 1 else 'requests'} in " if found.requests else ""
    begins = f", from {Clock(found.start_wall_s).date(0.0)}" if found.start_wall_s else ""
    return f"{found.name}: {size}{format_duration(found.duration_s)}{begins}"


def _remarks(found: "TraceStatistics") -> str:
    remarks = []
    if found.prefixes is not None:
        of_requests, of_tokens = 100 * found.prefixes.requests_share, 100 * found.prefixes.tokens_share
        remarks.append(f"prefixes: {of_requests:.1f}% of requests share one, {of_tokens:.1f}% of prompt tokens are shared")
    if found.tiers:
        remarks.append("tiers: " + ", ".join(f"{name} × {count:,}" for name, count in found.tiers.items()))
    if found.bursts is not None and found.requests > 1:
        remarks.append(
            f"longest silence: {format_duration(found.bursts.longest_gap_s)} after "
            f"{Clock(found.start_wall_s).told(found.bursts.longest_gap_at_s)}"
        )
    if found.repeated:
        remarks.append(f"the row before over again (time and lengths): {found.repeated:,} times")
    return "\n".join(remarks)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _lengths(lengths: "Tokens") -> list[str]:
    return [f"{value:,.0f}" for value in (lengths.mean, lengths.p50, lengths.p90, lengths.p99, lengths.max)]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
