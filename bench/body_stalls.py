"""How long one hostile body keeps all other streams waiting: the longest step of the gateway's event loop while it is read, looked into and sent.

    .venv/bin/python bench/body_stalls.py [--mb 8,12] [--only WORDS] [--json PATH]

One body at a time: JSON of very many small things, deep nesting, escapes, media, stop strings; forms of many parts and absurd heads. With a
known length and in chunks, below the bound of what is held (8 MiB) and above it. CPU time of the gateway's process, which here has the
engine and the client too: their part is some milliseconds.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gateway_vs_nginx as base
import uvloop

PART_BYTES = 200_000
QUIET_S = 0.1
ANSWER_S = 30.0
CONTEXT_TOKENS = 100_000_000
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, MESSAGES, SPEECH = "/v1/responses", "/v1/messages", "/v1/audio/transcriptions"
EDGE = b"a" * 70
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"


def listed(item: bytes, before: bytes, after: bytes) -> Callable[[int], bytes]:
    """Bodies of a given size: ``item`` again and again."""
    return lambda size: before + b",".join([item] * (size // (len(item) + 1))) + after


def filled(filler: bytes, before: bytes, after: bytes) -> Callable[[int], bytes]:
    return lambda size: before + filler * (size // len(filler)) + after


def form(head: bytes) -> Callable[[int], bytes]:
    part = b"--%b\r\n%b\r\n\r\nv\r\n" % (EDGE, head)
    return filled(part, b"", b"--%b--\r\n" % EDGE)


MESSAGES_FIRST, LAST = b'{"messages":[', b'],"model":"m"}'
USER = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"a"}],'
FILE = b'--%b\r\ncontent-disposition: form-data; name="file"; filename="x"\r\n\r\n' % EDGE
FORMS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "messages": (CHAT, listed(b'{"role":"user","content":"b"}', MESSAGES_FIRST, LAST)),
    "messages of parts": (CHAT, listed(b'{"role":"user","content":[{"type":"text","text":"hello there"}]}', MESSAGES_FIRST, LAST)),
    "small objects": (CHAT, listed(b'{"a":"b"}', MESSAGES_FIRST, LAST)),
    "nested deeply": (CHAT, lambda size: b'{"messages":' + b"[" * (size // 2) + b"]" * (size // 2) + b',"model":"m"}'),
    "escapes": (CHAT, filled(b"\\n", b'{"messages":"', b'","model":"m"}')),
    "blanks": (CHAT, filled(b" ", b'{"messages":', b'[],"model":"m"}')),
    "fields": (CHAT, listed(b'"a":1', b"{", b',"model":"m"}')),
    "models": (CHAT, listed(b'"model":"m"', b"{", b',"messages":[]}')),
    "a long model": (CHAT, filled(b"m", b'{"messages":[],"model":"', b'"}')),
    "digits": (CHAT, filled(b"1", b'{"model":"m","messages":[],"max_tokens":', b"}")),
    "stop strings": (CHAT, listed(b'"a"', USER + b'"stop":[', b"]}")),
    "biases": (CHAT, listed(b'"1":1', USER + b'"logit_bias":{', b"}}")),
    "images": (CHAT, listed(b'{"type":"image_url","image_url":{"url":"a"}}', b'{"model":"m","messages":[{"content":[', b"]}]}")),
    "sound": (CHAT, listed(b'{"type":"input_audio","input_audio":{"data":"UklG"}}', b'{"model":"m","messages":[{"content":[', b"]}]}")),
    "prompts": (COMPLETIONS, listed(b'"a"', b'{"prompt":[', LAST)),
    "prompts escaped": (COMPLETIONS, listed(b'"\\n"', b'{"prompt":[', LAST)),
    "prompts of ids": (COMPLETIONS, listed(b"[1]", b'{"prompt":[', LAST)),
    "ids": (COMPLETIONS, listed(b"1234", b'{"prompt":[', LAST)),
    "inputs": (EMBEDDINGS, listed(b'"a"', b'{"input":[', LAST)),
    "inputs of responses": (RESPONSES, listed(b'{"role":"user","content":"b"}', b'{"input":[', LAST)),
    "system": (MESSAGES, listed(b'{"type":"text","text":"b"}', b'{"model":"m","max_tokens":5,"system":[', b'],"messages":[]}')),
    "parts of a form": (SPEECH, form(b'content-disposition: form-data; name="a"')),
    "heads of a form": (SPEECH, form(b"content-disposition:form-data;" * 2000)),
    "files of a form": (SPEECH, form(b"content-disposition: form-data; filename*" * 1400)),
    "edges of a form": (SPEECH, filled(b"\r\n--" + EDGE[1:] + b"b", FILE, b"\r\n--%b--\r\n" % EDGE)),
}


class Engine(asyncio.Protocol):
    """Answers once nothing comes any more."""

    def connection_made(self, transport) -> None:
        self.transport, self.timer = transport, None

    def data_received(self, _data) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(QUIET_S, self.transport.write, OK)

    def connection_lost(self, _error) -> None:
        if self.timer is not None:
            self.timer.cancel()


async def started_gateway() -> int:
    """Over one engine that takes whatever fits its context; returns the gateway's port."""
    from forebay.adapters.clock import LoopClock, RandomIds
    from forebay.adapters.upstream import HttpUpstream
    from forebay.gateway.service import Gateway, static_roster
    from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec

    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0)
    kind = EngineKind("attach", attach=(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",))
    spec = Spec((Pool("p", "m", kind),), (Model("m", CONTEXT_TOKENS),), DEFAULT_TIERS)
    gateway = Gateway(spec, LoopClock(), RandomIds(), HttpUpstream(), random.Random(1), base.NoSink(), "bench")
    roster = static_roster(spec)
    gateway.apply(type(roster)(roster.term, roster.version, roster.lease_s, tuple(base._wide(pool) for pool in roster.pools)))
    return await gateway.start("127.0.0.1", 0)


class Longest:
    """CPU seconds of the longest step of the loop since ``step_s`` was set to nothing."""

    def __init__(self) -> None:
        self.step_s = 0.0

    async def watch(self) -> None:
        while True:
            before_s = time.process_time()
            await asyncio.sleep(0)
            self.step_s = max(self.step_s, time.process_time() - before_s)


async def sent(port: int, target: str, body: bytes, chunked: bool) -> str:
    """Post it; returns the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    kind = b"multipart/form-data; boundary=" + EDGE if target == SPEECH else b"application/json"
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(body)
    writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: %b\r\n%b\r\n\r\n" % (target.encode(), kind, framing))
    try:
        for at in range(0, len(body), PART_BYTES):
            part = body[at : at + PART_BYTES]
            writer.write(base.chunked(part) if chunked else part)
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
        line = await asyncio.wait_for(reader.readline(), ANSWER_S)
    except ConnectionError:  # refused before it was all sent
        line = await reader.readline()
    except TimeoutError:
        line = b"- none"
    writer.close()
    return line.decode().split(" ")[1] if b" " in line else "closed"


async def measured(sizes_mb: list[float], only: list[str]) -> list[dict]:
    port, longest, rows = await started_gateway(), Longest(), []
    watching = asyncio.ensure_future(longest.watch())
    cases = [(mb, name, chunked) for mb in sizes_mb for name in FORMS for chunked in (False, True) if not only or name in only]
    for number, (mb, name, chunked) in enumerate(cases):
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {len(cases)}", end="", file=sys.stderr, flush=True)
        target, make = FORMS[name]
        body = make(int(mb * 1e6))
        await asyncio.sleep(QUIET_S)  # making it is a step too
        longest.step_s = 0.0
        status = await sent(port, target, body, chunked)
        rows.append({"mb": mb, "body": name, "chunked": chunked, "status": status, "longest_step_ms": round(longest.step_s * 1e3, 1)})
    watching.cancel()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", default="8,12", help="sizes of the bodies, in megabytes")
    parser.add_argument("--only", default="", help=f"of: {', '.join(FORMS)}")
    parser.add_argument("--json", metavar="PATH")
    args = parser.parse_args()
    only = [name for name in args.only.split(",") if name]
    if unknown := set(only) - FORMS.keys():
        parser.error(f"--only: no such body: {', '.join(sorted(unknown))}; there are {', '.join(FORMS)}")
    rows = uvloop.run(measured([float(mb) for mb in args.mb.split(",")], only))
    print(f"\n{'MB':>5}  {'body':20}{'sent':9}{'answer':>7}{'longest step, ms':>18}")
    for row in sorted(rows, key=lambda row: -row["longest_step_ms"]):
        sent_as = "chunks" if row["chunked"] else "length"
        print(f"{row['mb']:5g}  {row['body']:20}{sent_as:9}{row['status']:>7}{row['longest_step_ms']:18.1f}")
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
