"""Hostile bytes into the gateway, whole and in pieces: what reaches an engine must be the same requests, each framed once.

Every input is a few requests, valid or not, with a key or without, that were mutated. It goes through a real connection and a real gateway
twice, in one read and cut at random places, with an engine that only records. It must hold that

1. nothing raises, and the gateway's own invariants stand afterwards (`Gateway.check`, no byte of a body held);
2. both ways give the client the same answers and the engine the same requests;
3. another parser (h11) finds in what each engine connection was sent exactly one request, and nothing after it.

``--parser`` leaves the gateway out: the reader alone, five times as fast, with llhttp for the other parser of 3.

Usage: python bench/http_fuzz.py [--inputs 1000000] [--seed 1] [--parser]
"""

import argparse
import asyncio
import collections
import itertools
import random
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import h11
import httptools
from gateway_vs_nginx import NoSink, _wide

from forebay import HANDLED_IN
from forebay.adapters.clock import LoopClock
from forebay.gateway.answers import ErrorReply
from forebay.gateway.http import ClientConnection
from forebay.gateway.intake import Intake
from forebay.gateway.peek import JsonPeek
from forebay.gateway.reader import RequestReader
from forebay.gateway.request import LargeRequest, Request
from forebay.gateway.service import Gateway, static_roster
from forebay.ports.upstream import End, ResponseHead
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Limits, Model, Pool, Spec, Team
from forebay.testing.ids import CountingIds

TEAMS = (Team("fuzz", (("sk-fuzz", "interactive"),)), Team("other", (("sk-other", "interactive"),)))
LIMITS = Limits(body_bytes_max=300, streamed_body_bytes_max=900, bodies_bytes_max=5_000, head_bytes_max=500)
CHAT = b'{"model":"bench","messages":[{"role":"user","content":"hi"}]}'
LARGE = b'{"model":"alias","messages":"%b"}' % (b"x" * 400)
FORM = b'--B\r\ncontent-disposition: form-data; name="model"\r\n\r\nalias\r\n--B\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n--B--\r\n'


def post(body: bytes, path: bytes = b"/v1/chat/completions", more: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n%b" % (path, more, len(body), body)


def chunked(body: bytes, size: int, path: bytes = b"/v1/chat/completions", trailer: bytes = b"") -> bytes:
    parts = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + size]), body[at : at + size]) for at in range(0, len(body), size))
    return b"POST %b HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n%b0\r\n%b\r\n" % (path, parts, trailer)


AUTHORIZATION = b"Authorization: Bearer sk-fuzz\r\n"
MULTIPART = b"content-type: multipart/form-data; boundary=B\r\n"
STRANGERS = (post(CHAT), chunked(CHAT, 7), post(LARGE), post(CHAT, more=b"Expect: 100-continue\r\n"))
_KNOWN = (
    post(CHAT),
    post(CHAT, more=b"x-request-id: mine\r\ntraceparent: 00-a-b-01\r\n"),
    post(CHAT, more=b"Connection: upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"),
    post(CHAT, more=b"Expect: 100-continue\r\n"),
    post(CHAT, more=b"connection: close\r\n"),
    post(CHAT.replace(b"bench", b"alias"), b"/v1/embeddings"),
    post(LARGE),
    post(LARGE.replace(b'{"model":"alias",', b"{").replace(b"}", b',"model":"bench"}')),
    post(FORM % (b"\0" * 50), b"/v1/audio/transcriptions", MULTIPART),
    post(FORM % (b"\0" * 500), b"/v1/audio/transcriptions", MULTIPART),
    post(b'{"model":"bench","input":"a"}', b"/v1/responses"),
    post(b'{"model":"bench","max_tokens":5,"messages":[]}', b"/v1/messages"),
    chunked(CHAT, 7),
    chunked(CHAT, 100, trailer=b"x-t: 1\r\n"),
    chunked(LARGE, 90),
    b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /v1/responses/resp_1 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /pause HTTP/1.1\r\nhost: a\r\n\r\n",
)
SEEDS = (*(seed.replace(b"\r\n", b"\r\n" + AUTHORIZATION, 1) for seed in _KNOWN), *STRANGERS)
SPLICES = (
    b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b":", b";", b"0\r\n\r\n", b"\r\n\r\n", b"Content-Length: 5\r\n", b"content-length: 0\r\n", b"Content-Length : 5\r\n",
    b"Transfer-Encoding: chunked\r\n", b"transfer-encoding: identity\r\n", b"Transfer-Encoding : chunked\r\n", b"connection: close\r\n", b"connection: content-length\r\n",
    b"Connection: transfer-encoding\r\n", b"Upgrade: websocket\r\n", b"expect: 100-continue\r\n", b"HTTP/1.0", b"HTTP/0.9", b"+", b"-", b"0x", b"ffffffffffffffff", b"1;a=b",
    b"POST /v1/chat/completions HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * 200, b"\xff", b"\\", b'"', b"--B", b" x: y\r\n", b"host: b\r\n", b"\x0b", b"\x85", b"%0d%0a",
)  # fmt: skip
_ID = re.compile(rb"(?m)^x-(?:request-id|forebay-queue-ms): [^\r\n]*\r\n")
_CLOSE = b"connection: close\r\n"
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
ANSWER = b'{"usage":{"prompt_tokens":3,"completion_tokens":1}}'
HEAD = ResponseHead(200, ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))), False, len(ANSWER))


class Wire:
    """A client's transport that records."""

    def __init__(self) -> None:
        self.said = b""
        self.ended = False

    def write(self, data: bytes) -> None:
        self.said += data

    def end(self) -> None:
        self.ended = True

    close = abort = write_eof = end

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def nothing(self, *_: object, **__: object) -> None:
        pass

    set_write_buffer_limits = pause_reading = resume_reading = nothing


class Sent:
    """One exchange with the engine, as it was sent."""

    def __init__(self, request: bytes, sink: Any, more: Any) -> None:
        self.wire, self.sink, self.more = request, sink, more
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.wire += data

    def written(self) -> None:
        self.more = None

    def pause(self) -> None:
        pass

    resume = pause

    def abort(self) -> None:
        self.aborted = True


class Recorder:
    """An upstream that answers nothing by itself."""

    def __init__(self) -> None:
        self.open: list[Sent] = []
        self.wires: list[bytes] = []

    def send(self, _: str, request: bytes, sink: Any, timeout_s: float | None = None, more: Any = None, body: bytes = b"") -> Sent:
        del timeout_s
        sent = Sent(request + body, sink, more)
        self.open.append(sent)
        return sent

    def begin(self) -> None:
        """Take the bodies that come later."""
        for sent in self.open:
            if sent.more is not None and not sent.aborted:
                sent.more.wanted()

    def answer(self) -> bool:
        """Answer what is whole; whether anything was."""
        ready = [sent for sent in self.open if sent.more is None or sent.aborted]
        self.open = [sent for sent in self.open if sent not in ready]
        for sent in ready:
            if not sent.aborted:
                self.wires.append(sent.wire)
                sent.sink.head(HEAD)
                sent.sink.data(ANSWER, ANSWER, True, True)
                sent.sink.end(End.COMPLETE, "")
        return bool(ready)

    def forget(self, _: str) -> None:
        pass

    async def close(self) -> None:
        pass


class Harness:
    """One gateway for all inputs."""

    def __init__(self) -> None:
        attach = EngineKind("attach", attach=("http://127.0.0.1:8000",))
        spec = Spec(
            (Pool("bench", "bench", attach, queued_max=100),), (Model("bench", 131_072, ("alias",)),), DEFAULT_TIERS, TEAMS, limits=LIMITS
        )
        self.upstream = Recorder()
        self.gateway = Gateway(spec, LoopClock(), CountingIds(), self.upstream, random.Random(1), NoSink(), "fuzz")
        self.looked = 0
        peek = self.gateway.http.peek
        self.gateway.http.peek = lambda request: self._count(peek(request))
        roster = static_roster(spec)
        self.gateway.apply(type(roster)(roster.term, roster.version, roster.lease_s, tuple(_wide(pool) for pool in roster.pools)))

    def _count(self, peek: Any) -> Any:
        self.looked += 1
        return peek

    def play(self, pieces: list[bytes]) -> tuple[bytes, list[bytes], bool]:
        """What the client and the engines got; whether a large body was looked into."""
        self.upstream.open, self.upstream.wires = [], []
        self.looked = 0
        connection, wire = ClientConnection(self.gateway.http), Wire()
        connection.connection_made(wire)  # type: ignore[arg-type]
        for piece in pieces:
            if wire.ended:
                break
            connection.data_received(piece)
            self.upstream.begin()
        while self.upstream.answer():
            self.upstream.begin()
        connection.connection_lost(None)
        self.gateway.check()
        held = {team: each.held_bytes for team, each in self.gateway._identity.holdings.items()}
        assert (self.gateway.http.bodies_bytes, held) == (0, {"fuzz": 0, "other": 0}), "a body is still held"
        return _ID.sub(b"", wire.said).replace(_INTERIM, b""), self.upstream.wires, self.looked > 0


class Taker:
    """The rest of a large body, and what became of the request."""

    def __init__(self, request: LargeRequest, wires: list[bytes]) -> None:
        self.request, self.wires = request, wires
        self.body = request.body

    def body_part(self, part: bytes) -> None:
        self.body += part

    def body_end(self) -> None:
        self.request.body = self.body
        self.wires.append(sent_to_engine(self.request))

    def body_refused(self, error: ErrorReply) -> None:
        pass


class Parser:
    """The reader alone, with the same face."""

    def __init__(self) -> None:
        self.looked = 0

    def _peek(self, _: Request) -> JsonPeek:
        self.looked += 1
        return JsonPeek()

    def play(self, pieces: list[bytes]) -> tuple[bytes, list[bytes], bool]:
        self.looked = 0
        intake = Intake(LIMITS, self._peek)
        reader = RequestReader(intake)
        wires: list[bytes] = []
        large: LargeRequest | None = None
        goes_on = True
        for piece in pieces:
            rest = piece
            while rest and goes_on and reader.refused is None:
                rest = reader.feed(rest)
                request, reader.whole = reader.whole, None
                if request is not None:
                    intake.bodies_bytes -= request.held_bytes
                    request.held_bytes = 0
                if isinstance(request, LargeRequest) and not request.ended:
                    large = request
                    large.taker = Taker(request, wires)
                elif request is not None:
                    wires.append(sent_to_engine(request))
                    goes_on = request.keep_alive
                elif large is not None and large.ended:
                    goes_on, large = large.keep_alive, None
        refused = reader.refused.status if reader.refused is not None and goes_on else 0
        reader.close()
        assert intake.bodies_bytes == 0, "a body is still held"
        return b"%d" % refused, wires, self.looked > 0


class Llhttp:
    """What llhttp finds."""

    def __init__(self) -> None:
        self.messages, self.lengths, self.body = 0, 0, b""

    def on_header(self, name: bytes, _: bytes) -> None:
        self.lengths += name.lower() in (b"content-length", b"transfer-encoding")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.messages += 1


def sent_to_engine(request: Request) -> bytes:
    """As the gateway frames it; raises AssertionError where llhttp does not find that one request in it."""
    wire = b"POST /x HTTP/1.1\r\nhost: e\r\n%bcontent-length: %d\r\n\r\n%b" % (request.facts.forwarded, len(request.body), request.body)
    found = Llhttp()
    httptools.HttpRequestParser(found).feed_data(wire)
    assert (found.messages, found.lengths, found.body) == (1, 1, request.body), f"another request: {wire!r}"
    return b"%b %b %b" % (request.method, request.target, wire)


def one_request(wire: bytes) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
    """Another parser's view of what an engine was sent: target, headers but for the framing, body."""
    engine = h11.Connection(h11.SERVER, max_incomplete_event_size=10_000)
    engine.receive_data(wire)
    request = engine.next_event()
    assert isinstance(request, h11.Request), f"no request: {wire!r}"
    framing = [name for name, _ in request.headers if name in (b"content-length", b"transfer-encoding")]
    assert len(framing) == 1, f"framed {len(framing)} times: {wire!r}"
    body = b""
    while isinstance(event := engine.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage), f"not whole: {wire!r}"
    assert engine.trailing_data[0] == b"", f"something follows: {wire!r}"
    return bytes(request.target), [header for header in request.headers if header[0] not in (*framing, b"x-request-id")], body


def alike(whole: tuple[bytes, list[bytes], bool], apart: tuple[bytes, list[bytes], bool], judge: Callable[[bytes], object]) -> bool:
    """Whether both tell the same. Where a body was large, it may be judged by what had come of it, which ends one of them earlier."""
    sent, parts = [[judge(wire) for wire in wires] for wires in (whole[1], apart[1])]
    said, pieces = whole[0].replace(_CLOSE, b""), apart[0].replace(_CLOSE, b"")
    if whole[2] or apart[2]:
        count = min(len(sent), len(parts))
        return sent[:count] == parts[:count]
    return (said, sent) == (pieces, parts)


def mutated(chance: random.Random) -> bytes:
    data = b"".join(chance.choice(SEEDS) for _ in range(chance.choice((1, 1, 1, 2, 3))))
    for _ in range(chance.choice((0, 1, 1, 2, 3, 5))):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0:
            data = data[:at] + chance.choice(SPLICES) + data[at:]
        elif kind == 1:  # where lines end
            ends = [match.start() for match in re.finditer(rb"\r\n", data)]
            if ends:
                place = chance.choice(ends)
                data = data[: place + 2] + chance.choice(SPLICES) + data[place + 2 :]
        elif kind == 2:
            data = data[:at] + data[at + chance.randrange(1, 8) :]
        elif kind == 3:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        elif kind == 4:
            other = chance.randrange(len(data) + 1)
            data = data[: min(at, other)] + data[min(at, other) : max(at, other)] * 2 + data[max(at, other) :]
        else:
            data = re.sub(rb"(?<=: )\d+", lambda _: b"%d" % chance.randrange(1000), data, count=1)
    return data


def cut(data: bytes, chance: random.Random) -> list[bytes]:
    if chance.random() < 0.05:
        return [bytes([byte]) for byte in data]
    places = sorted({chance.randrange(len(data) + 1) for _ in range(chance.randrange(1, 5))} | {0, len(data)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


async def fuzz(inputs: int, seed: int, parser: bool) -> None:
    chance = random.Random(seed)
    harness: Harness | Parser = Parser() if parser else Harness()
    judge: Callable[[bytes], object] = bytes if parser else one_request
    seen: collections.Counter[str] = collections.Counter()
    begun_s = time.process_time()
    for number in range(inputs):
        data = mutated(chance)
        pieces = cut(data, chance)
        try:
            whole, apart = harness.play([data]), harness.play(pieces)
            assert alike(whole, apart, judge), f"differs:\n{whole}\n{apart}"
        except Exception:
            print(f"input {number} of seed {seed}: {data!r}\ncut as {[len(piece) for piece in pieces]}", file=sys.stderr)
            raise
        seen["requests to engines"] += len(whole[1])
        if parser:
            seen[f"refused with {whole[0].decode()}" if whole[0] != b"0" else "not refused"] += 1
        for status in re.findall(rb"HTTP/1\.1 (\d+) ", whole[0]):
            seen[f"answers {status.decode()}"] += 1
        seen["with a large body"] += whole[2]
    spent_s = time.process_time() - begun_s
    print(
        f"{inputs} inputs, each whole and in pieces, handled in {HANDLED_IN}: no failure, {spent_s:.0f} CPU seconds ({spent_s / inputs * 1e6:.0f} µs each)"
    )
    for name, count in sorted(seen.items()):
        print(f"  {name:24}{count:>10}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parser", action="store_true")
    args = parser.parse_args()
    asyncio.run(fuzz(args.inputs, args.seed, args.parser))


if __name__ == "__main__":
    main()
