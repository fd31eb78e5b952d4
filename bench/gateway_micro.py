"""What the gateway's own Python costs per request and per chunk: the real connections and parsers, on transports that only count.

No socket, no kernel, no turn of the loop: what is left is the work that this repository's code decides about. Minima over
many rounds, and the number of bytecodes and calls, which no neighbour on the machine can disturb. Usage:

    .venv/bin/python bench/gateway_micro.py [--json PATH] [--rounds 30] [--profile CASE]

``json`` is a short answer that is no stream, ``sse`` one of four chunks, ``chunk`` one event of a long stream, and ``told`` one with
a token id that is noted and taken out, as vLLM is asked for. Two trees
are compared by running it alternately with ``PYTHONPATH`` set to each.
"""

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop
from gateway_vs_nginx import ANSWER, CONNECTIONS, END, ROLE, SHORT, STREAM_HEAD, TOKEN, TOLD, NoSink, _wide, request

from forebay.adapters.clock import LoopClock, RandomIds
from forebay.adapters.upstream import HttpUpstream
from forebay.gateway.http import ClientConnection
from forebay.gateway.service import Gateway, static_roster
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec

BATCH = 8
"""Requests in one turn of the loop: their phases are interleaved as epoll would."""
ANSWERS = tuple(
    SHORT.replace(b"content-length: %d" % len(ANSWER), b"content-length: %d" % (len(ANSWER) + more)) + b" " * more for more in range(7)
)
"""Lengths differ, as they do."""
CHUNKS_A_STREAM = 64
COUNTED_TURNS = 8


class Wire:
    """A transport that takes bytes and never calls back."""

    def __init__(self, taken: "list[Wire] | None" = None) -> None:
        self.protocol: Any = None
        self.taken = taken
        self.bytes = self.writes = 0

    def write(self, data: bytes) -> None:
        self.bytes += len(data)
        self.writes += 1
        if self.taken is not None:
            self.taken.append(self)

    def is_closing(self) -> bool:
        return False

    def nothing(self, *_: object, **__: object) -> None:
        pass

    set_write_buffer_limits = pause_reading = resume_reading = close = abort = nothing

    def get_extra_info(self, _: str) -> None:
        return None


class Loop:
    """The running loop, but for its connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, asked: list[Wire]) -> None:
        self._asked = asked
        self.time, self.call_later, self.create_task = loop.time, loop.call_later, loop.create_task

    async def create_connection(self, factory: Callable[[], Any], *_: object, **__: object) -> tuple[Wire, Any]:
        wire = Wire(self._asked)
        wire.protocol = factory()
        wire.protocol.connection_made(wire)
        return wire, wire.protocol


class Bench:
    """One gateway with clients and engines that are there already."""

    def __init__(self, metrics: str = "llamacpp", token: bytes = TOKEN) -> None:
        self.token = token
        loop = asyncio.get_running_loop()
        self.asked: list[Wire] = []
        attach = EngineKind("attach", attach=("http://127.0.0.1:8000",), metrics=metrics)
        spec = Spec(pools=(Pool("bench", "bench", attach, queued_max=10_000),), models=(Model("bench", 131_072),), tiers=DEFAULT_TIERS)
        upstream = HttpUpstream(Loop(loop, self.asked))  # type: ignore[arg-type]
        self.gateway = Gateway(spec, LoopClock(), RandomIds(), upstream, random.Random(1), NoSink(), "bench")
        roster = static_roster(spec)
        self.gateway.apply(type(roster)(roster.term, roster.version, roster.lease_s, tuple(_wide(pool) for pool in roster.pools)))
        self.clients = []
        for _ in range(CONNECTIONS):
            client = ClientConnection(self.gateway.http)
            client.connection_made(Wire())  # type: ignore[arg-type]
            self.clients.append(client)
        self.short = request(8000, {})
        self.stream = request(8000, {"chunks": 4, "pace_ms": 1})

    async def warm(self) -> None:
        """Connect to the engine, and let adaptive code adapt."""
        for client in self.clients:
            client.data_received(self.short)
        for _ in range(20):
            await asyncio.sleep(0)
        for _ in range(len(self.asked)):
            self.asked.pop(0).protocol.data_received(SHORT)
        for turn in range(20):
            self.json(turn)
            self.sse(turn)
        self.check()

    def batch(self, turn: int) -> list[ClientConnection]:
        return [self.clients[(turn * BATCH + place) % CONNECTIONS] for place in range(BATCH)]

    def ask(self, turn: int, wire: bytes) -> list[Wire]:
        for client in self.batch(turn):
            client.data_received(wire)
        engines = self.asked[:]
        self.asked.clear()
        return engines

    def json(self, turn: int) -> int:
        answer = ANSWERS[turn % len(ANSWERS)]
        for engine in self.ask(turn, self.short):
            engine.protocol.data_received(answer)
        return BATCH

    def sse(self, turn: int) -> int:
        engines = self.ask(turn, self.stream)
        for piece in (STREAM_HEAD + ROLE + TOKEN, TOKEN, TOKEN, TOKEN, END):
            for engine in engines:
                engine.protocol.data_received(piece)
        return BATCH

    def chunk(self, _: int) -> int:
        engines = self.streams
        for _ in range(CHUNKS_A_STREAM):
            for engine in engines:
                # A read is an object of its own.
                engine.protocol.data_received(b"%b" % self.token)
        return CHUNKS_A_STREAM * len(engines)

    def open_streams(self) -> None:
        self.streams = [engine for turn in range(CONNECTIONS // BATCH) for engine in self.ask(turn, self.stream)]
        for engine in self.streams:
            engine.protocol.data_received(STREAM_HEAD + ROLE + self.token)

    def close_streams(self) -> None:
        for engine in self.streams:
            engine.protocol.data_received(END)
        self.check()

    def check(self) -> None:
        """Everything asked was answered, in one write each way."""
        self.gateway.check()
        assert self.gateway.desk.live == 0, "a request was not answered"


def least(case: Callable[[int], int], turns: int, rounds: int) -> float:
    """Microseconds per unit in the best round."""
    best = float("inf")
    for _ in range(rounds):
        units = 0
        begun = time.perf_counter()
        for turn in range(turns):
            units += case(turn)
        best = min(best, (time.perf_counter() - begun) / units * 1e6)
    return best


def counted(case: Callable[[int], int]) -> tuple[float, float]:
    """Bytecodes and calls (of C functions too) per unit."""
    calls = codes = units = 0

    def profile(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal codes
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        codes += event == "opcode"
        return trace

    sys.setprofile(profile)
    for turn in range(COUNTED_TURNS):
        units += case(turn)
    sys.setprofile(None)
    sys.settrace(trace)
    for turn in range(COUNTED_TURNS):
        case(turn)
    sys.settrace(None)
    return codes / units, calls / units


async def bench(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    plain, told = Bench(), Bench("vllm", TOLD)
    await plain.warm()
    await told.warm()
    result = {}
    for name, turns in (("json", 64), ("sse", 32), ("chunk", 1), ("told", 1)):
        own = told if name == "told" else plain
        case = own.chunk if name == "told" else getattr(own, name)
        if case == own.chunk:
            own.open_streams()
        gc.collect()
        if args.profile == name:
            profiler = cProfile.Profile()
            profiler.enable()
            least(case, turns, 20)
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
        us = least(case, turns, args.rounds)
        codes, calls = counted(case)
        result[name] = {"us": round(us, 2), "bytecodes": round(codes, 1), "calls": round(calls, 1)}
        if case == own.chunk:
            own.close_streams()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--profile", choices=["json", "sse", "chunk", "told"])
    parser.add_argument("--json", metavar="PATH")
    args = parser.parse_args()
    result = uvloop.run(bench(args))
    print(f"{'':8}{'µs':>8}{'bytecodes':>12}{'calls':>8}")
    for name, row in result.items():
        print(f"{name:8}{row['us']:8.2f}{row['bytecodes']:12.1f}{row['calls']:8.1f}")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
