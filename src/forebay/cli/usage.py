"""`forebay usage`: the ledger: tokens, time queued and requests refused, by who pays for them."""

import time
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from forebay.cli import admin_client, output
from forebay.controller.usage_report import UsageLine, UsageReport, by_of, day_of, usage_report


def command(
    since: Annotated[
        str | None, typer.Option(metavar="DAY", help="First day (UTC): 2026-11-01, yesterday, or -7d. Default: the ledger's first.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="Last day, which is in. Default: today.")] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Add up by some of day,team,model,tier,pool. Default: team,model,tier,pool.")
    ] = None,
    admin: Annotated[str | None, typer.Option(help="Ask this admin address, instead of reading the state folder.")] = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="State folder of `forebay up` or `forebay gateway`. Default: .forebay here, else the only one that runs.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[str | None, typer.Option("--json", metavar="PATH", help="Write JSON to PATH (- for stdout).")] = None,
) -> None:
    """Say who used how many tokens, waited how long and was refused how often.

    It is read from the history file, so it works after `forebay up` has ended too; what a gateway counted in its last second,
    or while no controller was there, comes into the ledger when both are there.

    Example: `forebay usage --since -30d --by team,model`; for a bill `forebay usage --since 2026-11-01 --until 2026-11-30 --json -`.
    """
    names = by_of(by)
    if admin is not None:
        query = {name: value for name, value in (("since", since), ("until", until), ("by", by)) if value is not None}
        found = admin_client.ask(admin_client.admin_url(admin, state), "/v1/usage", query, UsageReport)
    else:
        now_s = time.time()
        since_day = day_of("since", since, now_s) if since is not None else 0
        until_day = day_of("until", until, now_s) + 1 if until is not None else None
        with admin_client.history(state) as store:
            found = usage_report(store.usage(since_day, until_day), names, since_day, until_day)
    if json is not None:
        output.write_json(found, json)
        return
    output.console().print(render(found))


def render(found: UsageReport) -> Table:
    """A row for each line, and their sum."""
    days = f" from {found.since}" if found.since else ""
    days += f" to {found.until}" if found.until else ""
    table = Table(title=f"usage{days} (UTC)", title_justify="left", show_footer=len(found.lines) > 1)
    total = _numbers(found.total)
    for place, name in enumerate(found.by):
        table.add_column(name, footer="all" if not place else "", overflow="fold")
    for name, number in total.items():
        table.add_column(name, footer=number, justify="right")
    for line in found.lines:
        table.add_row(*(escape(str(getattr(line, name))) for name in found.by), *_numbers(line).values())
    return table


def _numbers(line: UsageLine) -> dict[str, str]:
    tokens = {"prompt tokens": line.prompt_tokens, "cached tokens": line.cached_tokens, "output tokens": line.output_tokens}
    ended = {"requests": line.requests, "shed": line.shed, "failed": line.failed + line.truncated, "left": line.left}
    numbers = {**ended, **tokens, "estimated tokens": line.counted_tokens}  # what no engine told
    return {**{name: f"{number:,}" for name, number in numbers.items()}, "queued": f"{line.queue_s:,.1f} s"}
