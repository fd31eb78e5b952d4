"""`forebay explain --request ID`: what one gateway decided about one request, on one screen."""

import http
import urllib.parse
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from rich.markup import escape
from rich.table import Table

from forebay.cli import admin_client
from forebay.domain.errors import BadInput
from forebay.gateway.records import REQUESTS, Record

_WAITED_FOR = {
    "slots": "a sequence slot",
    "kv": "room in the KV cache",
    "prefill": "prompts before it to be prefilled",
    "pace": "steps short enough for the inter-token promise",
    "kept": "room that is kept for a larger request",
    "turn": "its turn, behind others",
    "event": "a scheduled event to have its replicas",
    "replica": "a replica that can hold it",
}


class _Error(msgspec.Struct):
    message: str


class _Told(msgspec.Struct):
    error: _Error


def ask(gateway_url: str, request_id: str, key: str) -> Record:
    """The record; raises BadInput with the gateway's words where it tells none, NotRunning where none answers."""
    status, body = admin_client.fetch(f"{gateway_url}{REQUESTS.decode()}{urllib.parse.quote(request_id, safe='')}", key)
    try:
        if status == http.HTTPStatus.OK:
            return msgspec.json.decode(body, type=Record)
        said = msgspec.json.decode(body, type=_Told).error.message
    except msgspec.MsgspecError:
        raise admin_client.NotRunning(
            f"{gateway_url} answered {status}, but not as a gateway of Forebay does; name one with --gateway"
        ) from None
    if status == http.HTTPStatus.UNAUTHORIZED:
        raise BadInput(f"--key: {said} Only a request's own team may ask")
    raise BadInput(f"--request: {said}")


def render(record: Record) -> Table:
    """One row for each thing that was decided or happened."""
    table = Table(title=f"request {escape(record.id)}: {record.outcome or record.state}", title_justify="left", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in _rows(record):
        table.add_row(name, escape(text))
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
