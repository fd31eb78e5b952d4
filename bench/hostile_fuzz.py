"""Hostile engines and clients around one whole gateway, its modules compiled; and the same in Python: both must do the same.

Every input is a small world in virtual time (`testing.loop`): a gateway, two engines, a few clients. Clients send bodies with absurd
values in the fields that are read, read slowly, or leave at any moment; engines answer with whole answers and streams that were
mutated, cut anywhere, or broken off. It must hold that

1. nothing raises, and every client is answered, or its connection ends;
2. when all have left, no permit, no body and no request is left, and the page of metrics can be read;
3. ``--digests FILE`` writes what clients and engines got, and what was counted, by input: with the same seed the file is the same
   with ``FOREBAY_PURE=1``.

Usage: python bench/hostile_fuzz.py [--inputs 20000] [--seed 1] [--digests FILE] [--only N]
"""

import argparse
import asyncio
import collections
import hashlib
import json
import random
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from forebay import HANDLED_IN
from forebay.adapters.upstream import HttpUpstream
from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.gateway.carrying import Worker
from forebay.gateway.service import Gateway
from forebay.spec.types import EngineKind, Limits, Model, Pool, Spec, Team, TeamLimits, Tier
from forebay.testing.clock import LoopClock
from forebay.testing.crew import FakeCrew
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import Answer, FakeEngine, Seen
from forebay.testing.ids import CountingIds
from forebay.testing.loop import CallbackErrors, run

CAPACITY = Capacity(
    kv_tokens=20_000, sequences=3, prefill_tokens=8_000, prefill_tokens_per_s=10_000.0, decode_tokens_per_s=1000.0, context_tokens=8192
)
TIERS = (
    Tier("interactive", rank=0, ttft_s=1.0, longest_wait_s=5.0),
    Tier("batch", rank=1, ttft_s=60.0, longest_wait_s=20.0, preemptible=True),
)
LIMITS = Limits(body_bytes_max=200_000, idle_s=8.0, total_s=20.0, client_buffer_bytes_max=4096)
TEAMS = (
    Team("mail", keys=(("sk-mail-1234", "interactive"), ("sk-bulk-1234", "batch"))),
    Team("capped", keys=(("sk-capped-1", "interactive"),), limits=TeamLimits(tokens_per_minute=5000, requests_in_flight=2)),
)
KEYS = ("sk-mail-1234", "sk-bulk-1234", "sk-capped-1")
END_S = 400.0
"""Long enough for three tries of three requests, one after the other."""
BIG = (2**31, 2**53, 2**63, 2**64, 2**70, 10**400, -(10**400))
ABSURD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 1.0, 5.5, -2.5, 1e308, "", "x", "5", "true", "NaN", [], {}, [1], [None], [[]], {"a": 1}, "é\u2028\0", ["x"] * 2000, *BIG,
)  # fmt: skip
FIELDS = (
    *(
        "model",
        "stream",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "n",
        "service_tier",
        "stream_options",
        "stop",
        "messages",
    ),
    *("return_token_ids", "include_stop_str_in_output", "prompt", "input", "min_tokens", "temperature", "tools", "previous_response_id"),
)
PATHS = (
    *["/v1/chat/completions"] * 8, *["/v1/completions"] * 4, "/v1/responses", "/v1/responses", "/v1/messages", "/v1/messages", "/v1/embeddings", "/v1/rerank",
    "/v1/audio/speech", "/tokenize",
)  # fmt: skip
HEADERS = (
    *("x-stainless-read-timeout: 2", "x-stainless-read-timeout: nan", "x-stainless-read-timeout: 1e400", "x-forebay-deadline: -1"),
    *("x-forebay-deadline: 700", "x-forebay-deadline: 999999999999", "x-request-id: mine", "x-request-id: \udcff", "connection: close"),
    *("x-forebay-hop: abc", "x-forebay-hop-waited: 99999999999999999999", "x-forebay-hop-late: 1", "traceparent: " + "0" * 3000),
)
NUMBERS = (b"null", b"-1", b"1.5", b'"3"', b"1e400", b"9" * 30, b"9" * 400, b"9" * 5000, b"[]", b"{}", b"true", b"007", b"2147483648")
SPLICES = (
    b"\r\n", b"\n\n", b"\n", b"\r\n\r\n", b"0\r\n\r\n", b"\0", b"\xff\xfe", b'"', b"\\", b"\\u", b"{", b"}", b"[", b"data: ", b"data: [DONE]\n\n", b": ping\n\n",
    b'data: {"error":{"message":"no","code":%b}}\n\n', b'"finish_reason":"abort"', b'"finish_reason":"stop"', b"f" * 20 + b"\r\n", b"-1\r\n", b"transfer-encoding: chunked\r\n",
    b"content-length: 5\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n", b"x: " + b"y" * 70_000 + b"\r\n", b"[" * 3000, b"z" * 5000,
)  # fmt: skip
TAILS = (
    b',"model":"llama"}', b',"model":7}', b',"stream":true,"stream":false}', b',"stre\\u0061m":true}', b',"stream_options":null}', b',"stream_options":{}}',
    b',"stream_options":{"include_usage":1}}', b',"return_token_ids":null}', b',"a":' + b"[" * 5000 + b"]" * 5000 + b"}", b"} ", b"}\0", b"}}", b"", b',"a":NaN}',
    b',"a":"\xff"}', b',"stop":"' + b"s" * 90_000 + b'"}', b',"n":1.0}', b',"n":"2"}', b',"max_tokens":"5","max_tokens":7}',
)  # fmt: skip
CODES = (b"400", b"404", b"422", b"419", b"450", b"499", b"429", b"500", b"503", b"999", b"-1", b'"400"', b"null", b"1e3", b"9" * 40)


def asked(chance: random.Random, path: str) -> dict[str, Any]:
    """A body, mostly right."""
    body: dict[str, Any] = {"model": chance.choice(("llama", "llama", "llama", "alias", "nobody"))}
    if "completions" in path or path == "/v1/messages":
        body |= {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path or "messages" in path else {"prompt": "hi"}
    else:
        body |= {"input": "hi"}
    body |= {"stream": True} if chance.random() < 0.7 else {}
    body |= {"max_tokens": chance.randrange(1, 200)} if chance.random() < 0.5 else {}
    body |= {"stream_options": {"include_usage": True}} if chance.random() < 0.3 else {}
    for _ in range(chance.choice((0, 0, 0, 0, 1, 1, 2, 3))):
        body[chance.choice(FIELDS)] = chance.choice(ABSURD)
    if chance.random() < 0.05:
        del body["model"]
    if chance.random() < 0.05:
        body["service_tier"] = chance.choice(("batch", "flex", "interactive", "auto"))
    if chance.random() < 0.05:
        body["pad"] = "x" * chance.choice((70_000, 110_000, 250_000))
    return body


def token(chance: random.Random, path: str, number: int, ids: bool, running: bool) -> bytes:
    """One event of content."""
    if path == "/v1/responses":
        return (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"w","sequence_number":%d}\n\n' % number
        )
    if path == "/v1/messages":
        return b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":"text_delta","text":"w"}}\n\n'
    text = chance.choice((b"word ", b"a", b"\\u00e9", b"\xc3\xa9", b"\xff")) if chance.random() < 0.1 else b"word "
    content = b'"delta":{"content":"%b"}' % text if "chat" in path else b'"text":"%b"' % text
    more = (
        b',"token_ids":[%b]'
        % (chance.choice((b"x", b'"5"', b"-4", b"007", b"9" * 5000)) if chance.random() < 0.02 else b"%d" % (100 + number))
        if ids
        else b""
    )
    usage = (
        b',"usage":{"prompt_tokens":5,"total_tokens":%d,"completion_tokens":%b}' % (5 + number, odd(chance, b"%d" % number))
        if running
        else b""
    )
    return (
        b'data: {"id":"c1","object":"o","created":1,"model":"llama","choices":[{"index":0,%b,"logprobs":null,"finish_reason":null%b}]%b}\n\n'
        % (content, more, usage)
    )


def odd(chance: random.Random, number: bytes) -> bytes:
    """A number, or sometimes what is none."""
    return chance.choice(NUMBERS) if chance.random() < 0.06 else number


def events(chance: random.Random, path: str, body: dict[str, Any], count: int) -> list[bytes]:
    """The events of a whole answer."""
    ids, running = bool(body.get("return_token_ids")), bool((body.get("stream_options") or {}).get("continuous_usage_stats"))
    told: list[bytes] = []
    if path == "/v1/responses":
        told.append(
            b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_%d"},"sequence_number":0}\n\n'
            % chance.randrange(99)
        )
    elif path == "/v1/messages":
        told.append(
            b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":%b,"output_tokens":1}}}\n\n'
            % odd(chance, b"7")
        )
    else:
        prompt = b',"prompt_token_ids":[1,2,3]' if ids else b""
        told.append(
            b'data: {"id":"c1","object":"o","created":%b,"model":"llama","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]%b}\n\n'
            % (odd(chance, b"1"), prompt)
        )
    told += [token(chance, path, number, ids, running) for number in range(count)]
    if chance.random() < 0.1:
        told.insert(chance.randrange(len(told) + 1), b'data: {"error":{"message":"no","type":null,"code":%b}}\n\n' % chance.choice(CODES))
    if path == "/v1/responses":
        told.append(
            b'event: x\ndata: {"type":"response.completed","response":{"id":"r","usage":{"input_tokens":%b,"output_tokens":%b}},"sequence_number":%b}\n\n'
            % (odd(chance, b"7"), odd(chance, b"4"), odd(chance, b"9"))
        )
    elif path == "/v1/messages":
        told.append(b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":%b}}\n\n' % odd(chance, b"7"))
        told.append(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    else:
        told.append(
            b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%b"}]}\n\n' % chance.choice((b"stop", b"stop", b"length", b"abort"))
        )
        usage = b'{"prompt_tokens":%b,"completion_tokens":%b,"prompt_tokens_details":{"cached_tokens":%b}}' % tuple(
            odd(chance, each) for each in (b"7", b"4", b"2")
        )
        told += [b'data: {"choices":[],"usage":%b}\n\n' % usage] if body.get("stream_options") else []
        told += [b"data: [DONE]\n\n"] if chance.random() < 0.95 else []
    return told


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Hurt in one or two places."""
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            splice = chance.choice(SPLICES)
            data = data[:at] + (splice % chance.choice(CODES) if b"%b" in splice else splice) + data[at:]
        elif kind == 1:
            data = data[:at] + data[at + chance.randrange(1, 40) :]
        elif kind == 2:
            data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
        elif kind == 3:
            other = min(len(data), at + chance.randrange(200))
            data = data[:at] + data[at:other] * 2 + data[other:]
        else:
            data = data[:at]
    return data


def answer(chance: random.Random, seen: Seen) -> list[bytes]:
    """What an engine writes, in pieces."""
    path = seen.line.split(b" ")[1].decode("latin-1").partition("?")[0]
    try:
        body = json.loads(seen.body)
    except ValueError:
        body = {}
    if not isinstance(body, dict):
        body = {}
    extra = chance.choice((b"", b"", b"", b"connection: close\r\n", b"x-a: " + b"b" * 3000 + b"\r\n", b"retry-after: soon\r\n"))
    early = chance.choice((b"", b"", b"", b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"))
    version = b"HTTP/1.0" if chance.random() < 0.03 else b"HTTP/1.1"
    if body.get("stream") in (True, "true") and chance.random() < 0.9:
        told = events(chance, path, body, chance.choice((0, 1, 3, 10, 60, 150)))
        head = early + b"%b 200 OK\r\ncontent-type: text/event-stream\r\n%btransfer-encoding: chunked\r\n\r\n" % (version, extra)
        parts = [head, *(b"%x\r\n%b\r\n" % (len(each), each) for each in told), b"0\r\n\r\n"]
    else:
        status = chance.choice((200, 200, 200, 200, 400, 404, 413, 422, 429, 499, 500, 503, 299, 777))
        usage = tuple(odd(chance, each) for each in (b"7", b"4", b"2"))
        said = (
            b'{"id":"a","choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":%b,"completion_tokens":%b,"prompt_tokens_details":{"cached_tokens":%b}}}'
            % usage
        )
        if chance.random() < 0.05:
            said = said[:1] + b'"pad":"' + b"x" * chance.choice((70_000, 1_100_000)) + b'",' + said[1:]
        if status != 200 and chance.random() < 0.8:
            said = b'{"error":{"message":"no","type":null,"param":null,"code":%b}}' % chance.choice(CODES)
        length = chance.choice((len(said), len(said), len(said), len(said), len(said), 0, len(said) + 5, 10**30, 3))
        parts = [
            early + b"%b %d OK\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (version, status, extra, length, said)
        ]
    if chance.random() < 0.25:
        parts = [mutated(chance, b"".join(parts))]
    if chance.random() < 0.5:
        data, parts = b"".join(parts), []
        while data:
            size = chance.choice((1, 7, 50, 300, 2000, 100_000))
            parts.append(data[:size])
            data = data[size:]
            if len(parts) > 200:
                parts.append(data)
                break
    return parts


class World:
    """One input."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.got: list[bytes] = []
        self.seen: collections.Counter[str] = collections.Counter()

    async def engine(self, seen: Seen, answer_: Answer) -> None:
        chance = random.Random(self.chance.random())
        self.got.append(b"ENGINE " + seen.head + seen.body)
        step_s = chance.choice((0.0, 0.001, 0.01, 0.3))
        end = chance.random()
        parts = answer(chance, seen)
        if chance.random() < 0.04:
            await asyncio.sleep(30.0)  # says nothing
        for part in parts:
            if step_s:
                await asyncio.sleep(step_s)
            if chance.random() < 0.004:
                await asyncio.sleep(15.0)
            if chance.random() < 0.004:
                answer_.cut()
            answer_.raw(part)
        if end < 0.1:
            answer_.close()
        elif end < 0.15:
            answer_.cut()

    async def client(self, port: int, number: int) -> None:
        chance = random.Random(self.chance.random())
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.01, 0.5)))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(chance.choice((1, 1, 2, 3))):
            path = chance.choice(PATHS)
            data = json.dumps(asked(chance, path)).encode()
            if chance.random() < 0.05:
                data = mutated(chance, data)
            elif chance.random() < 0.1:  # names that are there twice, or written in another way; what is no JSON at its end
                data = data[:-1] + chance.choice(TAILS)
            lines = [f"POST {path} HTTP/1.{chance.choice('1111110')}", "host: a", "content-type: application/json"]
            lines += [f"authorization: Bearer {chance.choice(KEYS)}", f"content-length: {len(data)}"]
            lines += [chance.choice(HEADERS) for _ in range(chance.choice((0, 0, 1, 2)))]
            writer.write("\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + data)
        leave = chance.random()
        try:
            async with asyncio.timeout(chance.choice((0.0, 0.005, 0.05, 0.5, 3.0)) if leave < 0.3 else END_S):
                while True:
                    part = await reader.read(chance.choice((10, 1000, 100_000)))
                    self.got.append(b"CLIENT %d " % number + part)
                    if not part:
                        break
                    if leave > 0.9:
                        await asyncio.sleep(0.2)
        except (TimeoutError, ConnectionError) as error:
            self.got.append(b"CLIENT %d " % number + type(error).__name__.encode())
        writer.transport.abort()

    async def main(self) -> None:
        chance, clock = self.chance, LoopClock(1.0)
        kind = EngineKind("attach", continues=chance.choice((None, None, False)), abort_by_id=chance.random() < 0.2)
        spec = Spec((Pool("chat", "llama", kind, queued_max=20),), (Model("llama", 8192, ("alias",)),), TIERS, teams=TEAMS, limits=LIMITS)
        crew = FakeCrew(1, lambda owner: Worker(clock, owner)) if chance.random() < 0.4 else None
        gateway = Gateway(spec, clock, CountingIds(), HttpUpstream(), random.Random(7), ListSink(), "gw-1", crew=crew)
        engines = [FakeEngine(self.engine) for _ in range(2)]
        for engine in engines:
            await engine.start()
        port = await gateway.start("127.0.0.1", 0)
        replicas = tuple(RosterReplica(f"r{number}", engine.url, CAPACITY) for number, engine in enumerate(engines))
        gateway.apply(Roster(1, 1, 10.0, (RosterPool("chat", replicas),)))
        clients = [asyncio.ensure_future(self.client(port, number)) for number in range(chance.choice((1, 2, 5, 9)))]
        await asyncio.sleep(END_S - 5)
        busy = [connection.request.target for connection in gateway.http.connections if connection.request is not None]
        assert not busy, f"not answered: {busy}"
        await asyncio.sleep(10.0)
        await asyncio.gather(*clients)
        await asyncio.sleep(2.0)
        if asyncio.get_running_loop().errors:  # type: ignore[attr-defined]
            return  # which is the cause of whatever else is wrong
        gateway.check()
        streams = [replica.streams for load in gateway.snapshot().pools for replica in load.replicas]
        left = (gateway.desk.live, sum(streams), gateway.http.bodies_bytes, gateway.held_ids.held_bytes, len(gateway.direct))
        assert left == (0, 0, 0, 0, 0), f"left: {left}"
        for meter in gateway.desk.pools["chat"].meters.values():
            self.seen += collections.Counter(
                {
                    **{outcome.value: count for outcome, count in meter.outcomes.items()},
                    "continued": meter.continued,
                    "retries": meter.retries,
                    "requeued": meter.requeued,
                }
            )
        if gateway.lending is not None:
            self.seen["lent"] += gateway.lending.lent_total
        msgspec.json.encode(gateway.report())
        msgspec.json.encode(gateway.records.leaving.take())
        for batch in gateway.metering.outgoing():
            msgspec.json.encode(batch)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        page = b""
        while part := await reader.read(100_000):
            page += part
        assert page.startswith(b"HTTP/1.1 200"), page[:300]
        self.got.append(page)
        self.got.append(repr(sorted((str(key), counts) for key, counts in gateway.usage.shown())).encode())
        writer.transport.abort()
        await gateway.close()
        for engine in engines:
            engine.stop()


def played(seed: int, number: int, seen: collections.Counter[str]) -> tuple[list[bytes], str]:
    """What came of one input, and what went wrong; ``seen`` counts."""
    world = World(random.Random(f"{seed}/{number}"))
    try:
        run(world.main)
    except CallbackErrors as error:
        cause = error.__cause__
        trace = traceback.extract_tb(cause.__traceback__) if cause is not None else []
        return world.got, f"{error} {cause!r:.200} " + " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(trace))
    except Exception as error:  # every failure of one world is a finding, and the next world is played
        trace = traceback.extract_tb(error.__traceback__)
        return world.got, f"{error!r:.300} at " + " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(trace))
    seen.update(world.seen)
    return world.got, ""


def digest(got: list[bytes]) -> str:
    """By client what it got, and what engines were sent: what happens at one instant may be in any order."""
    parties: dict[bytes, bytes] = collections.defaultdict(bytes)
    for each in got:
        kind, _, rest = each.partition(b" ")
        who, _, part = rest.partition(b" ") if kind == b"CLIENT" else (each, b"", b"")
        parties[kind + who] += part or b"."
    return hashlib.sha256(repr(sorted(parties.items())).encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--digests", type=Path)
    parser.add_argument("--only", type=int)
    args = parser.parse_args()
    if args.only is not None:
        got, wrong = played(args.seed, args.only, collections.Counter())
        print(*(each[:2000] for each in got), wrong, sep="\n")
        return
    begun_s, wrongs, digests = time.process_time(), collections.Counter[str](), []
    firsts: dict[str, int] = {}
    seen: collections.Counter[str] = collections.Counter()
    statuses: collections.Counter[bytes] = collections.Counter()
    for number in range(args.first, args.first + args.inputs):
        got, wrong = played(args.seed, number, seen)
        digests.append(f"{number} {digest(got)} {wrong}")
        for each in got:
            if each.startswith(b"CLIENT") and b"HTTP/1." in each:
                statuses[each[each.index(b"HTTP/1.") :][9:12]] += 1
        if wrong:
            wrongs[wrong] += 1
            firsts.setdefault(wrong, number)
    if args.digests:
        args.digests.write_text("\n".join(digests))
    print(
        f"{args.inputs} worlds of seed {args.seed}, handled in {HANDLED_IN}: {sum(wrongs.values())} went wrong, {time.process_time() - begun_s:.0f} CPU seconds"
    )
    print(dict(seen), sorted(statuses.items()))
    for wrong, count in wrongs.most_common():
        print(f"{count:>6} (first {firsts[wrong]}): {wrong}")
    raise SystemExit(bool(wrongs))


if __name__ == "__main__":
    main()
