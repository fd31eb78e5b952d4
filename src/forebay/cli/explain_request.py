"""`forebay explain --request ID`: what the gateways decided about one request, on one screen."""

import http
import urllib.parse
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec
from rich.markup import escape
from rich.table import Table

from forebay.admission.candidates import Candidate
from forebay.cli import admin_client
from forebay.domain.errors import BadInput
from forebay.gateway.elsewhere import tells_most
from forebay.gateway.leaving import SAMPLE_EVERY
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
    "elsewhere": "what it goes on from, which another replica keeps",
}


class NotKnown(BadInput):
    """The gateway knows no such request, or no longer."""


class NeedsKey(BadInput):
    """Teams are configured, and no key was given."""


class _Error(msgspec.Struct):
    message: str


class _Told(msgspec.Struct):
    error: _Error


def told(request_id: str, gateway: str | None, state: str | None, key: str) -> Record:
    """The record: a gateway's, or, where none answers, all have forgotten it or no key is given, the history's. Raises what `ask` raises.

    A gateway tells a request's own team only; the history is a file of the operator's, who needs no key to read it.
    """
    try:
        return _latest(admin_client.gateway_urls(gateway, state), request_id, key)
    except (admin_client.NotRunning, NotKnown, NeedsKey) as error:
        try:
            return recorded(request_id, state)
        except BadInput as also:
            end = "" if str(error).endswith((".", ".)")) else "."
            raise type(error)(f"{error}{end} {also}") from None


def _latest(gateway_urls: Sequence[str], request_id: str, key: str) -> Record:
    """What the gateways know of it: one that forwarded it has a record too, which is told only where no other is.

    Raises what `ask` raises where none of them tells any: NotKnown where one of them answered.
    """
    found: list[Record] = []
    unknown: NotKnown | None = None
    silent: list[admin_client.NotRunning] = []
    for url in gateway_urls:
        try:
            found.append(ask(url, request_id, key))
        except NotKnown as error:
            unknown = error
        except admin_client.NotRunning as error:
            silent.append(error)
    if found:
        return max(found, key=tells_most)
    if unknown is None:
        raise silent[0]
    asked = f" ({len(gateway_urls)} gateways were asked.)" if len(gateway_urls) > 1 else ""
    raise NotKnown("; ".join((f"{unknown}{asked}", *map(str, silent))))


def recorded(request_id: str, state: str | None) -> Record:
    """The latest record under this id in the history file; raises BadInput where there is none."""
    with admin_client.history(state) as store:
        found = store.finished(request_id)
    if not found:
        raise BadInput(
            "Nor is it in the history, which keeps what was refused, tried again, continued or slow, "
            f"and of the others one in {SAMPLE_EVERY}."
        )
    try:
        records = [msgspec.json.decode(one.record, type=Record) for one in found if one.team == found[0].team]
        # Under one id there may have been several requests; two gateways tell of the latest if they had it at one time.
        latest = records[0]
        return max((one for one in records if one.arrived_unix_s + one.total_s >= latest.arrived_unix_s), key=tells_most)
    except msgspec.MsgspecError as error:
        raise BadInput(f"The history's record of it can't be read ({error}): a newer version's?") from None


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
        if key:
            raise BadInput("--key: found one that the gateway does not know; allowed: an API key of the request's team")
        raise NeedsKey(
            "--key: found none; give --key KEY of the request's team, the only one that a gateway tells. "
            "Whoever may read the history in the state folder (--state) needs none for what is there."
        )
    raise NotKnown(f"--request: {said}")


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
