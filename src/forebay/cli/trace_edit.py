"""`forebay trace edit`: a trace changed on purpose, to see what a policy would make of it."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from forebay.app import outputs
from forebay.cli import output
from forebay.cli.stopping import stoppable
from forebay.cli.trace_words import FORMATS, duration_s, say_counts, say_doubts, weights
from forebay.demand.trace import TOKENS_MAX
from forebay.domain.errors import BadInput
from forebay.domain.units import format_bytes, format_duration

CV, NOISE = 2.0, 0.05


@stoppable()
def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Trace, plain or gzip.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="NAME.csv, NAME.jsonl, or either with .gz.")],
    do: Annotated[
        list[str] | None,
        typer.Option("--do", metavar="CHANGE", help='Such as "spike at=2h factor=10 hold=10m"; repeatable, made in order.'),
    ] = None,
    trace_format: Annotated[str, typer.Option(help=f"{' | '.join(FORMATS)}; auto looks at the first line.")] = "auto",
    lengths: Annotated[Path | None, typer.Option(help="For a trace of rates: draw lengths from this trace.")] = None,
    prompt_tokens: Annotated[int, typer.Option(help="Without lengths: mean prompt tokens of a request.", min=1, max=TOKENS_MAX)] = 1000,
    output_tokens: Annotated[int, typer.Option(help="Without lengths: mean output tokens of a request.", min=1, max=TOKENS_MAX)] = 200,
    start: Annotated[str, typer.Option(help="Where in the trace to begin.")] = "0s",
    duration: Annotated[str | None, typer.Option(help="How much of it to take. Default: the rest.")] = None,
    cv: Annotated[float, typer.Option(help="For rates: variation of gaps (1: Poisson).", min=0, max=100)] = CV,
    noise: Annotated[float, typer.Option(help="For rates: variation of the rate from minute to minute.", min=0, max=1)] = NOISE,
    column: Annotated[str, typer.Option(help="Column of an o365 file; of a csv or jsonl: at_s=ITS NAME,prompt_tokens=….")] = "",
    tiers: Annotated[str, typer.Option(metavar="TIER=WEIGHT,…", help="Draw a tier for requests that don't name one.")] = "",
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.", min=0)] = 0,
    lenient: Annotated[bool, typer.Option("--lenient", help="Skip and count broken rows; sort rows a little out of order.")] = False,
) -> None:
    """Write FILE with changes made to it, or the requests that a trace of rates stands for.

    Changes, with what may be said in brackets and times in the span:

    - `scale factor=2`: twice the requests
    - `stretch factor=0.5`: in half the time
    - `spike at=2h [factor=10 ramp=2m hold=10m]`
    - `ramp from=1h until=3h factor=4`: straight up, and it stays
    - `step at=1h factor=1.5`: a lost region's traffic, at once
    - `long-context share=0.05 prompt=32000 [output=same from=0s]`
    - `lengths from=3d [prompt=1 output=1]`: that many times as long
    - `splice with=FILE at=1d`: then FILE, from its beginning
    - `merge with=FILE [from=0s]`: FILE as well
    """
    given = weights("--tiers", tiers)
    outputs.check("--out", out)
    outputs.check_apart({"--out": out}, {"the trace itself": file, "what --lengths names": lengths})
    span = (duration_s("--start", start), None if duration is None else duration_s("--duration", duration))
    say_doubts(file, trace_format, column, lengths, {"--cv": (cv, CV), "--noise": (noise, NOISE)})
    options: dict[str, Any] = {
        "lengths": lengths,
        "shape": (prompt_tokens, output_tokens),
        "tier_weights": given or None,
        "rate_scale": 1.0,
    }
    options |= {"noise": noise, "cv": cv, "column": column, "seed": seed, "lenient": lenient}
    _edit(file, trace_format, span, out, do or [], tuple(given), options)


def _edit(
    file: Path,
    trace_format: str,
    span: tuple[float, float | None],
    out: Path,
    do: list[str],
    tiers: tuple[str, ...],
    options: dict[str, Any],
) -> None:
    from forebay.app.trace_edits import edited, parse  # numpy and its like: not for verbs that don't count
    from forebay.app.trace_making import written
    from forebay.app.traces import OpenedTrace, open_arrivals

    trace = open_arrivals(file, trace_format, tiers=tiers, start_s=span[0], duration_s=span[1], **options)
    others: list[OpenedTrace] = []

    def another(name: str) -> OpenedTrace:
        outputs.check_apart({"--out": out}, {"a trace that --do names": Path(name)})
        other = open_arrivals(Path(name), "auto", tiers=trace.tiers, start_s=0.0, duration_s=None, **options)
        if other.tiers != trace.tiers:
            raise BadInput(f"{name} names tiers ({', '.join(other.tiers)}) and {file} doesn't: give --tiers TIER=WEIGHT,… with all of them")
        others.append(other)
        return other

    changed = edited(trace, [parse(words, another) for words in do], options["seed"])
    grouped = any(one.grouped for one in (trace, *others))
    console = output.console(stderr=True)
    columns = (TextColumn("writing {task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(out.name, total=changed.duration_s)
        rows, size = written(
            changed.source(), out, changed.tiers, changed.start_wall_s, grouped, lambda at_s: progress.update(task, completed=at_s)
        )
    length = format_duration(changed.duration_s)
    console.print(f"{out}: {rows:,} requests over {length}, {format_bytes(size)}", markup=False, highlight=False)
    say_counts(trace.counts)
    if options["lengths"] is not None and not trace.rate_only:
        output.aside(f"--lengths was not used: the requests of {file} have lengths of their own")
    say_counts(trace.lengths_counts, str(options["lengths"]))
    for other in others:
        say_counts(other.counts, other.name)
