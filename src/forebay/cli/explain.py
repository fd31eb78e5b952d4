"""`forebay explain`: why this many replicas, each term with its numbers, the binding one marked; or what was decided about one request."""

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from forebay.cli import admin_client, explain_request, output, request_record
from forebay.controller.status import Explanation
from forebay.domain.errors import BadInput


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
    request: Annotated[
        str | None, typer.Option(metavar="ID", help="Say instead what its gateway decided about one request, by its x-request-id.")
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The gateway to ask about --request. Default: --state's, else of every `up` on this machine."),
    ] = None,
    key: Annotated[
        str, typer.Option(help="API key of the request's team, where teams are configured; without one only the history is read.")
    ] = "",
    json: Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write JSON to PATH (- for stdout).")] = None,
) -> None:
    """Say why a pool has (or had) the replicas it has, or why a request was treated as it was.

    Each decision was made of named terms: floors, triggers, holds and caps. The one marked with an arrow decided.

    Example: `forebay explain --pool chat --at=-10m` for ten minutes ago, `--at 08:00` for this morning at eight (UTC),
    `--request req-1f-2 --key sk-…` for one request.
    """
    if request is not None:
        if pool is not None or at is not None or admin is not None:
            raise BadInput("--request: found beside --pool, --at or --admin; allowed: with --gateway, --state, --key and --json only")
        told = request_record.told(request, gateway, state, key)
        if json is not None:
            output.write_json(explain_request.as_json(told), json)
        else:
            output.console().print(explain_request.render(told))
        return
    if gateway is not None or key:
        raise BadInput("--gateway, --key: found without --request; allowed: --request ID, whose gateway they are for")
    query = {name: value for name, value in (("pool", pool), ("at", at)) if value is not None}
    found = admin_client.ask(admin_client.admin_url(admin, state), "/v1/explain", query, list[Explanation])
    if json is not None:
        output.write_json(found, json)
        return
    for row in found:
        show(row)


def show(row: Explanation) -> None:
    """One pool's terms, its posture where it isn't open, its alerts."""
    console = output.console()
    console.print(render(row))
    if row.posture_because:
        console.print(f"[bold]{escape(row.posture)}[/bold] {escape(row.posture_because)}")
    for alert in row.alerts:
        console.print(f"[bold red]! {escape(row.pool)}: {alert.kind}[/bold red] {escape(alert.message)}")


def render(found: Explanation) -> Table:
    """The table of one pool's terms."""
    table = Table(title=f"{found.pool}: {found.desired} replica{'s' * (found.desired != 1)} at {found.at}", title_justify="left")
    table.add_column("")
    table.add_column("term", no_wrap=True)
    table.add_column("kind")
    table.add_column("replicas", justify="right")
    table.add_column("because")
    for term in found.terms:
        style = "bold" if term.binding else ""
        table.add_row("→" if term.binding else "", term.name, term.kind, str(term.replicas), escape(term.because), style=style)
    return table
