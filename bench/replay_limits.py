"""How much load one core can make: requests and chunks per CPU second of `forebay replay`'s generator.

A cheap server in a process of its own answers each request with ``max_tokens`` events, one write each, paced by one
timer for all its streams. The generator's CPU is its thread's, from the report, so a busy neighbour on the machine
costs wall time but not the result. Run: ``python bench/replay_limits.py`` (about half a minute).
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections import deque

import uvloop

from forebay.adapters.clock import MeasuringClock
from forebay.demand.arrivals import arrivals, sized
from forebay.loadgen.replay import ReplayOptions, run
from forebay.loadgen.report import ReplayReport

EVENT = (
    'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"bench",'
    '"choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":%s,"token_ids":null}]}\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
GOAL_REQUESTS_PER_S = 500
GOAL_CHUNKS_PER_S = 50_000


def chunk(text: str) -> bytes:
    """``text`` in HTTP's chunked framing."""
    body = text.encode()
    return b"%x\r\n%s\r\n" % (len(body), body)


TOKEN = chunk(EVENT % (" the", "null"))


def closing(tokens: int) -> bytes:
    """Last token with its finish, usage, terminator."""
    usage = json.dumps({"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1})
    end = chunk(EVENT % (" end", '"length"')) + chunk(f'data: {{"id":"c","choices":[],"usage":{usage}}}\n\n') + chunk("data: [DONE]\n\n")
    return end + b"0\r\n\r\n"


class Server(asyncio.Protocol):
    """Streams events to every client once a tick."""

    streams: deque["Server"] = deque()

    def connection_made(self, transport):
        self.transport = transport
        self.buffer = b""
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data):
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        if self.buffer.startswith(b"GET"):
            body = b'{"object":"list","data":[{"id":"bench"}]}'
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            self.buffer = b""
            return
        at = self.buffer.find(b"Content-Length: ")
        length = int(self.buffer[at + 16 : self.buffer.index(b"\r", at)])
        if len(self.buffer) < end + 4 + length:
            return
        at = self.buffer.index(b'"max_tokens":') + 13
        self.tokens = self.left = int(self.buffer[at : self.buffer.index(b",", at)])
        self.buffer = b""
        self.transport.write(HEAD)
        self.streams.append(self)

    def connection_lost(self, _error):
        self.left = 0

    def step(self):
        if self.left <= 0:
            return False
        self.left -= 1
        self.transport.write(TOKEN if self.left else closing(self.tokens))
        return self.left > 0


async def serve(tick_s):
    """Listen at a free port, print it, and tick."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        due = loop.time() + tick_s
        for _ in range(len(Server.streams)):
            stream = Server.streams.popleft()
            if stream.step():
                Server.streams.append(stream)
        await asyncio.sleep(max(0.0, due - loop.time()))


async def measure(port: int, requests_per_s: float, tokens: int, prompt_tokens: int, seconds: float) -> ReplayReport:
    """One replay at full speed."""
    chance = random.Random(1)
    rows = list(sized(arrivals(lambda _: requests_per_s, seconds, chance), prompt_tokens, tokens, chance))
    return await run(rows, ReplayOptions(target=f"http://127.0.0.1:{port}"), MeasuringClock(), chance)


def show(name: str, report: ReplayReport) -> dict[str, object]:
    """One line, and its numbers."""
    cpu_s = report.generator_cpu * report.wall_s
    line = {
        "case": name,
        "requests_per_s": round(report.requests / report.wall_s, 1),
        "chunks_per_s": round(report.chunks / report.wall_s),
        "generator_cpu": round(report.generator_cpu, 3),
        "us_cpu_per_request": round(1e6 * cpu_s / report.requests, 1),
        "us_cpu_per_chunk": round(1e6 * cpu_s / report.chunks, 2),
        "lag_p99_ms": round(1000 * (report.lag_p99_real_s or 0), 2),
        "itl_p50_ms": round(1000 * (report.itl_s.p50 or 0), 2),
        "completed": report.completed,
        "of": report.requests,
        "generator_bound": report.generator_bound,
        "because": report.generator_bound_because,
    }
    print(json.dumps(line))
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve(arguments.serve))
        return
    cases = [
        ("short requests: 500/s, 1 token", 0.002, 500.0, 1, 250),
        ("mixed: 500/s, 40 tokens, 1000-token prompts (20,000 chunks/s)", 0.02, 500.0, 40, 1000),
        ("streams: 500/s, 100 tokens (50,000 chunks/s)", 0.02, 500.0, 100, 250),
    ]
    lines = []
    for name, tick_s, requests_per_s, tokens, prompt_tokens in cases:
        child = subprocess.Popen([sys.executable, __file__, "--serve", str(tick_s)], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            port = int(child.stdout.readline())
            lines.append(show(name, uvloop.run(measure(port, requests_per_s, tokens, prompt_tokens, arguments.seconds))))
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait()
    short, streams = lines[0], lines[-1]
    request_s = float(str(short["us_cpu_per_request"])) / 1e6
    chunk_s = (float(str(streams["us_cpu_per_chunk"])) - 1e6 * request_s / 100) / 1e6
    cpu = GOAL_REQUESTS_PER_S * request_s + GOAL_CHUNKS_PER_S * chunk_s
    print(
        f"500 requests/s with 50,000 chunks/s take {cpu:.2f} of a core ({1 / request_s:.0f} requests or {1 / chunk_s:.0f} chunks a CPU second)"
    )


if __name__ == "__main__":
    main()
