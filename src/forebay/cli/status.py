"""`forebay status`: a table of the fleet, live in a terminal."""

import sys
import time
from collections import Counter
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from forebay.cli import admin_client, output
from forebay.controller.gateways import ATTAINMENT_SAMPLES_MIN, ATTAINMENT_WINDOW_S, RATE_WINDOW_S
from forebay.controller.status import PoolStatus, ReplicaStatus, Status
from forebay.domain.units import format_duration

RATE, COST = "req/min*", "$ so far"
LEFT_OUT = f"preemptible tiers are left out; req/min is of the last {format_duration(RATE_WINDOW_S)}, and because names its own time"
FEW = (
    f"fewer than {ATTAINMENT_SAMPLES_MIN} first tokens of streams in the last {format_duration(ATTAINMENT_WINDOW_S)}; "
    "answers that aren't streamed have none to time"
)
UNSERVED = {"shed": "were refused", "failed": "failed", "truncated": "broke off"}
STATE_ORDER = ("ready", "ejected", "requested", "provisioning", "loading", "draining", "failed")


def command(
    admin: Annotated[
        str | None, typer.Option(help="Admin address, such as http://127.0.0.1:8081. Default: found in the state folder.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(help="State folder of `forebay up`. Default: .forebay here, else the only one that runs.", show_default=False),
    ] = None,
    watch: Annotated[
        bool | None, typer.Option("--watch/--once", help="Refresh until interrupted. Default: when stdout is a terminal.")
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between refreshes.", min=0.2)] = 1.0,
    json: Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write JSON to PATH (- for stdout) and exit.")] = None,
) -> None:
    """Show pools, replicas by state, what waits, and which term binds.

    A reading that is not known is shown as a dash with its reason: Forebay never turns "unknown" into a number.

    Example: `forebay status` beside a running `forebay up`; for scripts `forebay status --json - | jq '.pools[].replicas'`.
    """
    url = admin_client.admin_url(admin, state)
    found = admin_client.ask(url, "/v1/status", {}, Status)
    if json is not None:
        output.write_json(found, json)
        return
    console = output.console()
    if not (sys.stdout.isatty() if watch is None else watch):
        console.print(render(found))
        return
    with Live(render(found), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every)
                live.update(render(admin_client.ask(url, "/v1/status", {}, Status)), refresh=True)
        except KeyboardInterrupt:
            return


def render(found: Status) -> RenderableType:
    """The tables of ``found``."""
    table = Table(title=f"Forebay at {found.at}", title_justify="left")
    for column in ("pool", "wanted", "replicas", "waiting", RATE, "in time", "because", COST):
        table.add_column(column, justify="right" if column in {"wanted", "waiting", RATE, "in time", COST} else "left", overflow="fold")
    for pool in found.pools:
        table.add_row(*_row(pool))
    inside = " · † inside the engines" if any(pool.waiting_in_engines for pool in found.pools) else ""
    few = f"\n‡ {FEW}" if any(pool.unknown.get("ttft_attainment") == "few" for pool in found.pools) else ""
    parts: list[RenderableType] = [table, Text(f"* {LEFT_OUT}{inside}{few}", style="dim"), _replicas(found)]
    for pool in found.pools:
        parts += [Text(f"{pool.pool}: {words}", style="yellow") for words in _besides(pool)]
        parts += [Text(f"! {pool.pool}: {alert.kind} {alert.message}", style="bold red") for alert in pool.alerts]
    parts += [Text(f"! {problem}", style="bold red") for problem in found.problems]
    silent = [name for name, state in found.gateways.items() if state != "ok"]
    if silent:
        parts.append(Text(f"! silent gateways: {', '.join(silent)}", style="bold red"))
    return Group(*parts)


def _besides(pool: PoolStatus) -> list[str]:
    """What a pool's row leaves out, where there is any of it."""
    words = [f"{pool.waiting_preemptible} of preemptible tiers wait"] if pool.waiting_preemptible else []
    counts = pool.unserved or {}
    ended = [f"{counts[name]} {said}" for name, said in UNSERVED.items() if counts.get(name)]
    if ended:
        words.append(f"of {counts['arrived']} requests* of the last {format_duration(ATTAINMENT_WINDOW_S)} {', '.join(ended)}")
    more = f" ({len(pool.kv_differs) - 1} more so)" if len(pool.kv_differs) > 1 else ""
    return [*words, *(f"{told}{more}" for told in pool.kv_differs[:1])]


def _row(pool: PoolStatus) -> list[str]:
    counts = Counter(pool.replicas)
    counts.update(_state(row) for row in pool.detail)
    counts.subtract(row.state for row in pool.detail)
    states = ", ".join(f"{counts[state]} {state}" for state in STATE_ORDER if counts[state] > 0)
    return [
        f"{pool.pool}\n[dim]{escape(pool.model)}[/dim]",
        str(pool.desired) + (f"\n[dim]needs {pool.needed}[/dim]" if pool.needed is not None else ""),
        states or "none",
        _number(pool, "lanes_waiting", pool.waiting, "{:.0f}") + (f" + {pool.waiting_in_engines:.0f}†" if pool.waiting_in_engines else ""),
        _number(pool, "arrival_per_s", pool.arrival_per_min, "{:.0f}"),
        _number(pool, "ttft_attainment", None if pool.ttft_attainment is None else 100 * pool.ttft_attainment, "{:.1f}%"),
        f"[bold]{pool.binding}[/bold] {escape(pool.because)}",
        _usd(pool.cost_usd),
    ]


def _state(row: ReplicaStatus) -> str:
    """As a request meets it: a gateway knows that an engine is dead before who runs it does."""
    return "ejected" if row.ejected and row.state == "ready" else row.state


def _number(pool: PoolStatus, signal: str, value: float | None, form: str) -> str:
    why = pool.unknown.get(signal, "unknown")
    return f"– [dim]{why}{'‡' if why == 'few' else ''}[/dim]" if value is None else form.format(value)


def _usd(cost_usd: float | None) -> str:
    """A dash where no price is known."""
    return "–" if cost_usd is None else f"{cost_usd:.2f}"


def _replicas(found: Status) -> Table:
    table = Table(box=None, padding=(0, 2))
    for column in ("replica", "state", "for", "streams", "KV", "cold start", "address"):
        # Folded, never cut: an address is there to be copied.
        table.add_column(column, overflow="fold")
    for pool in found.pools:
        for row in pool.detail:
            table.add_row(
                row.id,
                _state(row) + (f" [red]{escape(row.problem)}[/red]" if row.problem else ""),
                format_duration(row.for_s),
                "–" if row.streams is None else str(row.streams),
                "–" if row.kv_usage is None else f"{100 * row.kv_usage:.0f}%",
                "–" if row.cold_start_s is None else format_duration(row.cold_start_s),
                row.url,
            )
    return table
