"""The admin API over any source: JSON, errors in words, Prometheus text; asked as an ASGI server would."""

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.parser import text_string_to_metric_families

from forebay.console.admin import EVENTS_MAX, application
from forebay.domain.errors import BadInput
from forebay.domain.events import Event
from forebay.testing import loop


class Scripted:
    """A source that says what it was asked."""

    def __init__(self):
        self.registry = CollectorRegistry()
        Gauge("forebay_test", "A gauge", ["pool"], registry=self.registry).labels('a"b').set(2)

    def status(self):
        return {"at": "now"}

    def explain(self, pool, at):
        if pool == "nope":
            raise BadInput("pool: found 'nope'; allowed: chat")
        return [{"pool": pool, "at": at}]

    def recent_events(self, limit):
        return [Event("scale", 1.0, 2.0, "chat", f"{limit}")]


def ask(target, method="GET"):
    """(status, content type, body) of the answer to ``target``."""
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "headers": [],
        "server": ("127.0.0.1", 1),
        "client": ("127.0.0.1", 2),
    }
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    async def main():
        await application(Scripted())(scope, receive, send)

    loop.run(main)
    start, *body = sent
    return start["status"], dict(start["headers"])[b"content-type"].decode(), b"".join(part["body"] for part in body)


def test_health_and_status():
    assert ask("/health") == (200, "application/json", b'{"status":"ok"}')
    assert ask("/v1/status") == (200, "application/json", b'{"at":"now"}')


def test_explain_passes_on_what_was_asked():
    assert msgspec.json.decode(ask("/v1/explain")[2]) == [{"pool": None, "at": None}]
    assert msgspec.json.decode(ask("/v1/explain?pool=chat&at=2026-11-29T08:00:00%2B01:00")[2]) == [
        {"pool": "chat", "at": "2026-11-29T08:00:00+01:00"}
    ]
    assert ask("/v1/explain?pool=nope") == (400, "application/json", b"""{"error":"pool: found 'nope'; allowed: chat"}""")


@pytest.mark.parametrize(("query", "limit"), [("", "100"), ("?limit=1", "1"), (f"?limit={EVENTS_MAX}", str(EVENTS_MAX))])
def test_events(query, limit):
    status, _, body = ask(f"/v1/events{query}")
    (event,) = msgspec.json.decode(body, type=list[Event])
    assert (status, event.kind, event.message) == (200, "scale", limit)


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "ten", "1.5", "", "%C2%B2", "9" * 5000])
def test_a_limit_out_of_bounds_is_said(limit):
    status, _, body = ask(f"/v1/events?limit={limit}")
    assert status == 400
    words = msgspec.json.decode(body)["error"]
    assert words.startswith("limit: found")
    assert words.endswith("allowed: a whole number from 1 to 1000")
    assert len(words) < 200


def test_metrics_are_prometheus_text():
    status, content_type, body = ask("/metrics")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    (family,) = text_string_to_metric_families(body.decode())
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"pool": 'a"b'}, 2.0)]


@pytest.mark.parametrize(("target", "method", "status"), [("/v1/nothing", "GET", 404), ("/v1/status", "POST", 405), ("/", "GET", 404)])
def test_it_only_answers_what_it_knows_and_changes_nothing(target, method, status):
    assert ask(target, method)[0] == status
