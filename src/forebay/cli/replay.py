"""`forebay replay`: the load of a recorded trace, sent open-loop to any OpenAI endpoint, and what came back."""

import asyncio
import gc
import random
import resource
import signal
from collections.abc import Callable
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from forebay.adapters.clock import MeasuringClock
from forebay.app.trace_files import renames
from forebay.cli import output
from forebay.cli.trace_words import say_counts
from forebay.demand.counts import Counts
from forebay.demand.trace import FORMATS, TraceRow
from forebay.domain.errors import BadInput, ForebayError
from forebay.domain.units import format_duration, parse_duration_s
from forebay.loadgen import files, replay
from forebay.loadgen.report import Progress, ReplayReport, TierReport, to_json

DESCRIPTORS_SPARE = 128


def command(
    target: Annotated[str, typer.Option(help="Endpoint, such as http://127.0.0.1:8080 (with or without /v1).")],
    trace: Annotated[str, typer.Option(metavar="FILE", help="Trace file, plain or gzip; - for stdin.")],
    trace_format: Annotated[str, typer.Option(help=f"{' | '.join(FORMATS)}; auto looks at the first line.")] = "auto",
    column: Annotated[str, typer.Option(help="What a csv or jsonl calls its columns: at_s=ITS NAME,prompt_tokens=….")] = "",
    start: Annotated[str, typer.Option(help="Where in the trace to begin, such as 10m.")] = "0s",
    duration: Annotated[str | None, typer.Option(help="How much of the trace to send, such as 10m. Default: the rest.")] = None,
    speed: Annotated[float, typer.Option(help="World seconds per real second; all results are world seconds.")] = 1.0,
    rate_scale: Annotated[float, typer.Option(help="Multiply the request rate, by dropping or repeating rows.")] = 1.0,
    model: Annotated[str, typer.Option(help="Model to ask for. Default: the first of /v1/models.")] = "",
    key: Annotated[str, typer.Option(help="API key.")] = "",
    keys: Annotated[str, typer.Option(metavar="TIER=KEY,…", help="API keys by the rows' tier.")] = "",
    tiers: Annotated[str, typer.Option(metavar="TIER=WEIGHT,…", help="Draw a tier for rows that don't name one.")] = "",
    service_tier: Annotated[bool, typer.Option("--service-tier", help="Send the row's tier as service_tier.")] = False,
    completions: Annotated[bool, typer.Option("--completions", help="Use /v1/completions, not /v1/chat/completions.")] = False,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for the exact length; off for endpoints that refuse unknown fields.")] = True,
    bytes_per_token: Annotated[float, typer.Option(help="Length of the prompt text per token.")] = 4.0,
    ttft: Annotated[str, typer.Option(metavar="TIME or TIER=TIME,…", help="Promise that attainment is measured against.")] = "",
    obey_retry_after: Annotated[bool, typer.Option("--obey-retry-after", help="Come back when a refusal says so.")] = False,
    retries: Annotated[int, typer.Option(help="How often at most, with --obey-retry-after.")] = 3,
    timeout: Annotated[str, typer.Option(help="From when a request is due to its last byte (world time).")] = "30m",
    connections: Annotated[int, typer.Option(help="Most connections at once.")] = 4096,
    seed: Annotated[int, typer.Option(help="Of prompts, dropped and repeated rows, and drawn tiers.")] = 0,
    lenient: Annotated[
        bool, typer.Option("--lenient", help="Skip and count broken rows; sort rows that are a little out of order.")
    ] = False,
    records: Annotated[bool, typer.Option("--records", help="One record per request in the JSON.")] = False,
    json: Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write the report as JSON to PATH (- for stdout).")] = None,
) -> None:
    """Replay a trace open-loop against an OpenAI endpoint and measure what its users would have seen.

    Requests are sent when they are due, however slow the answers are. Exit code 0: the run was completed (errors are in the report);
    1: it could not be run, or was interrupted; 2: bad input, nothing was sent.
    """
    output.check_json(json)
    selection = files.Selection(
        path=trace,
        trace_format=_one_of("--trace-format", trace_format, ("auto", *FORMATS)),
        start_s=_duration_s("--start", start),
        duration_s=float("inf") if duration is None else _duration_s("--duration", duration),
        rate_scale=_positive("--rate-scale", rate_scale),
        lenient=lenient,
        tiers={tier: _weight(text) for tier, text in _pairs("--tiers", tiers)},
        columns=renames(column),
    )
    who = {"target": target, "model": model, "key": key, "keys": tuple(_pairs("--keys", keys)), "service_tier": service_tier}
    what = {"chat": not completions, "bytes_per_token": bytes_per_token, "ignore_eos": ignore_eos, "records": records}
    patience = {"timeout_s": _duration_s("--timeout", timeout), "obey_retry_after": obey_retry_after, "retries_max": retries}
    options = msgspec.convert({**who, **what, **patience, "connections_max": connections, "ttft_s": _promises(ttft)}, replay.ReplayOptions)
    _positive("--speed", speed)
    counts = Counts()
    rows = files.load(selection, seed, counts)
    if counts.doubt:
        output.aside(counts.doubt)
    _check_keys(rows, options)
    _deliver(_run(rows, options, speed, seed), counts, json)


def _deliver(report: ReplayReport, counts: Counts, json: str | None) -> None:
    if json is not None:
        output.write_json(to_json(report), json)
    output.console(stderr=json == "-").print(render(report))
    say_counts(counts)
    if report.unsent:
        raise ForebayError("interrupted: rows of the trace were left unsent; the report covers those that were sent")


def _run(rows: list[TraceRow], options: replay.ReplayOptions, speed: float, seed: int) -> ReplayReport:
    _allow_descriptors(options.connections_max + DESCRIPTORS_SPARE)
    gc.collect()
    gc.freeze()
    console = output.console(stderr=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if not console.is_terminal:
            return runner.run(_main(rows, options, speed, seed, None))
        with Live(console=console, transient=True, auto_refresh=False) as live:
            span_s = rows[-1].at_s
            return runner.run(
                _main(rows, options, speed, seed, lambda progress: live.update(_line(progress, len(rows), span_s), refresh=True))
            )


async def _main(
    rows: list[TraceRow], options: replay.ReplayOptions, speed: float, seed: int, on_progress: Callable[[Progress], None] | None
) -> ReplayReport:
    """The first interrupt stops sending and awaits what is under way; the second ends the run."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def interrupted() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    try:
        return await replay.run(rows, options, MeasuringClock(speed), random.Random(f"{seed}/prompts"), on_progress, stop)
    except asyncio.CancelledError:
        raise ForebayError("interrupted twice: the requests under way were given up, and there is no report") from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _line(progress: Progress, rows: int, span_s: float) -> Text:
    done = progress.completed + progress.truncated + progress.shed + progress.errors
    bad = progress.truncated + progress.errors
    return Text.assemble(
        (f"{format_duration(progress.at_s)} of {format_duration(span_s)}", "bold"),
        f"  sent {progress.sent}/{rows}  in flight {progress.in_flight}  done {done}",
        f"  shed {progress.shed}",
        (f"  truncated {progress.truncated}  errors {progress.errors}", "bold red" if bad else ""),
        f"  TTFT p50 {_time(progress.ttft_p50_s)} p95 {_time(progress.ttft_p95_s)}  lag p99 {_time(progress.lag_p99_s)}",
    )


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{1000 * seconds:.1f}ms" if seconds < 0.1 else f"{seconds:.2f}s" if seconds < 60 else format_duration(seconds)


def render(report: ReplayReport) -> RenderableType:
    """The report for people: counts, times, and a few lines of what else matters; fits 80 columns."""
    tiers = report.by_tier if len(report.by_tier) > 1 else {}
    shares: list[tuple[str, TierReport | ReplayReport]] = [*tiers.items(), ("all", report)]
    counts = _table("Requests", ("tier", "sent", "completed", "truncated", "shed", "errors", "in time"))
    times = _table("World time", ("tier", "", "p50", "p95", "p99"))
    for name, part in shares:
        numbers = (part.requests, part.completed, part.truncated, part.shed, part.errors)
        in_time = "–" if part.ttft_attainment is None else f"{100 * part.ttft_attainment:.2f}%"
        counts.add_row(escape(name), *map(str, numbers), in_time)
        for what, quantiles in (("to first token", part.ttft_s), ("between tokens", part.itl_s), ("end to end", part.e2e_s)):
            times.add_row(escape(name), what, *map(_time, (quantiles.p50, quantiles.p95, quantiles.p99)))
    return Group(counts, times, Text(_remarks(report)))


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or not column else "right")
    return table


def _remarks(report: ReplayReport) -> str:
    retry = report.retry_after
    parts = [
        f"{format_duration(report.duration_s)} of the world in {format_duration(report.wall_s)} (speed {report.speed:g}); "
        f"{report.chunks} chunks, {report.output_tokens} output tokens; generator: {100 * report.generator_cpu:.0f}% of a core, "
        f"lag p99 {_time(report.generator_lag_s.p99)}",
        f"statuses: {_counts(report.statuses)}",
    ]
    if report.truncated_by:
        parts.append(f"truncated by: {_counts(report.truncated_by)}")
    if report.errors_by:
        parts.append(f"errors by: {_counts(report.errors_by)}")
        parts += [f"  {sample}" for sample in report.error_samples]
    if report.stopped_early:
        parts.append(f"{report.stopped_early} answers ended by themselves before the wanted length")
    if retry.given or retry.missing:
        parts.append(f"refusals with Retry-After: {retry.given}, without: {retry.missing}, obeyed: {retry.obeyed}")
    if report.generator_bound:
        parts.append(f"THE GENERATOR WAS THE BOTTLENECK: {report.generator_bound_because}")
    return "\n".join(parts)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} × {number}" for name, number in counts.items()) or "none"


def _one_of(option: str, text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise BadInput(f"{option}: found {text!r}, allowed: {', '.join(allowed)}")
    return text


def _duration_s(option: str, text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None


def _positive(option: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise BadInput(f"{option}: found {value}, allowed: a number above 0")
    return value


def _pairs(option: str, text: str) -> list[tuple[str, str]]:
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    for name, _, value in pairs:
        if not name.strip() or not value.strip():
            raise BadInput(f"{option}: found {text!r}, allowed: TIER=VALUE,TIER=VALUE")
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _weight(text: str) -> float:
    try:
        return _positive("--tiers", float(text))
    except ValueError:
        raise BadInput(f"--tiers: found {text!r}, allowed: a number above 0 for each tier") from None


def _promises(text: str) -> tuple[tuple[str, float], ...]:
    if text and "=" not in text:
        return (("", _duration_s("--ttft", text)),)
    return tuple((tier, _duration_s("--ttft", value)) for tier, value in _pairs("--ttft", text))


def _check_keys(rows: list[TraceRow], options: replay.ReplayOptions) -> None:
    if options.keys and not options.key:
        missing = sorted({row.tier for row in rows} - {tier for tier, _ in options.keys})
        if missing:
            names = ", ".join(repr(tier) for tier in missing)
            raise BadInput(f"--keys has no key for tier {names}; add it, or give a --key for all others")


def _allow_descriptors(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
