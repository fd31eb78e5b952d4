"""CPU of the gateway process against nginx's, in front of the same engine under the same load; and memory per open stream.

The engine is a script that answers at once (or one chunk at a time on a timer), so that what differs is the proxy. Only the
proxy process's own CPU time (user + system) is counted, in alternating rounds, after a warm-up. Usage:

    .venv/bin/python bench/gateway_vs_nginx.py [--json PATH] [--rounds 5] [--seconds 4] [--quick]

nginx stands there twice: as Debian ships it with ``proxy_pass`` and buffering off (a connection to the engine per request),
and tuned to keep its connections to the engine. All carry the same offered load (``--rate`` requests per second, ``--pace-ms`` between a stream's chunks): a proxy
that is driven into saturation batches its wake-ups and looks cheaper than it is.
"""

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import uvloop

CONNECTIONS = 64
PROMPT_BYTES = 2048
CHUNKS = 400
IDLE_STREAMS = 800
FULL_LOAD = 0.9
"""Of the offered load must have been carried for a round to count."""
STARVED_MAX = 20
MODEL = "bench"
ANSWER = json.dumps(
    {
        "id": "chatcmpl-7f1d2c3b4a5968778695a4b3c2d1e0f9",
        "object": "chat.completion",
        "created": 1790000000,
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Four. " * 12}, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 520, "total_tokens": 545, "completion_tokens": 25, "prompt_tokens_details": None},
    }
).encode()


def event(delta: dict, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {
        "id": "chatcmpl-7f1d2c3b4a5968778695a4b3c2d1e0f9",
        "object": "chat.completion.chunk",
        "created": 1790000000,
        "model": MODEL,
        "choices": [choice],
    }
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


SHORT = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 21 Sep 2026 13:33:20 GMT\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (
        len(ANSWER),
        ANSWER,
    )
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 21 Sep 2026 13:33:20 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
ROLE = chunked(event({"role": "assistant", "content": ""}))
TOKEN = chunked(event({"content": " token"}))
TOLD = chunked(event({"content": " token"}).replace(b'"finish_reason":null', b'"finish_reason":null,"token_ids":[40711]'))
END = chunked(event({}, "stop")) + chunked(b"data: [DONE]\n\n") + b"0\r\n\r\n"


# -- the engine, a process of its own -----------------------------------------------------------------------------------


class Engine(asyncio.Protocol):
    """Reads requests by their content-length; the body says ``"chunks": n`` and ``"pace_ms": p`` where a stream is wanted."""

    def connection_made(self, transport):
        self.transport, self.buffer, self.timer = transport, b"", None

    def data_received(self, data):
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        size = int(re.search(rb"content-length: (\d+)", self.buffer[:end], re.I)[1])
        if len(self.buffer) < end + 4 + size:
            return
        body, self.buffer = self.buffer[end + 4 :], b""
        wanted = re.search(rb'"chunks": (\d+), "pace_ms": (\d+)', body)
        if wanted is None:
            self.send(SHORT)
            return
        # As vLLM does: ids of tokens for whoever asks. The gateway asks; what nginx passes on does not.
        self.token = TOLD if b'"return_token_ids":true' in body else TOKEN
        self.left, self.pace_s = int(wanted[1]), int(wanted[2]) / 1000
        self.send(STREAM_HEAD + ROLE + self.token)
        if self.left:
            self.timer = asyncio.get_running_loop().call_later(random.uniform(0, self.pace_s), self.step)

    def step(self):
        self.left -= 1
        if self.left > 0:
            self.send(self.token)
            self.timer = asyncio.get_running_loop().call_later(self.pace_s, self.step)
        else:
            self.send(END)

    def send(self, data):
        """At the end of a case clients hang up while answers are under way."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def connection_lost(self, _):
        if self.timer:
            self.timer.cancel()


async def engine_main() -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# -- the gateway, a process of its own ----------------------------------------------------------------------------------


class NoSink:
    def emit(self, event):
        pass


async def gateway_main(engine_port: int) -> None:
    from forebay.adapters.clock import LoopClock, RandomIds
    from forebay.adapters.upstream import HttpUpstream
    from forebay.app import process
    from forebay.gateway.service import Gateway, static_roster
    from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec

    attach = EngineKind("attach", attach=(f"http://127.0.0.1:{engine_port}",))
    spec = Spec(pools=(Pool("bench", MODEL, attach, queued_max=10_000),), models=(Model(MODEL, 131_072),), tiers=DEFAULT_TIERS)
    gateway = Gateway(spec, LoopClock(), RandomIds(), HttpUpstream(), random.Random(1), NoSink(), "bench")
    roster = static_roster(spec)
    # More slots than streams: the bench measures the relay, not the queue.
    wide = [_wide(pool) for pool in roster.pools]
    gateway.apply(type(roster)(roster.term, roster.version, roster.lease_s, tuple(wide)))
    port = await gateway.start("127.0.0.1", 0)
    process.settle()
    print(port, flush=True)
    await asyncio.Event().wait()


def _wide(pool):
    import msgspec

    replicas = tuple(
        msgspec.structs.replace(
            replica, capacity=msgspec.structs.replace(replica.capacity, sequences=4096, kv_tokens=50_000_000, prefill_tokens=50_000_000)
        )
        for replica in pool.replicas
    )
    return msgspec.structs.replace(pool, replicas=replicas)


NGINX_CONF = """
user root; worker_processes 1; daemon off; pid {dir}/nginx.pid; error_log {dir}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000; client_body_buffer_size 64k; client_max_body_size 16m;
  client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ proxy_pass http://127.0.0.1:{engine}; proxy_http_version 1.1; proxy_buffering off; proxy_read_timeout 3600s; }}
  }}
  server {{
    listen 127.0.0.1:{tuned_port} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; proxy_read_timeout 3600s;
    }}
  }}
}}
"""


# -- the load ----------------------------------------------------------------------------------------------------------


def request(port: int, extra: dict) -> bytes:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "word " * (PROMPT_BYTES // 5)}],
        "max_tokens": 100,
        "stream": bool(extra),
        **extra,
    }
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json\r\nUser-Agent: bench/1\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer sk-bench\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Client(asyncio.Protocol):
    """One connection that asks again ``interval_s`` after it asked last (or as soon as it is answered, if that is later)."""

    def __init__(self, load, wire: bytes, interval_s: float) -> None:
        self.load, self.wire, self.interval_s = load, wire, interval_s
        self.buffer = b""
        self.length = -1

    def connection_made(self, transport):
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self.loop.call_later(random.uniform(0, self.interval_s), self.ask)

    def ask(self):
        if self.load.over or self.transport.is_closing():
            return
        self.asked_s = self.loop.time()
        self.load.running += 1
        self.transport.write(self.wire)

    def data_received(self, data):
        load = self.load
        if self.wire is load.stream_wire:
            load.chunks += data.count(b"data: {")
            if not data.endswith(b"0\r\n\r\n"):
                return
        else:
            self.buffer += data
            end = self.buffer.find(b"\r\n\r\n")
            size = re.search(rb"content-length: (\d+)", self.buffer[:end], re.I)
            if not self.buffer.startswith(b"HTTP/1.1 200"):
                load.errors += 1
                load.error = self.buffer[:300]
            if end < 0 or size is None or len(self.buffer) < end + 4 + int(size[1]):
                return
            self.buffer = b""
        load.requests += 1
        load.running -= 1
        self.loop.call_later(max(0.0, self.asked_s + self.interval_s - self.loop.time()), self.ask)

    def connection_lost(self, _):
        if not self.load.over:
            self.load.errors += 1


class Load:
    def __init__(self) -> None:
        self.requests = self.chunks = self.errors = self.running = 0
        self.over = False
        self.error = b""
        self.stream_wire = None


async def drive(port: int, pid: int, stream: dict | None, interval_s: float, warm_s: float, seconds: float) -> dict:
    load = Load()
    wire = request(port, stream or {})
    load.stream_wire = wire if stream else None
    loop = asyncio.get_running_loop()
    clients = [await loop.create_connection(lambda: Client(load, wire, interval_s), "127.0.0.1", port) for _ in range(CONNECTIONS)]
    await asyncio.sleep(warm_s)
    before = (cpu_s(pid), load.requests, load.chunks, time.monotonic())
    await asyncio.sleep(seconds)
    after = (cpu_s(pid), load.requests, load.chunks, time.monotonic())
    load.over = True
    for transport, _ in clients:
        transport.abort()
    await asyncio.sleep(0.2)
    if load.errors:
        raise SystemExit(f"{load.errors} errors: {load.error!r}")
    cpu, requests, chunks, took_s = (b - a for a, b in zip(before, after, strict=True))
    units = chunks if stream else requests
    return {"cpu_us_per_unit": cpu / units * 1e6, "units_per_s": units / took_s, "cpu_share": cpu / took_s}


def cpu_s(pid: int) -> float:
    """User and system seconds of one process, to the nanosecond where the kernel tells."""
    fields = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(fields[0]) / 1e9


class Hold(asyncio.Protocol):
    def __init__(self, wire, started):
        self.wire, self.started, self.seen = wire, started, False

    def connection_made(self, transport):
        transport.write(self.wire)

    def data_received(self, _):
        if not self.seen:
            self.seen = True
            self.started.append(1)


async def idle_memory(port: int, pid: int) -> dict:
    """Resident bytes per open stream that has begun and says nothing more."""
    loop = asyncio.get_running_loop()
    wire = request(port, {"chunks": 0, "pace_ms": 1000})
    started: list[int] = []
    process = psutil.Process(pid)

    async def hold(count):
        wanted = len(started) + count
        transports = []
        for _ in range(count):
            transport, _ = await loop.create_connection(lambda: Hold(wire, started), "127.0.0.1", port)
            transports.append(transport)
        for _ in range(200):
            if len(started) >= wanted:
                return transports
            await asyncio.sleep(0.05)
        raise SystemExit(f"only {len(started)} of {wanted} streams began")

    warm = await hold(50)
    before = process.memory_info().rss
    held = await hold(IDLE_STREAMS)
    after = process.memory_info().rss
    for transport in warm + held:
        transport.abort()
    await asyncio.sleep(0.5)
    return {"streams": IDLE_STREAMS, "bytes_per_stream": (after - before) / IDLE_STREAMS}


# -- processes and the table ----------------------------------------------------------------------------------------------


def start_python(*role: str) -> tuple[subprocess.Popen, int]:
    process = subprocess.Popen([sys.executable, __file__, *role], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def start_nginx(engine_port: int, directory: str) -> tuple[subprocess.Popen, int, int, int]:
    binary = shutil.which("nginx") or "/usr/sbin/nginx"
    if not Path(binary).exists():
        raise SystemExit("nginx is not installed: apt-get install nginx-light")
    port, tuned_port = free_port(), free_port()
    conf = Path(directory, "nginx.conf")
    conf.write_text(NGINX_CONF.format(dir=directory, engine=engine_port, port=port, tuned_port=tuned_port))
    process = subprocess.Popen([binary, "-c", str(conf), "-p", directory], stderr=subprocess.DEVNULL)
    for _ in range(100):
        workers = psutil.Process(process.pid).children()
        if workers:
            return process, port, tuned_port, workers[0].pid
        time.sleep(0.05)
    raise SystemExit("nginx did not start")


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def compare(args, proxies, load, interval_s, offered) -> tuple[dict[str, list[dict]], int]:
    """Rounds of every proxy in turn. One in which the machine was too busy to offer the load to each is left out, and counted."""
    rounds: dict[str, list[dict]] = {proxy: [] for proxy in proxies}
    starved = 0
    while len(rounds[next(iter(proxies))]) < args.rounds:
        row = {proxy: await drive(port, pid, load, interval_s, args.warm_s, args.seconds) for proxy, (port, pid) in proxies.items()}
        if min(one["units_per_s"] for one in row.values()) < FULL_LOAD * offered and starved < STARVED_MAX:
            starved += 1
            continue
        for proxy, one in row.items():
            rounds[proxy].append(one)
    return rounds, starved


async def bench(args: argparse.Namespace) -> dict:
    children: list[subprocess.Popen] = []
    result: dict = {}
    with tempfile.TemporaryDirectory() as directory:
        try:
            engine, engine_port = start_python("--role", "engine")
            children.append(engine)
            gateway, gateway_port = start_python("--role", "gateway", "--engine-port", str(engine_port))
            children.append(gateway)
            nginx, nginx_port, tuned_port, worker = start_nginx(engine_port, directory)
            children.append(nginx)
            proxies = {"nginx": (nginx_port, worker), "nginx_keepalive": (tuned_port, worker), "gateway": (gateway_port, gateway.pid)}
            if args.only:
                proxies = {args.only: proxies[args.only]}
            stream = {"chunks": CHUNKS, "pace_ms": args.pace_ms}
            for name, load, interval_s in (
                ("short_request", None, CONNECTIONS / args.rate if args.rate else 0.0),
                ("streamed_chunk", stream, 0.0),
            ):
                if args.case not in (None, name):
                    continue
                offered = CONNECTIONS * 1000 / args.pace_ms if load else args.rate
                rounds, starved = await compare(args, proxies, load, interval_s, offered)
                result[name] = {
                    proxy: {
                        "cpu_us": round(statistics.median(r["cpu_us_per_unit"] for r in rows), 2),
                        "cpu_us_min": round(min(r["cpu_us_per_unit"] for r in rows), 2),
                        "per_s": round(statistics.median(r["units_per_s"] for r in rows)),
                    }
                    for proxy, rows in rounds.items()
                }
                result[name]["starved_rounds"] = starved
                if not args.only:
                    for key, other in (("ratio", "nginx"), ("ratio_keepalive", "nginx_keepalive")):
                        pairs = zip(rounds["gateway"], rounds[other], strict=True)
                        result[name][key] = round(statistics.median(g["cpu_us_per_unit"] / n["cpu_us_per_unit"] for g, n in pairs), 2)
            if not args.only or args.only == "gateway":
                result["idle_stream"] = {name: await idle_memory(port, pid) for name, (port, pid) in proxies.items()}
        finally:
            for child in children:
                child.send_signal(signal.SIGTERM)
            for child in children:
                child.wait(5)
    return result


def show(result: dict) -> None:
    print(
        f"{'CPU µs of the proxy':20}{'nginx':>10}{'nginx keepalive':>17}{'gateway':>10}{'ratio':>8}{'to keepalive':>14}{'goal':>6}{'per s':>8}"
    )
    for name, goal in (("short_request", 2.0), ("streamed_chunk", 1.5)):
        if name not in result:
            continue
        row = result[name]
        cpu = {proxy: row[proxy]["cpu_us"] if proxy in row else float("nan") for proxy in ("nginx", "nginx_keepalive", "gateway")}
        ratios = f"{row.get('ratio', float('nan')):8.2f}{row.get('ratio_keepalive', float('nan')):14.2f}"
        rate = next(iter(row.values()))["per_s"]
        if row["starved_rounds"]:
            print(f"({row['starved_rounds']} rounds of {name} left out: the machine was too busy to offer the load)")
        print(f"{name:20}{cpu['nginx']:10.1f}{cpu['nginx_keepalive']:17.1f}{cpu['gateway']:10.1f}{ratios}{goal:6.1f}{rate:8}")
    for proxy, row in result.get("idle_stream", {}).items():
        print(f"idle stream, {proxy}: {row['bytes_per_stream'] / 1024:.1f} KB of {row['streams']} streams (goal for the gateway: 60 KB)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=["engine", "gateway"])
    parser.add_argument("--engine-port", type=int, default=0)
    parser.add_argument("--json", metavar="PATH", help="write the numbers as JSON; - for stdout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warm-s", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=1500.0, help="requests per second; 0: as fast as they are answered")
    parser.add_argument("--pace-ms", type=int, default=20)
    parser.add_argument("--only", choices=["nginx", "nginx_keepalive", "gateway"])
    parser.add_argument("--case", choices=["short_request", "streamed_chunk"])
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds = 2, 2.0
    if args.role == "engine":
        uvloop.run(engine_main())
    elif args.role == "gateway":
        uvloop.run(gateway_main(args.engine_port))
    else:
        result = uvloop.run(bench(args))
        show(result) if args.json != "-" else print(json.dumps(result, indent=2))
        if args.json and args.json != "-":
            Path(args.json).write_text(json.dumps(result, indent=2) + os.linesep)


if __name__ == "__main__":
    main()
