"""Many clients of all manners before engines of all manners, over real sockets: is what each client got its own answer, whole and in order?

    .venv/bin/python bench/stream_soak.py [--clients 300] [--seconds 40] [--seed 1] [--workers 0] [--slots 0] [--no-ids] [--json PATH]

Each token says whose it is and which: `<stream.number>`. Engines write evenly, in bursts, as fast as they can, or in odd pieces, and now
and then reset the connection inside an answer (which the gateway then has another one go on with, from token ids; with --no-ids no engine
tells any, and an error event has to end it), or break off or hang behind the last token, of which no client may notice anything. Clients read at once, slowly, leave in the middle, pipeline, or close their half (and are taken to have left). A token
that is another's, lost, doubled or out of turn is wrong, as is an answer that ends without `[DONE]` and without an error event, or is whole
and has not one finish reason, and the usage that was asked for.
Exit status 1 where anything was wrong.
"""

import argparse
import asyncio
import collections
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import uvloop

from forebay.testing.raw_client import RawClient

MODEL = "bench"
ENGINES = 3
CUT_SHARE = 0.04
BATCH_SHARE = 0.5
"""Where slots are few."""
ODD_END_SHARE = 0.15
ODD_ENDS = ("finish", "finish", "half a usage", "usage", "half of DONE", "DONE", "hangs")
"""Behind what an answer breaks off; or it hangs behind its finish reason."""
TOKENS = (5, 40, 80, 150, 400)
PACES_S = (0.0, 0.002, 0.01)
PAD_BYTES_MAX = 3000
SLOW_BUFFER_BYTES = 4096
READY_S = 60.0
MANNERS = ("plain", "plain", "slow", "leave", "pipeline", "half")
RESET = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER of no time: what closes then is reset."""

USAGE = {"stream_options": {"include_usage": True}}
PROBED = b'{"choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'

_ASKED = re.compile(rb"K=(\d+) N=(\d+)")
_TOKEN = re.compile(rb"<(\d+)\.(\d+)>")
_COUNTED = re.compile(rb'"completion_tokens":(\d+)')
_FINISHED = b'"finish_reason":"stop"'
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Answer:
    """What one engine says to one request: tokens ``start``..``total`` of stream ``key``."""

    def __init__(self, engine: "Engine", body: dict, key: int, total: int, start: int, chat: bool) -> None:
        self.engine, self.key, self.total, self.start, self.chat = engine, key, total, start, chat
        self.tells_ids = bool(body.get("return_token_ids"))
        self.chance = random.Random(f"{key} {start}")
        self.manner = self.chance.choice(("even", "burst", "fast", "odd"))
        cut = self.chance.random() < CUT_SHARE
        self.cut_at = self.chance.randrange(start, total) if cut and start < total else None
        self.odd_end = self.chance.choice(ODD_ENDS) if self.chance.random() < ODD_END_SHARE else ""

    def event(self, text: bytes, ids: str, reason: str = "null") -> bytes:
        told = f',"token_ids":[{ids}]' if self.tells_ids else ""
        said = '"delta":{"content":"%s"}' if self.chat else '"text":"%s"'
        choice = f'{{"index":0,{said % text.decode()},"finish_reason":{reason}{told}}}'
        return chunk(b'data: {"id":"c%d","choices":[%b]}\n\n' % (self.key, choice.encode()))

    def opening(self) -> bytes:
        prompt = f',"prompt_token_ids":[{self.key},{self.total}]' if self.tells_ids else ""
        delta = '"delta":{"role":"assistant","content":""}' if self.chat else '"text":""'
        first = f'{{"id":"c{self.key}","choices":[{{"index":0,{delta},"finish_reason":null}}]{prompt}}}'
        return chunk(b"data: %b\n\n" % first.encode())

    async def write(self) -> None:
        write = self.engine.transport.write
        write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + self.opening())
        number = self.start
        while number < self.total:
            if self.cut_at is not None and number >= self.cut_at:
                self.engine.cut(reset=self.chance.random() < 0.5)
                return
            until = min(self.total, number + (self.chance.randrange(1, 6) if self.manner == "burst" else 1))
            await self._piece(b"".join(self.event(self._token(each), str(each)) for each in range(number, until)))
            number = until
        await self._end()

    async def _end(self) -> None:
        """Piece by piece, as far as it gets."""
        counts = f'"prompt_tokens":{2 + self.start},"completion_tokens":{self.total - self.start}'
        usage = f'data: {{"id":"c{self.key}","choices":[],"usage":{{{counts}}}}}\n\n'.encode()
        done = b"data: [DONE]\n\n"
        pieces = {
            "finish": self.event(b"", "", '"stop"'),
            "half a usage": chunk(usage[:30]),
            "usage": chunk(usage[30:]),
            "half of DONE": chunk(done[:9]),
            "DONE": chunk(done[9:]),
        }
        until = "finish" if self.odd_end == "hangs" else self.odd_end
        for name, piece in pieces.items():
            self.engine.transport.write(piece)
            if name == until:
                break
        if not until:
            self.engine.transport.write(b"0\r\n\r\n")
        elif self.odd_end != "hangs":
            await asyncio.sleep(self.chance.choice((0.0, 0.005)))
            self.engine.cut(reset=self.chance.random() < 0.5)

    def _token(self, number: int) -> bytes:
        pad = b"" if self.chance.random() < 0.9 else b"y" * self.chance.randrange(PAD_BYTES_MAX)
        return b"<%d.%d>%b" % (self.key, number, pad)

    async def _piece(self, out: bytes) -> None:
        write = self.engine.transport.write
        if self.manner == "odd":
            at = self.chance.randrange(1, len(out))
            write(out[:at])
            await asyncio.sleep(0.001)
            write(out[at:])
        else:
            write(out)
        await self.engine.writable.wait()
        if self.manner != "fast":
            await asyncio.sleep(self.chance.choice(PACES_S))


class Engine(asyncio.Protocol):
    """One connection of an engine that answers `K=… N=…` with N tokens of stream K, and a prompt of token ids with the rest of them."""

    def connection_made(self, transport) -> None:
        self.transport, self.had = transport, b""
        self.answering: asyncio.Task | None = None
        self.writable = asyncio.Event()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, _error) -> None:
        if self.answering:
            self.answering.cancel()

    def cut(self, reset: bool) -> None:
        if reset:
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.had += data
        while (end := self.had.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self.had[:end])
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self.had) < whole:
                return
            head, body, self.had = self.had[:end], self.had[end + 4 : whole], self.had[whole:]
            self._asked(head, body)

    def _asked(self, head: bytes, body: bytes) -> None:
        if self.answering and not self.answering.done():
            broken("the gateway has two requests on one connection")
        if not (b"/completions" in head and body):
            self.transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")
            return
        asked, fields = _ASKED.search(body), json.loads(body)
        if not fields.get("stream"):  # is this replica well again?
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(PROBED), PROBED)
            )
            return
        if asked:
            key, total, start = int(asked[1]), int(asked[2]), 0
        else:
            key, total, *out = fields["prompt"]
            start = len(out)
            if out != list(range(start)):
                broken(f"stream {key} is to go on from {out}")
        self.answering = asyncio.ensure_future(Answer(self, fields, key, total, start, b"/chat/" in head).write())


def broken(what: str) -> NoReturn:
    """All engines end, so that the run counts as wrong."""
    print(what, file=sys.stderr, flush=True)
    os._exit(1)


async def engines_role() -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Engine, "127.0.0.1", 0, backlog=4096) for _ in range(ENGINES)]
    print(*[server.sockets[0].getsockname()[1] for server in servers], flush=True)
    await asyncio.Event().wait()


async def gateway_role(ports: list[str], workers: int, tells_ids: bool, slots: int) -> None:
    """Serve until SIGTERM; the port is the first line of output, once the relay workers have started."""
    from msgspec.structs import replace

    from forebay.adapters.clock import LoopClock, RandomIds
    from forebay.adapters.upstream import HttpUpstream
    from forebay.app.gateway_wiring import relay_workers
    from forebay.gateway.service import Gateway, static_roster
    from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec
    from forebay.testing.events import ListSink

    kind = EngineKind("attach", attach=tuple(f"http://127.0.0.1:{port}" for port in ports), continues=tells_ids)
    spec = Spec((Pool("p", MODEL, kind, queued_max=20_000),), (Model(MODEL, 131_072),), DEFAULT_TIERS, relay_workers=workers)
    gateway = Gateway(
        spec, LoopClock(), RandomIds(), HttpUpstream(), random.Random(1), ListSink(), "bench", crew=relay_workers(spec, print)
    )
    roster = static_roster(spec)
    if slots:
        replicas = [replace(each, capacity=replace(each.capacity, sequences=slots)) for each in roster.pools[0].replicas]
        roster = replace(roster, pools=(replace(roster.pools[0], replicas=tuple(replicas)),))
    gateway.apply(roster)
    port = await gateway.start("127.0.0.1", 0)
    for _ in range(int(READY_S / 0.05)):
        if gateway.lending is None or gateway.lending.workers == workers:
            break
        await asyncio.sleep(0.05)
    print(port, flush=True)
    await asyncio.Event().wait()


class Clients:
    """All clients of a run, and how their streams ended."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.ends: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.tokens = 0
        self._key = 0

    async def run(self, port: int) -> None:
        deadline_s = time.monotonic() + self.args.seconds
        chances = [random.Random(f"{self.args.seed} {number}") for number in range(self.args.clients)]
        await asyncio.gather(*[self._client(port, chance, deadline_s) for chance in chances])

    async def _client(self, port: int, chance: random.Random, deadline_s: float) -> None:
        while time.monotonic() < deadline_s:
            manner = chance.choice(MANNERS)
            client = await RawClient.connect(port)
            if manner == "slow":
                client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BUFFER_BYTES)
            for _ in range(1 if manner == "half" else chance.randrange(1, 4)):
                asked = [self._ask(client, chance) for _ in range(2 if manner == "pipeline" else 1)]
                if manner == "half":
                    client.writer.write_eof()
                stayed = [await self._read(client, key, total, manner, chance) for key, total in asked]
                if not all(stayed):
                    break
            if chance.random() < 0.5:
                client.close()
            else:
                client.writer.close()

    def _ask(self, client: RawClient, chance: random.Random) -> tuple[int, int]:
        self._key += 1
        key, total = self._key, chance.choice(TOKENS)
        tier = {"service_tier": "batch"} if self.args.slots and chance.random() < BATCH_SHARE else {}
        said = [{"role": "user", "content": f"K={key} N={total}"}]
        client.send("/v1/chat/completions", {"model": MODEL, "stream": True, "max_tokens": 500, "messages": said, **USAGE, **tier})
        return key, total

    async def _read(self, client: RawClient, key: int, total: int, manner: str, chance: random.Random) -> bool:
        """One answer; False: the connection is of no use any more."""
        leaves_after = chance.randrange(total) if manner == "leave" else None
        data, pieces, cut = b"", 0, False
        try:
            head = await client.head()
            if " 200 " not in head.split("\r\n")[0]:
                self.ends["refused"] += 1
                await client.reader.readexactly(int(_LENGTH.search(head.encode())[1]))
                return True
            while piece := await client.event():
                data, pieces = data + piece, pieces + 1
                if pieces - 1 == leaves_after:
                    self._judge(key, total, data, "left")
                    return False
                if manner == "slow" and chance.random() < 0.05:
                    await asyncio.sleep(chance.choice((0.01, 0.2)))
        except (EOFError, ConnectionError):  # readexactly's IncompleteReadError is one
            cut = True
        ended = (
            "left"
            if cut and manner == "half"
            else "cut"
            if cut
            else "error"
            if b'"error"' in data
            else "whole"
            if data.endswith(b"data: [DONE]\n\n")
            else "no end"
        )
        self._judge(key, total, data, ended)
        return not cut

    def _judge(self, key: int, total: int, data: bytes, ended: str) -> None:
        got = [(int(whose), int(number)) for whose, number in _TOKEN.findall(data)]
        self.tokens += len(got)
        self.ends[ended] += 1
        mine = got == [(key, number) for number in range(len(got))]
        counted = [int(count) for count in _COUNTED.findall(data)]
        lacks = ended == "whole" and (len(got) != total or data.count(_FINISHED) != 1 or not self._counts(counted, total))
        if not mine or ended in ("cut", "no end") or lacks:
            self.wrong.append(f"stream {key} of {total} tokens, {ended}: {len(got)} tokens, the last bytes {data[-120:]!r}")

    def _counts(self, counted: list[int], total: int) -> bool:
        """Events are counted where the engine told neither ids nor usage: no more than that can be known."""
        return counted == [total] or (self.args.no_ids and len(counted) == 1)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="relay workers behind the gateway")
    parser.add_argument("--slots", type=int, default=0, help="so many at a time for each engine, half of them batch, which gives way")
    parser.add_argument("--no-ids", action="store_true", help="engines tell no token ids")
    parser.add_argument("--json", metavar="PATH", help="write the counts as JSON; - for stdout")
    parser.add_argument("--engines", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--gateway-for", nargs="+", metavar="PORT", help=argparse.SUPPRESS)
    return parser.parse_args()


def start(*role: str) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen([sys.executable, __file__, *role], stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline()


def measured(args: argparse.Namespace) -> dict:
    engines, ports = start("--engines")
    options = ["--workers", str(args.workers), "--slots", str(args.slots), *(["--no-ids"] if args.no_ids else [])]
    gateway, port = start(*options, "--gateway-for", *ports.split())
    clients = Clients(args)
    try:
        uvloop.run(clients.run(int(port)))
        if engines.poll() is not None or gateway.poll() is not None:
            clients.wrong.append("the gateway or the engines died")
    finally:
        for process in (gateway, engines):
            process.send_signal(signal.SIGKILL)
            process.wait()
    return {"tokens": clients.tokens, **dict(sorted(clients.ends.items())), "wrong": clients.wrong}


def main() -> None:
    args = parsed()
    if args.engines:
        uvloop.run(engines_role())
    elif args.gateway_for:
        uvloop.run(gateway_role(args.gateway_for, args.workers, not args.no_ids, args.slots))
    else:
        result = measured(args)
        if args.json == "-":
            print(json.dumps(result))
        else:
            for name, value in result.items():
                print(f"{name:8}{len(value) if name == 'wrong' else value:>10}")
            print(*result["wrong"][:20], sep="\n")
        if args.json not in (None, "-"):
            Path(args.json).write_text(json.dumps(result, indent=2))
        sys.exit(1 if result["wrong"] else 0)


if __name__ == "__main__":
    main()
