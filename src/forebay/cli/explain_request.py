"""`forebay explain --request ID`: what the gateways decided about one request, on one screen."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from forebay.admission.candidates import Candidate
from forebay.cli.request_record import Told
from forebay.gateway.records import Record

_WAITED_FOR = {
    "slots": "a sequence slot",
    "kv": "room in the KV cache",
    "prefill": "prompts before it to be prefilled",
    "pace": "steps short enough for the inter-token promise",
    "kept": "room that is kept for a larger request",
    "turn": "its turn, behind others",
    "event": "a scheduled event to have its replicas",
    "replica": "a replica that can hold it",
    "elsewhere": "what it goes on from, which another replica keeps",
}


def as_json(told: Told) -> dict[str, Any]:
    """The record's own fields, and who told it."""
    return {**msgspec.to_builtins(told.record), "told_by": told.by, "told_at": told.at, "told_since": told.since}


def render(told: Told) -> Table:
    """One row for each thing that was decided or happened, and at last who tells it."""
    record = told.record
    table = Table(title=f"request {escape(record.id)}: {record.outcome or record.state}", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in _rows(record):
        table.add_row(name, escape(text))
    table.add_row("told by", escape(f"the {told.by} {told.at}{f', since {told.since}' if told.since else ''}"))
    return table


def _rows(record: Record) -> Iterator[tuple[str, str]]:
    yield "who", f"team {record.team}, tier {record.tier}, pool {record.pool}"
    yield "arrived", datetime.fromtimestamp(record.arrived_unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if record.way:
        yield "instead", record.way
    yield "estimate", f"{record.estimated_prompt_tokens} prompt and {record.estimated_output_tokens} output tokens"
    waited = f"{record.queue_s:.3f} s"
    yield "waited", f"{waited}, at first for {_WAITED_FOR.get(record.waited_for, record.waited_for)}" if record.waited_for else waited
    place = record.place
    if place is not None:
        starts = "unknown" if place.starts_in_s is None else f"in about {place.starts_in_s:.1f} s"
        yield "in line", f"{place.ahead} requests ({place.ahead_tokens} tokens) start before it; starts {starts}"
        yield "at most", f"{place.refused_in_s:.1f} s more, then it is refused"
        if place.short_of is not None:
            yield "short of", _WAITED_FOR.get(place.short_of.value, place.short_of.value)
    yield from _went(record)
    if record.prompt_tokens is not None:
        count = "the engine's count" if record.exact else "counted on the way"
        yield "metered", f"{record.prompt_tokens} prompt and {record.output_tokens} output tokens ({count})"
    if record.ttft_s is not None:
        yield "first content", f"after {record.ttft_s:.3f} s"
    yield ("took" if record.outcome else "so far"), f"{record.total_s:.3f} s"


def _went(record: Record) -> Iterator[tuple[str, str]]:
    if record.replica:
        yield "replica", record.replica + (f", after {' and '.join(record.tried)} failed it" if record.tried else "")
    if record.left:
        yield "overflowed", " → ".join((*record.left, record.pool))
    for one in record.candidates:
        yield ("chosen" if one.chosen else "or"), _score(one)
    yield from _permitted(record)
    if record.continued:
        yield "continued", f"{record.continued} × on another replica"
    if record.preempted:
        yield "preempted", f"{record.preempted} ×, by more urgent requests"
    if record.reason:
        yield "refused", record.reason
    if record.why:
        yield "why", record.why
    if record.retry_after_s is not None:
        yield "told", f"to come back after {record.retry_after_s:.1f} s"


def _permitted(record: Record) -> Iterator[tuple[str, str]]:
    permit, share = record.permit, record.team_share
    if permit is not None:
        took = f"{permit.kv_tokens} tokens of KV, {permit.prefill_tokens} to prefill"
        yield "permit", f"{took}, {permit.sequences} sequence{'s' * (permit.sequences != 1)}"
    if share is not None:
        others = (
            f"beside {share.waiting_teams} other team{'s' * (share.waiting_teams != 1)} that waited"
            if share.waiting_teams
            else "no other team waited"
        )
        yield "team share", f"{100 * share.given:.1f} % of what the lane has given, {100 * share.due:.1f} % due: {others}"


def _score(one: Candidate) -> str:
    lacked = f", short of {_WAITED_FOR.get(one.short_of, one.short_of)}" if one.short_of not in {"", "failed"} else ""
    failed = ", which had failed it" if one.short_of == "failed" else ""
    cached = f", {one.cached_tokens} tokens of the prompt cached" if one.cached_tokens else ""
    prefill = f", {one.prefill_tokens} tokens to prefill before it" if one.prefill_tokens else ""
    return f"{one.replica}: load {100 * one.load:.0f} %, {one.streams} streams{prefill}{cached}{lacked}{failed}"
