"""`forebay explain`: why this many replicas, each term with its numbers, the binding one marked."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from forebay.cli import admin_client, output
from forebay.controller.status import Explanation


def command(
    pool: Annotated[str | None, typer.Option(help="Only this pool.")] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="A past time: ISO (2026-11-29T08:00:00Z), 15:28 (today, UTC), or -10m (ten minutes ago). Default: now."
        ),
    ] = None,
    admin: Annotated[str | None, typer.Option(help="Admin address. Default: found in the state folder.")] = None,
    state: Annotated[
        str | None,
        typer.Option(help="State folder of `forebay up`. Default: .forebay here, else the only one that runs.", show_default=False),
    ] = None,
    json: Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write JSON to PATH (- for stdout).")] = None,
) -> None:
    """Say why a pool has (or had) the replicas it has.

    Each decision was made of named terms: floors, triggers, holds and caps. The one marked with an arrow decided.

    Example: `forebay explain --pool chat --at=-10m` for ten minutes ago, `--at 08:00` for this morning at eight (UTC).
    """
    query = {name: value for name, value in (("pool", pool), ("at", at)) if value is not None}
    found = admin_client.ask(admin_client.admin_url(admin, state), "/v1/explain", query, list[Explanation])
    if json is not None:
        output.write_json(found, json)
        return
    console = output.console()
    for row in found:
        console.print(render(row))
        for alert in row.alerts:
            console.print(f"[bold red]! {alert.kind}[/bold red] {escape(alert.message)}")


def render(found: Explanation) -> Table:
    """The table of one pool's terms."""
    table = Table(title=f"{found.pool}: {found.desired} replicas at {found.at}", title_justify="left")
    table.add_column("")
    table.add_column("term", no_wrap=True)
    table.add_column("kind")
    table.add_column("replicas", justify="right")
    table.add_column("because")
    for term in found.terms:
        style = "bold" if term.binding else ""
        table.add_row("→" if term.binding else "", term.name, term.kind, str(term.replicas), escape(term.because), style=style)
    return table
