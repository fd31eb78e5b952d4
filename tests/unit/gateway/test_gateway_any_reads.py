"""However the network cuts an engine's stream into reads, its client gets the very bytes, and as much is counted, as event by event."""

import asyncio
import bisect
import json
import os
import random
import re

import httptools
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.adapters.upstream import HttpUpstream
from forebay.adapters.upstream.client import Origin
from forebay.adapters.upstream.connection import EngineConnection
from forebay.adapters.upstream.exchange import HttpExchange
from forebay.gateway.answers import LAST_CHUNK
from forebay.gateway.asking import Wants
from forebay.gateway.emitted import Emitted, Stops
from forebay.gateway.sse import EventStream
from forebay.gateway.told import ToldStream

EXAMPLES = int(os.environ.get("FOREBAY_STREAM_EXAMPLES", "60"))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
IDS, RUNNING, USAGE = Wants(usage=True, ids=True), Wants(usage=True, running_usage=True), Wants(usage=True)
FRAME = {"id": "cmpl-1", "object": "x", "created": 7, "model": "m"}
WANTS = (IDS, RUNNING, USAGE, Wants(ids=True), Wants(running_usage=True), Wants())


class _Transport:
    def is_closing(self):
        return False

    def abort(self):
        pass

    close = pause_reading = resume_reading = abort

    def write(self, data):
        pass


class _Client:
    """A sink as `relay.Call` is one, as far as streams go."""

    answer = None

    def __init__(self, made):
        self.got, self.ended, self.stream, self._made = [], False, None, made

    def head(self, head):
        stream = self.stream = self._made(head.chunked)
        stream.report_at = 1
        self.data = stream.attach(self.got.append, self._attend, self._report)

    def _attend(self, wire, body, whole, last):
        piece = self.stream.feed(wire, body, whole, last)
        if piece:
            self.got.append(piece)

    def _report(self):
        self.stream.report_at = self.stream.events + 32

    def end(self, end, detail):
        self.ended = end


class _Body:
    """Reads a chunked body strictly."""

    def __init__(self):
        self.parts, self.whole = [], False

    def on_body(self, data):
        self.parts.append(data)

    def on_message_complete(self):
        self.whole = True


def through(reads, made, chunked):
    """(what the client is told, the stream, its log) of these reads of an engine's connection."""
    loop = asyncio.new_event_loop()
    upstream = HttpUpstream(loop)
    loop.close()
    upstream.closed = True  # nothing is kept for another request
    origin = Origin(upstream, "http://127.0.0.1:1")
    client = _Client(made)
    connection = EngineConnection(origin)
    connection.connection_made(_Transport())
    connection.start(HttpExchange(upstream, origin, b"POST / HTTP/1.1\r\n\r\n", client, b""))
    for read in reads:
        connection.data_received(read)
    told = b"".join(client.got)
    assert client.ended
    if chunked:
        body = _Body()
        parser = httptools.HttpResponseParser(body)
        parser.feed_data(HEAD + told)
        assert body.whole == (client.stream.trouble is None)
        told = b"".join(body.parts)
    return told, client.stream


texts = st.one_of(
    st.sampled_from(
        ["a", " the", "é", '"', "\\", '\\"', "\n", "\n\n", "data: ", '"finish_reason":null', '_tokens"', "\u2028", "", "}]}", "🙂"]
    ),
    st.text(max_size=12),
)
kinds = st.sampled_from(["text"] * 12 + ["role", "reason", "finish", "tool", "comment", "several", "stamp"])


def choice_of(chat, at, kind, text):
    """What vLLM says of one choice in one event."""
    choice = {"index": at % 2 if kind == "finish" else 0}
    if not chat:
        choice["text"] = text
    elif kind == "role":
        choice["delta"] = {"role": "assistant", "content": ""}
    elif kind == "tool":
        choice["delta"] = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
    else:
        choice["delta"] = {"reasoning_content" if kind == "reason" else "content": text}
    return choice | {"logprobs": None, "finish_reason": "stop" if kind == "finish" else None}


def event_of(wants, chat, at, count, kind, text):
    """One event with the ``count``-th token."""
    choice = choice_of(chat, at, kind, text)
    event = {**FRAME, "choices": [choice]}
    if wants.ids:
        choice["token_ids"] = [count] if kind != "several" else [count, count + 1000]
        if not chat:
            choice["prompt_token_ids"] = [1, 2, 3] if count == 1 else None
        elif count == 1:
            event["prompt_token_ids"] = [1, 2, 3]
    if kind == "stamp":
        event["system_fingerprint"] = "f"
    if wants.running_usage:
        event["usage"] = usage_of(count)
    return written(event)


def usage_of(count):
    return {"prompt_tokens": 3, "total_tokens": 3 + count, "completion_tokens": count}


@st.composite
def answers(draw):
    """(what was asked, events) of a stream like vLLM's."""
    wants, chat = draw(st.sampled_from(WANTS)), draw(st.booleans())
    count, events = 0, []
    for at, (kind, text) in enumerate(draw(st.lists(st.tuples(kinds, texts), max_size=24))):
        if kind == "comment":
            events.append(b": ping\n\n")
        else:
            count += 1
            events.append(event_of(wants, chat, at, count, kind, text))
    if draw(st.booleans()):
        last = {"delta": {"content": ""}} if chat else {"text": "z"}
        events.append(written({**FRAME, "choices": [{"index": 0, "logprobs": None, "finish_reason": "length", **last}]}))
    if wants.usage:
        said = {"system_fingerprint": "vllm-1"} if draw(st.booleans()) else {}
        events.append(written({**FRAME, "choices": [], "usage": usage_of(count), **said}))
    return wants, [*events, b"data: [DONE]\n\n"]


def written(event):
    return b"data: %b\n\n" % json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


def cut_anyhow(wire, chance):
    """Reads that end anywhere, and as often at the end of an event or of a few, as they do from an engine nearby."""
    ends = [found.end() for found in re.finditer(rb"}\n\n\r\n", wire)]
    at = 0
    while at < len(wire):
        later = ends[bisect.bisect(ends, at) :]
        near = chance.choice(later[:4]) if later and chance.random() < 0.6 else at + chance.choice([1, 3, 50, 300, 900])
        yield wire[at:near]
        at = near


def in_other_chunks(events, chance):
    """As an engine writes them that puts several events, or a part of one, in a chunk."""
    body = b"".join(events)
    at = 0
    while at < len(body):
        size = chance.choice([1, 7, 60, 400, 2000, len(events[0])])
        yield chunk(body[at : at + size])
        at += size


def counts(stream):
    """What is counted of it, and what it would be continued from."""
    told = [stream.trouble, stream.usage, stream.good, stream.finishes]
    if isinstance(stream, ToldStream):
        log = stream.emitted
        told += [stream.counted(), log.ids, log.pending, log.exact, log.missing, log.reasons, log.prompt_ids]
    return told


@settings(max_examples=EXAMPLES, deadline=None)
@given(answers(), st.booleans(), st.booleans(), st.integers(0, 2**32), st.sampled_from([None, ["xyz"]]))
def test_any_cut_into_reads_tells_the_client_the_same(answer, chunked, together, seed, stop):
    wants, events = answer
    chance = random.Random(seed)

    def made(engine_chunked):
        if not (wants.ids or wants.running_usage):
            return EventStream(engine_chunked, chunked, wants.usage)
        return ToldStream(engine_chunked, chunked, wants, Emitted(Stops(stop, False) if stop else None))

    expected, slow = through([HEAD, *map(chunk, events), LAST_CHUNK], made, chunked)
    wire = b"".join(in_other_chunks(events, chance) if together else map(chunk, events)) + LAST_CHUNK
    head, *reads = [HEAD, *cut_anyhow(wire, chance)]
    if chance.random() < 0.2:
        head += reads.pop(0)
    told, stream = through([head, *reads], made, chunked)
    assert told == expected
    assert counts(stream) == counts(slow)
