"""One event, one line, whatever is in it; a stream that is gone is nobody's error."""

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.adapters.log import LogSink
from forebay.domain.events import Event

EVENT = Event(
    "replica_ready",
    12.5,
    1_790_000_000.25,
    "chat",
    "chat-1: after start 42.0s",
    {"replica": "chat-1", "cold_start_s": 42.0, "why": "two words"},
)


def lines(event, **options):
    stream = io.StringIO()
    LogSink(stream, **options).emit(event)
    return stream.getvalue()


def test_a_line_for_people():
    assert lines(EVENT) == (
        '2026-09-21T14:13:20.250Z replica_ready pool=chat chat-1: after start 42.0s replica=chat-1 cold_start_s=42 why="two words"\n'
    )


def test_a_line_for_machines():
    assert json.loads(lines(EVENT, as_json=True)) == {
        "time": "2026-09-21T14:13:20.250Z",
        "kind": "replica_ready",
        "pool": "chat",
        "message": "chat-1: after start 42.0s",
        "world_s": 12.5,
        "detail": EVENT.detail,
    }


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60), st.text(max_size=20), st.sampled_from([0.0, 1e300, float("nan"), -1e12]), st.booleans())
def test_nothing_starts_a_second_line(message, value, wall_s, as_json):
    text = lines(Event("alert", 0.0, wall_s, "chat", message, {"value": value}), as_json=as_json)
    assert text.endswith("\n")
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("error", [BrokenPipeError, ValueError])
def test_a_stream_that_is_gone_is_counted(error):
    class Gone(io.StringIO):
        def write(self, text):
            raise error

    sink = LogSink(Gone())
    sink.emit(EVENT)
    assert sink.lost == 1
