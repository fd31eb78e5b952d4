"""Runs both stories with a live line, then shows them side by side: a table, a picture, a page."""

import base64
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from forebay.app.demo import picture, story
from forebay.app.demo.scenario import (
    COLD_START_S,
    DAY_PER_MIN,
    GPU_HOUR_USD,
    NIGHT_PER_MIN,
    RAMP_PER_MIN2,
    REPLICA_PER_MIN,
    SPEED,
    TTFT_S,
    Scenario,
    spec_yaml,
)
from forebay.app.demo.story import Look, Story
from forebay.app.demo.summary import DemoSummary, StorySummary, buffer_replicas, buffer_usd_per_hour, summarise
from forebay.domain.errors import BadInput

WIDTH_PIPED = 140
LATE_REAL_S = 0.1
"""The load generator's own lateness (p99) from which on the numbers tell of the machine and not of the policy."""

ROWS: tuple[tuple[str, str, str], ...] = (
    ("replicas wanted", "replicas", ""),
    ("longest queue", "queue_max", "{:.0f}"),
    ("TTFT p95, s", "ttft_p95_s", "{:.2f}"),
    (f"first token within {TTFT_S:g} s", "ttft_attainment", "{:.1%}"),
    ("answers cut", "truncated", "{:.0f}"),
    ("errors", "errors", "{:.0f}"),
    ("refused", "shed", "{:.0f}"),
    ("GPU-hours", "gpu_hours", "{:.2f}"),
    (f"cost at ${GPU_HOUR_USD:g}/GPU-hour", "cost_usd", "${:.2f}"),
)


def run(out: Path, seed: int, quiet_stdout: bool) -> DemoSummary:
    """The whole demo; files land in ``out``. Raises ForebayError where a fleet does not come up or a promise is broken."""
    console = Console(stderr=quiet_stdout, width=None if sys.stdout.isatty() else WIDTH_PIPED)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out: can't make the folder {out} ({error.strerror}); name another") from None
    scenario = Scenario()
    console.print(_opening())
    told = tuple(_tell(console, out, buffer, scenario, seed) for buffer in (True, False))
    stories = (told[0], told[1])
    with_buffer, without_buffer = (summarise(one, scenario.settle_s) for one in stories)
    summary = DemoSummary(buffer_replicas(), with_buffer, without_buffer)
    picture.draw(stories, scenario, out / "demo.png")
    (out / "demo.html").write_text(page(summary, (out / "demo.png").read_bytes()))
    console.print(table(summary))
    late_s = max((one.report.lag_p99_real_s or 0.0) for one in stories)
    if late_s > LATE_REAL_S:
        console.print(f"[yellow]This machine was too busy for {SPEED:g}× speed: requests left up to {late_s:.2f} s late.[/yellow]")
    console.print(_closing(out))
    return summary


def _opening() -> str:
    cold_start_min = COLD_START_S / 60
    return (
        f"[bold]A morning at {SPEED:g}× speed.[/bold] {NIGHT_PER_MIN:g} requests a minute climb to {DAY_PER_MIN:g} in ten minutes.\n"
        f"One replica serves {REPLICA_PER_MIN:g} a minute and takes {cold_start_min:g} minutes to start, so "
        f"{RAMP_PER_MIN2:g}/min per minute × {cold_start_min:g} min ÷ {REPLICA_PER_MIN:g}/min "
        f"= [bold]{buffer_replicas()} replicas of buffer[/bold]:\n"
        f"${buffer_usd_per_hour():g} an hour, ${24 * buffer_usd_per_hour():g} a day.\n"
        "Real HTTP, real processes, emulated engines. Calm and steps of scale-in are shortened for the show."
    )


def _closing(out: Path) -> str:
    return f"\npicture  {out / 'demo.png'}\npage     {out / 'demo.html'}\nboth configurations, logs and histories are in {out}/"


def _tell(console: Console, out: Path, buffer: bool, scenario: Scenario, seed: int) -> Story:
    name = "with-buffer" if buffer else "without-buffer"
    columns = (
        TextColumn(f"[bold]{name:14}[/bold]"),
        BarColumn(bar_width=24),
        TextColumn("minute {task.fields[minute]:>2}  ready {task.fields[ready]:>2}"),
        TextColumn("starting {task.fields[pending]:>2}  waiting {task.fields[waiting]:>4}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, disable=not sys.stderr.isatty() and not sys.stdout.isatty()) as progress:
        task = progress.add_task(name, total=scenario.total_s, minute=0, ready=0, pending=0, waiting="-")

        def show(look: Look) -> None:
            waiting = "?" if look.waiting is None else f"{look.waiting:.0f}"
            progress.update(task, completed=look.at_s, minute=int(look.at_s // 60), ready=look.ready, pending=look.pending, waiting=waiting)

        told = story.tell(out / name, spec_yaml(buffer), buffer, scenario, seed, show)
        progress.update(task, completed=scenario.total_s)
    return told


def _cells(summary: StorySummary, field: str, form: str) -> str:
    if field == "replicas":
        return f"{summary.replicas_min} to {summary.replicas_max}"
    return form.format(getattr(summary, field))


def table(summary: DemoSummary) -> Table:
    """Both stories side by side."""
    made = Table(title="The same morning twice", title_justify="left")
    made.add_column("")
    made.add_column("with the buffer", justify="right", style="bold")
    made.add_column("without", justify="right")
    for label, field, form in ROWS:
        made.add_row(label, _cells(summary.with_buffer, field, form), _cells(summary.without_buffer, field, form))
    return made


def page(summary: DemoSummary, png: bytes) -> str:
    """One HTML file with the table and the picture inside."""
    cells = [(label, _cells(summary.with_buffer, *how), _cells(summary.without_buffer, *how)) for label, *how in ROWS]
    rows = "".join(f"<tr><th>{label}</th><td>{with_it}</td><td>{without}</td></tr>" for label, with_it, without in cells)
    return PAGE.format(rows=rows, picture=base64.b64encode(png).decode(), buffer=summary.buffer_replicas)


PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Forebay demo</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#212529}}
table{{border-collapse:collapse;margin:1rem 0}}th,td{{padding:.3rem .9rem;border-bottom:1px solid #dee2e6;text-align:right}}
th{{text-align:left;font-weight:500}}img{{width:100%}}</style>
<h1>Start replicas before the queue grows</h1>
<p>A morning climbs from 100 to 400 requests a minute in ten minutes; a replica serves 50 and takes five minutes to start.
The buffer, {buffer} replicas, is what that ramp asks for before any replica that is started now can help.</p>
<table><tr><th></th><th>with the buffer</th><th>without</th></tr>{rows}</table>
<img alt="Load, replicas, queue and time to first token of both runs" src="data:image/png;base64,{picture}"></html>
"""
