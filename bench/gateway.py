"""The gateway beside nginx, HAProxy, Envoy, vllm-router and SMG: CPU seconds of each proxy process, in one run, before one engine.

    .venv/bin/python bench/gateway.py [--json PATH] [--quick] [--cases short,chunk,bodies,ttft,waiting,soak,hold] [--proxies nginx,…]

Forebay has everything on: its queue, admission by KV, fairness, metering, prefix routing. The others are plain proxies (or routers, round robin)
with one worker. Rounds alternate between the proxies, so that a busy machine disturbs all alike; a round that could not offer the load
to each is left out and counted. ``--apart``: the proxies share the last core, and engine and load have the others; what waits is then
measured with less noise, but proxies with several threads cost less than where the kernel places them. Peers that are not installed are
left out by name: `make bench-peers` installs them.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import gateway_vs_nginx as base
import psutil
import uvloop

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers" / "bin"
GOALS = {
    "short": {"nginx": 1.8, "vllm-router": 0.7, "smg": 0.7, "envoy": 0.7},
    "chunk": {"nginx": 1.15, "vllm-router": 0.7, "smg": 0.7, "envoy": 0.7},
}
WAITING = 5000
FLOWING = 64
CHOICES = 32
"""Answers that each batch request asks for at once: two thousand slots are full of sixty of them, and take short requests beside."""
ANSWER_S = 0.05
HELD = 10_000
SOAK = 1_000_000
START_S = 60.0
CORES = sorted(os.sched_getaffinity(0))
PORTS_FROM = 21_000


# -- the engine: as in gateway_vs_nginx, and it answers what routers ask of a worker, and answers late where it is told to ----


class Engine(base.Engine):
    def data_received(self, data):
        self.buffer += data
        if self.buffer.startswith(b"GET "):
            if self.buffer.endswith(b"\r\n\r\n"):
                models = b"/v1/models" in self.buffer.split(b"\r\n", 1)[0]
                body = json.dumps(
                    {"object": "list", "data": [{"id": base.MODEL, "object": "model"}]} if models else {"status": "ok"}
                ).encode()
                self.buffer = b""
                self.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            return
        end = self.buffer.find(b"\r\n\r\n")
        if end >= 0:
            head = self.buffer[:end].lower()
            size = re.search(rb"content-length: (\d+)", head)
            if size is None:  # a proxy that sends the body on in chunks
                if self.buffer.endswith(b"\r\n0\r\n\r\n"):
                    body = b"".join(re.split(rb"\r\n[0-9a-f]+\r\n", b"\r\n" + self.buffer[end + 4 :]))
                    self.buffer = b""
                    self.answer(body)
                return
            if len(self.buffer) >= end + 4 + int(size[1]):
                body, self.buffer = self.buffer[end + 4 :], b""
                self.answer(body)

    def answer(self, body):
        late = re.search(rb'"late_ms": ?(\d+)', body[-200:])
        wanted = re.search(rb'"chunks": ?(\d+), ?"pace_ms": ?(\d+)', body)
        if late:
            asyncio.get_running_loop().call_later(int(late[1]) / 1000, self.send, base.SHORT)
        elif wanted is None:
            self.send(base.SHORT)
        else:
            self.left, self.pace_s = int(wanted[1]), int(wanted[2]) / 1000
            self.token = base.TOLD if b'"return_token_ids":true' in body else base.TOKEN
            self.send(base.STREAM_HEAD + base.ROLE + self.token)
            if self.left:
                self.timer = asyncio.get_running_loop().call_later(base.random.uniform(0, self.pace_s), self.step)


async def engine_main() -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=16384)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def gateway_main(engine_port: int, sequences: int) -> None:
    """Forebay's gateway over one replica of so many slots."""
    import msgspec

    from forebay.adapters.clock import LoopClock, RandomIds
    from forebay.adapters.upstream import HttpUpstream
    from forebay.app import process
    from forebay.gateway.service import Gateway, static_roster
    from forebay.spec.types import DEFAULT_TIERS, EngineKind, Limits, Model, Pool, Spec

    attach = EngineKind("attach", attach=(f"http://127.0.0.1:{engine_port}",))
    pool = Pool("bench", base.MODEL, attach, queued_max=20_000)
    limits = msgspec.structs.replace(Limits(), connections=20_000) if hasattr(Limits(), "connections") else Limits()
    spec = Spec(pools=(pool,), models=(Model(base.MODEL, 131_072),), tiers=DEFAULT_TIERS, limits=limits)
    gateway = Gateway(spec, LoopClock(), RandomIds(), HttpUpstream(), base.random.Random(1), base.NoSink(), "bench")
    roster = static_roster(spec)
    large = {"sequences": sequences, "kv_tokens": 500_000_000, "prefill_tokens": 500_000_000}
    pools = [
        msgspec.structs.replace(
            pool,
            replicas=tuple(
                msgspec.structs.replace(replica, capacity=msgspec.structs.replace(replica.capacity, **large)) for replica in pool.replicas
            ),
        )
        for pool in roster.pools
    ]
    gateway.apply(type(roster)(roster.term, roster.version, roster.lease_s, tuple(pools)))
    port = await gateway.start("127.0.0.1", 0)
    process.settle()
    print(port, flush=True)
    await asyncio.Event().wait()


# -- the peers --------------------------------------------------------------------------------------------------------

HAPROXY_CONF = """
global
  nbthread 1
  maxconn 9000
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
frontend in
  bind 127.0.0.1:{port} backlog 16384
  default_backend engine
backend engine
  http-reuse always
  server one 127.0.0.1:{engine}
"""
ENVOY_CONF = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          stream_idle_timeout: 0s
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: engine, timeout: 0s}}}}]}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: engine
    type: STATIC
    connect_timeout: 5s
    circuit_breakers: {{thresholds: [{{max_connections: 30000, max_pending_requests: 30000, max_requests: 30000}}]}}
    load_assignment:
      cluster_name: engine
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {engine}}}}}}}}}]}}]
"""


class Proxies:
    """Starts them, and knows each one's port and process."""

    def __init__(self, engine_port: int, folder: str) -> None:
        self.engine_port, self.folder = engine_port, Path(folder)
        self.children: list[subprocess.Popen] = []
        self.at: dict[str, tuple[int, int]] = {}
        self.missing: list[str] = []

    def start(self, names: list[str]) -> None:
        for name in names:
            with on_its_core():
                found = getattr(self, f"_{name.replace('-', '_')}")()
            if found is None:
                self.missing.append(name)
            else:
                self.at[name] = found

    def _nginx(self) -> tuple[int, int] | None:
        if not (shutil.which("nginx") or Path("/usr/sbin/nginx").exists()):
            return None
        process, port, _, worker = base.start_nginx(self.engine_port, str(self.folder))
        self.children.append(process)
        return port, worker

    def _haproxy(self) -> tuple[int, int] | None:
        binary = shutil.which("haproxy") or ("/usr/sbin/haproxy" if Path("/usr/sbin/haproxy").exists() else None)
        return binary and self._configured([binary, "-db", "-f"], HAPROXY_CONF, "haproxy.cfg")

    def _envoy(self) -> tuple[int, int] | None:
        binary = PEERS / "envoy"
        if not binary.exists():
            return None
        return self._configured([str(binary), "--concurrency", "1", "--disable-hot-restart", "-l", "error", "-c"], ENVOY_CONF, "envoy.yaml")

    def _vllm_router(self) -> tuple[int, int] | None:
        return self._router("vllm-router", [])

    def _smg(self) -> tuple[int, int] | None:
        return self._router("smg", ["launch"])

    def forebay(self, sequences: int) -> tuple[int, int]:
        """One more, over a replica of so many slots."""
        with on_its_core():
            return self._forebay(sequences)

    def _forebay(self, sequences: int = 30_000) -> tuple[int, int]:
        process, port = start_python("--role", "gateway", "--engine-port", str(self.engine_port), "--sequences", str(sequences))
        self.children.append(process)
        return port, process.pid

    def _router(self, name: str, words: list[str]) -> tuple[int, int] | None:
        binary = PEERS / name
        if not binary.exists():
            return None
        port, metrics = base.free_port(), base.free_port()
        command = [str(binary), *words, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", f"http://127.0.0.1:{self.engine_port}"]
        command += ["--policy", "round_robin", "--prometheus-port", str(metrics), "--log-level", "error"]
        return self._begun(command, port)

    def _configured(self, command: list[str], text: str, file: str) -> tuple[int, int]:
        port = base.free_port()
        conf = self.folder / file
        conf.write_text(text.format(port=port, engine=self.engine_port))
        return self._begun([*command, str(conf)], port)

    def _begun(self, command: list[str], port: int) -> tuple[int, int]:
        log = (self.folder / f"{Path(command[0]).name}.log").open("w")
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.children.append(process)
        deadline = time.monotonic() + START_S
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{command[0]} did not start: {Path(log.name).read_text()[-2000:]}")
            time.sleep(0.1)
        return port, process.pid

    def stop(self) -> None:
        for child in self.children:
            child.send_signal(signal.SIGTERM)
        for child in self.children:
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()


@contextlib.contextmanager
def on_its_core() -> Iterator[None]:
    """What is started in here runs on the last core, where ``main`` has taken that from this process."""
    rest = os.sched_getaffinity(0)
    if len(rest) < len(CORES):
        os.sched_setaffinity(0, CORES[-1:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, rest)


def answers(port: int) -> bool:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        body = json.dumps({"model": base.MODEL, "messages": [{"role": "user", "content": "Are you there?"}]})
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    except http.client.HTTPException:
        return False
    finally:
        connection.close()


def start_python(*role: str) -> tuple[subprocess.Popen, int]:
    process = subprocess.Popen([sys.executable, __file__, *role], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def cpu_s(pid: int) -> float:
    """Seconds on a core of all threads of a process and of its children, to the nanosecond."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    tasks = [task for process in processes for task in Path(f"/proc/{process.pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


base.cpu_s = cpu_s


# -- the cases --------------------------------------------------------------------------------------------------------


async def cost(proxies: Proxies, args: argparse.Namespace, stream: dict | None) -> dict:
    """CPU per unit of every proxy and the ratios of Forebay's to theirs, medians over rounds."""
    interval_s = 0.0 if stream else base.CONNECTIONS / args.rate
    offered = base.CONNECTIONS * 1000 / args.pace_ms if stream else args.rate
    rounds, starved = await base.compare(args, proxies.at, stream, interval_s, offered)
    rows = {
        name: {
            "cpu_us": statistics.median(row["cpu_us_per_unit"] for row in each),
            "per_s": statistics.median(row["units_per_s"] for row in each),
        }
        for name, each in rounds.items()
    }
    for name in rows:
        pairs = zip(rounds["forebay"], rounds[name], strict=True)
        rows[name]["forebay_ratio"] = statistics.median(ours["cpu_us_per_unit"] / theirs["cpu_us_per_unit"] for ours, theirs in pairs)
    return {"proxies": rows, "starved_rounds": starved}


async def bodies(proxies: Proxies, args: argparse.Namespace) -> dict:
    """CPU per byte of large requests."""
    found = {}
    for size in (100_000, 1_000_000):
        rounds: dict[str, list[float]] = {name: [] for name in ("nginx", "forebay") if name in proxies.at}
        for _ in range(args.rounds):
            for name in rounds:
                port, pid = proxies.at[name]
                before = base.PROMPT_BYTES
                base.PROMPT_BYTES = size
                try:
                    row = await base.drive(port, pid, None, base.CONNECTIONS / (40_000_000 / size), 0.5, args.seconds)
                finally:
                    base.PROMPT_BYTES = before
                rounds[name].append(row["cpu_us_per_unit"] / size * 1000)
        row = {f"{name}_ns_per_byte": statistics.median(each) for name, each in rounds.items()}
        if "nginx" in rounds:
            row["ratio"] = statistics.median(ours / theirs for ours, theirs in zip(rounds["forebay"], rounds["nginx"], strict=True))
        found[str(size)] = row
    return found


async def first_bytes(port: int, count: int, per_s: float) -> list[float]:
    """Seconds from a request's last byte out to its first content in, of ``count`` streams begun at ``per_s``."""
    wire = base.request(port, {"chunks": 3, "pace_ms": 20})
    loop = asyncio.get_running_loop()
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    times: list[float] = []

    async def one(at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - loop.time()))
        reader, writer = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        began = time.perf_counter()
        writer.write(wire)
        seen = await reader.readuntil(b"data: {")
        times.append(time.perf_counter() - began)
        assert seen.startswith(b"HTTP/1.1 200"), seen[:200]
        await reader.readuntil(b"0\r\n\r\n")
        idle.append((reader, writer))

    begin = loop.time() + 0.2
    await asyncio.gather(*(one(begin + number / per_s) for number in range(count)))
    for _, writer in idle:
        writer.transport.abort()
    return times


async def ttft(proxies: Proxies, args: argparse.Namespace) -> dict:
    """Added time to first content at 200 requests/s, against the engine itself, in alternating rounds."""
    at = {"direct": proxies.engine_port, **{name: port for name, (port, _) in proxies.at.items()}}
    times: dict[str, list[list[float]]] = {name: [] for name in at}
    for _ in range(args.rounds):
        for name, port in at.items():
            await first_bytes(port, 40, 200.0)
            times[name].append(sorted(await first_bytes(port, 800, 200.0)))

    def quantile(name: str, share: float) -> float:
        return statistics.median(each[min(len(each) - 1, int(share * len(each)))] for each in times[name]) * 1000

    return {
        name: {"p50_ms": quantile(name, 0.5) - quantile("direct", 0.5), "p99_ms": quantile(name, 0.99) - quantile("direct", 0.99)}
        for name in at
        if name != "direct"
    } | {"direct": {"p50_ms": quantile("direct", 0.5), "p99_ms": quantile("direct", 0.99)}}


async def crowd(port: int, connections: int, seconds: float, pid: int) -> float:
    """CPU µs per answered request with so many clients asking again at once, each answer taking ANSWER_S in the engine."""
    load = base.Load()
    wire = base.request(port, {"late_ms": int(ANSWER_S * 1000)})
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(connections):
        clients.append((await loop.create_connection(lambda: base.Client(load, wire, 0.0), "127.0.0.1", port))[0])
    await asyncio.sleep(2.0 + connections / 2000)
    before = cpu_s(pid), load.requests
    await asyncio.sleep(seconds)
    after = cpu_s(pid), load.requests
    load.over = True
    for transport in clients:
        transport.abort()
    await asyncio.sleep(0.5)
    if load.errors:
        sys.exit(f"{load.errors} errors with {connections} clients: {load.error!r}")
    return (after[0] - before[0]) / max(1, after[1] - before[1]) * 1e6


async def beside(port: int, batch: int, seconds: float, pid: int) -> float:
    """CPU µs per answered request of 1,000 short ones a second, beside so many batch clients of which only FLOWING or fewer have room."""
    loads = base.Load(), base.Load()
    wires = base.request(port, {"late_ms": 4000, "n": CHOICES, "service_tier": "batch"}), base.request(port, {})
    loop = asyncio.get_running_loop()
    clients = []
    for load, wire, count, interval_s in zip(loads, wires, (batch, base.CONNECTIONS), (0.0, base.CONNECTIONS / 1000), strict=True):
        for _ in range(count):
            clients.append((await loop.create_connection(lambda: base.Client(load, wire, interval_s), "127.0.0.1", port))[0])  # noqa: B023
        await asyncio.sleep(2.0 + count / 1000)
    before = cpu_s(pid), sum(load.requests for load in loads)
    await asyncio.sleep(seconds)
    after = cpu_s(pid), sum(load.requests for load in loads)
    for load in loads:
        load.over = True
        if load.errors:
            sys.exit(f"{load.errors} errors with {batch} batch clients: {load.error!r}")
    for transport in clients:
        transport.abort()
    await asyncio.sleep(0.5 + batch / 5000)
    return (after[0] - before[0]) / max(1, after[1] - before[1]) * 1e6


async def waiting(proxies: Proxies, args: argparse.Namespace) -> dict:
    """CPU per request with WAITING more in the lanes: batch, which short requests go past; and such as wait in one line, each behind all others."""
    few_many = FLOWING, FLOWING + WAITING
    found: dict = {"waiting": WAITING}
    for name, drive, slots in (("past", beside, CHOICES * FLOWING), ("through", crowd, FLOWING)):
        port, pid = proxies.forebay(slots)
        rounds = [[await drive(port, count, args.seconds, pid) for count in few_many] for _ in range(args.rounds)]
        alone, crowded = (statistics.median(each) for each in zip(*rounds, strict=True))
        growth = statistics.median(many / few for few, many in rounds) - 1
        found[name] = {"alone_us": alone, "waiting_us": crowded, "growth": growth, "rounds_us": rounds}
    return found


async def soak(proxies: Proxies, args: argparse.Namespace) -> dict:
    """Memory over a million requests, and per open stream after them."""
    port, pid = proxies.at["forebay"]
    process = psutil.Process(pid)
    await base.drive(port, pid, None, 0.0, 1.0, 5.0)
    before, done = process.memory_info().rss, 0
    while done < args.soak:
        row = await base.drive(port, pid, None, 0.0, 0.1, 10.0)
        done += int(row["units_per_s"] * 10)
    grown = process.memory_info().rss - before
    idle = await base.idle_memory(port, pid)
    return {"requests": done, "grown_bytes": grown, "bytes_per_stream": idle["bytes_per_stream"]}


async def hold(proxies: Proxies, args: argparse.Namespace) -> dict:
    """So many streams at once, each of some chunks: all must end whole."""
    port, pid = proxies.at["forebay"]
    wire = base.request(port, {"chunks": 40, "pace_ms": 1000})
    ended = broken = peak = 0
    gate = asyncio.Semaphore(200)

    async def one() -> None:
        nonlocal ended, broken, peak
        try:
            async with gate:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(wire)
                await reader.readuntil(b"data: {")
            data = await reader.readuntil(b"0\r\n\r\n")
            ended += data.count(b"data: [DONE]") == 1 and data.count(b'"content":" token"') >= 40
            writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            broken += 1
            print(f"broken: {error} {getattr(error, 'partial', b'')[-200:]!r}", file=sys.stderr)

    before = cpu_s(pid)
    await asyncio.gather(*(one() for _ in range(args.held)))
    return {
        "streams": args.held,
        "whole": ended,
        "broken": broken,
        "cpu_s": cpu_s(pid) - before,
        "rss_mb": psutil.Process(pid).memory_info().rss / 1e6,
    }


# -- the table --------------------------------------------------------------------------------------------------------


def show_waiting(rows: dict) -> None:
    for name, what in (("past", "short requests past {:,} of batch that wait"), ("through", "requests that each wait behind {:,}")):
        if row := rows.get(name):
            change = f"{row['alone_us']:.1f} → {row['waiting_us']:.1f} µs a request, {row['growth']:+.0%}"
            print(f"{what.format(rows['waiting'])}: {change} (goal +15 %)")


def show(result: dict) -> None:
    for case, unit in (("short", "request of 2 KB"), ("chunk", "streamed chunk")):
        if case in result:
            print(
                f"\nCPU per {unit} ({result[case]['starved_rounds']} rounds left out)\n  {'proxy':14}{'µs':>9}{'forebay ÷ it':>14}{'goal':>8}"
            )
            for name, row in sorted(result[case]["proxies"].items(), key=lambda pair: pair[1]["cpu_us"]):
                goal = GOALS[case].get(name)
                met = "" if goal is None else f"{goal:8.2f} {'met' if row['forebay_ratio'] <= goal else 'NOT met'}"
                print(f"  {name:14}{row['cpu_us']:9.1f}{row['forebay_ratio']:14.2f}{met}")
    for size, row in result.get("bodies", {}).items():
        print(
            f"\nbodies of {int(size):,} bytes: forebay {row['forebay_ns_per_byte']:.3f} ns a byte, ÷ nginx {row.get('ratio', float('nan')):.2f} (goal 1.5)"
        )
    for name, row in result.get("ttft", {}).items():
        print(
            f"TTFT {'of' if name == 'direct' else 'added by'} {name}: p50 {row['p50_ms']:.2f} ms, p99 {row['p99_ms']:.2f} ms"
            + (" (goal 0.5 / 3)" if name == "forebay" else "")
        )
    show_waiting(result.get("waiting", {}))
    if row := result.get("soak"):
        print(
            f"after {row['requests']:,} requests: {row['grown_bytes'] / 1e6:+.1f} MB; {row['bytes_per_stream'] / 1000:.1f} kB an open stream (goal 40)"
        )
    if row := result.get("hold"):
        print(
            f"{row['streams']:,} streams at once: {row['whole']:,} whole, {row['broken']} broken, {row['rss_mb']:.0f} MB, {row['cpu_s']:.1f} s of CPU"
        )
    if result["missing"]:
        print(f"not installed, so left out: {', '.join(result['missing'])} (make bench-peers)")


async def bench(args: argparse.Namespace) -> dict:
    cases, names = args.cases.split(","), args.proxies.split(",")
    result: dict = {}
    with tempfile.TemporaryDirectory() as folder:
        engine, engine_port = start_python("--role", "engine")
        proxies = Proxies(engine_port, folder)
        proxies.children.append(engine)
        try:
            proxies.start(names)
            result["missing"] = proxies.missing
            stream = {"chunks": base.CHUNKS, "pace_ms": args.pace_ms}
            for case in cases:
                match case:
                    case "short":
                        result[case] = await cost(proxies, args, None)
                    case "chunk":
                        result[case] = await cost(proxies, args, stream)
                    case _:
                        result[case] = await {"bodies": bodies, "ttft": ttft, "waiting": waiting, "soak": soak, "hold": hold}[case](
                            proxies, args
                        )
        finally:
            proxies.stop()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=["engine", "gateway"], help=argparse.SUPPRESS)
    parser.add_argument("--engine-port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--sequences", type=int, default=30_000, help=argparse.SUPPRESS)
    parser.add_argument("--json", metavar="PATH", help="write the numbers as JSON; - for stdout")
    parser.add_argument("--cases", default="short,chunk,bodies,ttft,waiting")
    parser.add_argument("--proxies", default="nginx,haproxy,envoy,vllm-router,smg,forebay")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm-s", type=float, default=0.7)
    parser.add_argument("--rate", type=float, default=1000.0, help="short requests per second")
    parser.add_argument("--pace-ms", type=int, default=20)
    parser.add_argument("--soak", type=int, default=SOAK, help="requests of the case soak")
    parser.add_argument("--held", type=int, default=HELD, help="streams of the case hold")
    parser.add_argument("--apart", action="store_true", help="proxies on the last core, all else on the others")
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    args = parser.parse_args()
    args.only = args.case = None
    if args.quick:
        args.rounds, args.seconds = 2, 1.5
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if args.role == "engine":
        uvloop.run(engine_main())
    elif args.role == "gateway":
        uvloop.run(gateway_main(args.engine_port, args.sequences))
    else:
        if len(CORES) > 1 and args.apart:
            os.sched_setaffinity(0, CORES[:-1])
        result = uvloop.run(bench(args))
        if args.json != "-":
            show(result)
        if args.json:
            text = json.dumps(result, indent=2) + os.linesep
            print(text) if args.json == "-" else Path(args.json).write_text(text)


if __name__ == "__main__":
    main()
