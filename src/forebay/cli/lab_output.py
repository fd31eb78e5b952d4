"""What the lab's verbs show: a bar while policies are played (in a log a line now and then), then a table in which what keeps the
promise is marked."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.cells import cell_len
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from forebay.app.report.content import format_hours
from forebay.cli import output
from forebay.cli.stopping import code
from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration, format_share

if TYPE_CHECKING:
    from forebay.app.lab.clock import Clock
    from forebay.app.lab.comparing import Comparison
    from forebay.app.lab.request import LabRequest
    from forebay.app.lab.tuning import Choice
    from forebay.simulation.clairvoyant import Bound
    from forebay.simulation.values import PolicySummary, RunResult

BAR_STEPS = 1000
LINE_EVERY_S = 15.0
"""Between lines of progress where there is no terminal…"""
LINES_PER_ELAPSED = 20
"""…and no more than so many in the time that has gone by: a night's run writes a hundred or so, not thousands."""
NOTHING = "–"
_GAPS = (2, 1)
"""Between columns of the table of policies; the wider one where there is room."""
_KEPT = ("", "policy", "GPU-\nhours", "×\nlimit", "kept")
"""Shown however narrow the terminal is, unless there is nothing in them."""
_DROPPED = ("cut", "shed", "$", "pace", "1st\ntoken", "turns\n/day", "longest", "breaches", "actions", "saved\nvs static")
"""In this order, where there is no room."""
_COLUMNS = (*_KEPT, "1st\ntoken", "pace", "breaches", "longest", "shed", "cut", "actions", "turns\n/day", "$", "saved\nvs static")


class Lines:
    """Progress for a log: a plain line now and then, none where the work is short."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._began_s = now_s()
        self._due_s = self._began_s + LINE_EVERY_S
        self._what = ""

    def doing(self, what: str) -> None:
        """``what`` is being done from now on."""
        self._what = what

    def tell(self, share: float) -> None:
        """``share`` of it is done: a line if one is due."""
        now_s = self._now_s()
        if now_s < self._due_s:
            return
        elapsed_s = now_s - self._began_s
        self._due_s = now_s + max(LINE_EVERY_S, elapsed_s / LINES_PER_ELAPSED)
        output.aside(f"{self._what}: {100 * share:.0f} % after {format_duration(round(elapsed_s))}")


@contextlib.contextmanager
def told_bar(now_s: Callable[[], float] = time.monotonic) -> Iterator[tuple[Callable[[str], None], Callable[[float], None]]]:
    """Progress on stderr, as a bar or else in `Lines`; gives what to tell that is being done, and the fraction that is."""
    console = output.console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        lines = Lines(now_s)
        yield lines.doing, lines.tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=BAR_STEPS)
        yield lambda what: progress.update(task, description=what), lambda share: progress.update(task, completed=share * BAR_STEPS)


def warn_of_seeds(request: "LabRequest", seeds: int) -> None:
    """Say on stderr, before anybody waits for them, that several seeds will give the same."""
    from forebay.app.lab.seeds import alike

    if seeds > 1 and alike(request):
        output.aside(
            f"--seeds {seeds}: every seed will give the same: recorded requests are played as they came, and nothing else here is drawn. "
            "One is enough; what would be drawn: --start-cv, --faults crashes=…, weights of --tiers, a --rate-scale, a trace of rates"
        )


def deliver(found: "Comparison", json: str | None, html: Path | None, value: Any = None) -> None:
    """The page, the numbers (``value``, or all of the comparison), and the table unless the numbers went to stdout.

    What can't be left costs nobody the rest: it is said (BadInput) when all else is there. Files come first, for whoever reads
    the table may read no further than a few lines.
    """
    from forebay.app.lab.comparing import as_json
    from forebay.app.lab.reporting import write_page

    left: list[str] = []
    problems: list[BadInput] = []
    try:
        if html is not None:
            with _noted(problems):
                write_page(found, html)
                left.append(str(html))
        if json is not None:
            with _noted(problems):
                output.write_json(as_json(found) if value is None else value, json)
                left.append(json)
        if json != "-":
            show(found, html if html is not None and str(html) in left else None)
    except KeyboardInterrupt as stop:
        output.aside(f"stopped; written: {', '.join(left) or 'nothing'}")
        raise typer.Exit(code(stop)) from None
    if problems:
        raise BadInput("\n".join(map(str, problems)))


@contextlib.contextmanager
def _noted(problems: list[BadInput]) -> Iterator[None]:
    try:
        yield
    except BadInput as problem:
        problems.append(problem)


def show(comparison: "Comparison", html: Path | None) -> None:
    """The table, the verdict, what to know; a page that was written is named."""
    console = output.console(highlight=False)
    console.print(_title(comparison), markup=False)
    table, hidden = _table(comparison, console.width)
    console.print(table)
    if hidden:
        console.print(f"{hidden} column{'s' * (hidden > 1)} more in a terminal of 130 or wider, or with --json.", style="dim", markup=False)
    for note in comparison.ready.notes:
        console.print(f"note: {note}", style="yellow", markup=False)
    bound = comparison.bound
    if bound is not None and bound.note:
        console.print(bound.note, style="dim", markup=False)
    console.print(comparison.verdict(), style="bold", markup=False)
    if advice := comparison.advice():
        console.print(advice, markup=False)
    if html is not None:
        console.print(f"The page: {html}", markup=False)


def show_choices(choices: Sequence["Choice"], promise: float) -> None:
    """What was chosen for each policy, what that came to where it was chosen beside the ``promise``, and why."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("policy", "chosen settings"):
        table.add_column(name, overflow="fold")
    for name in ("GPU-hours", "kept"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for choice in choices:
        row = next(row for candidate, row in choice.tried if candidate == choice.chosen)
        table.add_row(choice.policy, choice.settings, format_hours(row.gpu_hours), format_share(row.attainment, promise), choice.because)
    output.console(highlight=False).print(table)


def show_verdicts(verdicts: Mapping[str, str], remark: str) -> None:
    """Whether to take what was chosen, a line for each policy."""
    console = output.console(highlight=False)
    for name, verdict in verdicts.items():
        console.print(f"{name}: {verdict}", style="bold", markup=False)
    if remark:
        console.print(remark, markup=False)


def say(text: str) -> None:
    """One line for people."""
    output.console(highlight=False).print(text, markup=False)


def show_run(run: "RunResult", clock: "Clock") -> None:
    """More of one run than a line has room for; its times by ``clock``."""
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
        told = (f"{kind} × {count}, first at {clock.told(run.first_alert_s[kind])}" for kind, count in run.alerts.items())
        table.add_row("alerts", "; ".join(told))
    if run.wall_s > 0:
        decide = 1e3 * run.decide_s / max(1, run.decisions)
        table.add_row("speed", f"{run.requests / run.wall_s:,.0f} requests/s of CPU; {run.decisions:,} decisions of {decide:.2f} ms")
    output.console(highlight=False).print(table)
    for note in run.notes:
        output.console(highlight=False).print(note, markup=False)


def _time(seconds: float | None) -> str:
    return NOTHING if seconds is None or not math.isfinite(seconds) else format_duration(round(seconds, 3))


def _title(comparison: "Comparison") -> str:
    ready = comparison.ready
    slo, found = ready.request.pool.slo, ready.survey
    begins = f"from {ready.clock.date(0.0)} on " if ready.clock.dated else ""
    return (
        f"{ready.request.pool.name}: {found.requests:,} request{'s' * (found.requests != 1)} in {format_duration(ready.duration_s)} "
        f"{begins}({found.mean_per_s:.4g}/s, busiest minute {found.peak_per_s:.4g}/s); promised to {100 * slo.attainment:g} %: "
        f"first token {format_duration(slo.ttft_s)}, {format_duration(slo.itl_s)} a token"
    )


def _table(comparison: "Comparison", width: int) -> tuple[Table, int]:
    """The table, and how many columns are left out since ``width`` has no room for them: the least telling ones go first."""
    # What keeps the promise first, each part by cost.
    lines = sorted(comparison.summaries, key=lambda line: not line.holds_slo)
    rows = [_row(comparison, line) for line in lines]
    if comparison.bound is not None:
        rows.insert(0, _bound_row(comparison.bound, comparison.yardstick.promise))
    columns = [name for name in _COLUMNS if any(name in row for row in rows)]
    if _width(columns, rows, min(_GAPS)) > width:
        rows = [{**row, "policy": _broken(row["policy"])} for row in rows]
    # What is empty in all rows goes first, and is no loss.
    for name in [name for name in columns if name and all(row.get(name, NOTHING) == NOTHING for row in rows)]:
        if _width(columns, rows, min(_GAPS)) > width:
            columns.remove(name)
    whole = len(columns)
    for name in _DROPPED:
        if name in columns and _width(columns, rows, min(_GAPS)) > width:
            columns.remove(name)
    gap = next((gap for gap in _GAPS if _width(columns, rows, gap) <= width), min(_GAPS))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for name in columns:
        left = name in ("", "policy")
        table.add_column(name, justify="left" if left else "right", no_wrap=name != "policy", overflow="fold", vertical="bottom")
    for row in rows:
        table.add_row(*(row.get(name, "") for name in columns), style="dim" if row["policy"] == "clairvoyant" else "")
    return table, whole - len(columns)


def _broken(name: str) -> str:
    """A policy's name, with a line for each of the settings that it carries."""
    return name.replace(":", ":\n", 1).replace(",", ",\n")


def _width(columns: Sequence[str], rows: Sequence[Mapping[str, str]], gap: int) -> int:
    """Of the table with these columns; a policy's name may be folded at its spaces."""

    def cells(name: str) -> int:
        texts = [Text.from_markup(text).plain for text in (name, *(row.get(name, "") for row in rows))]
        return max(cell_len(piece) for text in texts for piece in ((text.split() or [""]) if name == "policy" else text.split("\n")))

    return sum(cells(name) + gap for name in columns) - gap


def _bound_row(bound: "Bound", promise: float) -> dict[str, str]:
    mark = "[red]✗[/red]" if bound.loose else "✓" if bound.attainment >= promise else "≈"
    return {
        "": mark,
        "policy": "clairvoyant",
        "GPU-\nhours": format_hours(bound.gpu_hours),
        "×\nlimit": "1",
        "kept": format_share(bound.attainment, promise),
    }


def _row(comparison: "Comparison", line: "PolicySummary") -> dict[str, str]:
    cells = {
        "": "[green]✓[/green]" if line.holds_slo else "[red]✗[/red]",
        "policy": f"[bold]{line.name}[/bold]" if line.holds_slo else line.name,
        "GPU-\nhours": f"{format_hours(line.gpu_hours)}{_spread(line, 'gpu_hours', '{:,.1f}')}",
        "×\nlimit": NOTHING if line.vs_clairvoyant is None else f"{line.vs_clairvoyant:.3f}",
        "kept": f"{format_share(comparison.attained(line.name), comparison.yardstick.promise)}{_spread(line, 'both_attainment', '{:.2%}')}",
        "1st\ntoken": _worst(line.ttft_attainment, comparison),
        "pace": _worst(line.itl_attainment, comparison),
        "breaches": f"{line.breaches:,}",
        "longest": format_duration(line.longest_breach_s) if line.breaches else NOTHING,
        "shed": f"{line.shed:,}",
        "cut": f"{line.truncated:,}",
        "actions": f"{line.scale_actions:,}",
        "turns\n/day": f"{line.reversals_per_day:.1f}",
    }
    saved = line.saved_vs_static_usd
    if comparison.yardstick.static_usd is not None:
        cells |= {"$": _whole(line.cost_usd), "saved\nvs static": NOTHING if saved is None or not line.holds_slo else _whole(saved)}
    return cells


def _whole(usd: float) -> str:
    """Dollars without cents; what rounds to nothing has no sign."""
    return f"{round(usd) or 0:,}"


def _worst(shares: Mapping[str, float], comparison: "Comparison") -> str:
    promised = [share for tier, share in shares.items() if tier in comparison.yardstick.promised_tiers]
    return format_share(min(promised), comparison.yardstick.promise) if promised else NOTHING


def _spread(line: "PolicySummary", name: str, form: str) -> str:
    half = line.confidence.get(name)
    return "" if half is None else f" ±{form.format(half)}"
