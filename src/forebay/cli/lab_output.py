"""What the lab's verbs show: a bar while policies are played, then a table in which what keeps the promise is marked."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from forebay.app.report.content import format_hours
from forebay.cli import output
from forebay.domain.units import format_duration

if TYPE_CHECKING:
    from forebay.app.lab.comparing import Comparison
    from forebay.simulation.values import PolicySummary, RunResult

BAR_STEPS = 1000


@contextlib.contextmanager
def bar(title: str) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr; gives what to tell the fraction that is done."""
    with told_bar() as (doing, tell):
        doing(title)
        yield tell


@contextlib.contextmanager
def told_bar() -> Iterator[tuple[Callable[[str], None], Callable[[float], None]]]:
    """A progress bar on stderr; gives what to tell that is being done, and the fraction that is."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=output.console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=BAR_STEPS)
        yield lambda what: progress.update(task, description=what), lambda share: progress.update(task, completed=share * BAR_STEPS)


@contextlib.contextmanager
def doing() -> Iterator[Callable[[str], None]]:
    """A turning wheel on stderr; gives what to tell that is being done."""
    with output.console(stderr=True).status("") as status:
        yield status.update


def deliver(found: "Comparison", json: str | None, html: Path | None, value: Any = None) -> None:
    """The page, the numbers (``value``, or all of the comparison), and the table unless the numbers went to stdout."""
    from forebay.app.lab.comparing import as_json
    from forebay.app.lab.reporting import write_page

    if json != "-":
        show(found, html)  # first, so that a page that can't be written costs nobody the run
    if html is not None:
        write_page(found, html)
    if json is not None:
        output.write_json(as_json(found) if value is None else value, json)


def show(comparison: "Comparison", html: Path | None) -> None:
    """The table, the verdict, what to know; a page that was written is named."""
    console = output.console(highlight=False)
    console.print(_title(comparison), markup=False)
    console.print(_table(comparison))
    for note in comparison.ready.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    bound = comparison.bound
    if bound is not None and bound.note:
        console.print(bound.note, style="dim", markup=False)
    console.print(comparison.verdict(), style="bold", markup=False)
    if html is not None:
        console.print(f"The page: {html}", markup=False)


def show_run(run: "RunResult") -> None:
    """More of one run than a line has room for."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("")
    table.add_column("", overflow="fold")
    for name, tier in run.tiers.items():
        if tier.totals.arrived:
            times = ", ".join(f"{what} {_time(tier.ttft_s.get(what))}" for what in ("p50", "p95", "p99"))
            pace = ", ".join(f"{what} {_time(tier.tpot_s.get(what))}" for what in ("p50", "p95", "p99"))
            table.add_row(f"{name}: first token", times)
            table.add_row(f"{name}: a token", pace)
    hours = ", ".join(f"{state} {hours:,.1f}" for state, hours in run.gpu_hours_by_state.items())
    table.add_row("GPU-hours", hours)
    table.add_row("replicas", f"{run.replicas_mean:.1f} on average, {run.replicas_peak} at most; {run.starts:,} starts")
    if run.alerts:
        told = (f"{kind} × {count}, first at {format_duration(run.first_alert_s[kind])}" for kind, count in run.alerts.items())
        table.add_row("alerts", "; ".join(told))
    if run.wall_s > 0:
        decide = 1e3 * run.decide_s / max(1, run.decisions)
        table.add_row("speed", f"{run.requests / run.wall_s:,.0f} requests/s of CPU; {run.decisions:,} decisions of {decide:.2f} ms")
    output.console(highlight=False).print(table)
    for note in run.notes:
        output.console(highlight=False).print(note, markup=False)


def _time(seconds: float | None) -> str:
    return "–" if seconds is None or not math.isfinite(seconds) else format_duration(round(seconds, 3))


def _title(comparison: "Comparison") -> str:
    ready = comparison.ready
    slo, found = ready.request.pool.slo, ready.survey
    return (
        f"{ready.request.pool.name}: {found.requests:,} requests in {format_duration(ready.duration_s)} "
        f"({found.mean_per_s:.4g}/s, busiest minute {found.peak_per_s:.4g}/s); promised to {100 * slo.attainment:g} %: "
        f"first token {format_duration(slo.ttft_s)}, {format_duration(slo.itl_s)} a token"
    )


def _table(comparison: "Comparison") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for name in ("GPU-hours", "× limit", "kept", "1st token", "pace", "breaches", "longest", "shed", "cut", "actions", "turns/day"):
        table.add_column(name, justify="right", no_wrap=True)
    priced = comparison.yardstick.static_usd is not None
    if priced:
        table.add_column("$", justify="right", no_wrap=True)
        table.add_column("saved", justify="right", no_wrap=True)
    bound = comparison.bound
    if bound is not None:
        table.add_row("", "clairvoyant", format_hours(bound.gpu_hours), "1", f"{bound.attainment:.2%}", style="dim")
    # What keeps the promise first, each part by cost.
    for line in sorted(comparison.summaries, key=lambda line: not line.holds_slo):
        table.add_row(*_row(comparison, line, priced))
    return table


def _row(comparison: "Comparison", line: "PolicySummary", priced: bool) -> list[str]:
    cells = [
        "[green]✓[/green]" if line.holds_slo else "[red]✗[/red]",
        f"[bold]{line.name}[/bold]" if line.holds_slo else line.name,
        f"{format_hours(line.gpu_hours)}{_spread(line, 'gpu_hours', '{:,.1f}')}",
        "–" if line.vs_clairvoyant is None else f"{line.vs_clairvoyant:.3f}",
        f"{comparison.attained(line.name):.2%}{_spread(line, 'both_attainment', '{:.2%}')}",
        _worst(line.ttft_attainment, comparison),
        _worst(line.itl_attainment, comparison),
        f"{line.breaches:,}",
        format_duration(line.longest_breach_s) if line.breaches else "–",
        f"{line.shed:,}",
        f"{line.truncated:,}",
        f"{line.scale_actions:,}",
        f"{line.reversals_per_day:.1f}",
    ]
    if priced:
        cells += [f"{line.cost_usd:,.0f}", "–" if line.saved_vs_static_usd is None else f"{line.saved_vs_static_usd:,.0f}"]
    return cells


def _worst(shares: Mapping[str, float], comparison: "Comparison") -> str:
    promised = [share for tier, share in shares.items() if tier in comparison.yardstick.promised_tiers]
    return f"{min(promised):.2%}" if promised else "–"


def _spread(line: "PolicySummary", name: str, form: str) -> str:
    half = line.confidence.get(name)
    return "" if half is None else f" ±{form.format(half)}"
