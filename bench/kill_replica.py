"""SIGKILL of a replica under live streams: what clients see, and for how long they see nothing.

Emulated engines and the gateway are processes of their own; the clients are this one. First every prompt is answered
undisturbed, then all at once while one replica is killed. Each answer must be the same, token for token (an emulated
engine's tokens follow from the prompt). The goal on the gap is what the survivors need to prefill again what the dead
replica held, and a second. Usage:

    .venv/bin/python bench/kill_replica.py [--streams 64] [--replicas 3] [--prompt 1000] [--tokens 400] [--workers 0] [--json PATH]
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from forebay.adapters.clock import LoopClock, RandomIds
from forebay.adapters.upstream import HttpUpstream
from forebay.app.gateway_wiring import relay_workers
from forebay.engine.capacity import roster_capacity
from forebay.engine.catalogue import PROFILES
from forebay.gateway.service import Gateway, static_roster
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec
from forebay.testing.events import ListSink
from forebay.testing.raw_client import RawClient

PROFILE = "llama-3.1-8b-h100"
READY_S = 60.0
MARGIN_S = 1.0
WARM_TOKENS = 0.3
"""The replica is killed when this share of the answers is out."""


class Stream:
    """One answer as its client sees it."""

    def __init__(self, number: int, args: argparse.Namespace, on_content: Callable[[], None] = lambda: None) -> None:
        self.on_content = on_content
        word = f"p{number:06d} "
        self.body = {
            "model": "bench",
            "messages": [{"role": "user", "content": (word * (args.prompt * 4 // len(word) + 1))[: args.prompt * 4]}],
            "max_tokens": args.tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        self.text, self.error = "", ""
        self.usage: dict[str, Any] = {}
        self.finish: str | None = None
        self.events = 0
        self.gap_s = 0.0
        """The longest between two events."""
        self.last_s = 0.0

    async def run(self, port: int) -> "Stream":
        client = await RawClient.connect(port)
        client.send("/v1/chat/completions", self.body)
        await client.head()
        while True:
            data = await client.event()
            now_s = time.monotonic()
            if self.last_s:
                self.gap_s = max(self.gap_s, now_s - self.last_s)
            self.last_s = now_s
            if not data:
                break
            for piece in data.split(b"\n\n"):
                if piece.startswith(b"data: {"):
                    self._take(json.loads(piece[6:]))
        client.close()
        return self

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = event["error"]["message"]
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", ()):
            content = choice["delta"].get("content") or ""
            self.text += content
            if content:
                self.events += 1
                self.on_content()
            self.finish = choice["finish_reason"] or self.finish


def gateway_role(urls: list[str], workers: int) -> None:
    """Serve until SIGTERM; the port is the first line of output, once the relay workers have started."""
    pool = Pool("bench", "bench", EngineKind("attach", attach=tuple(urls)), PROFILES[PROFILE])
    spec = Spec((pool,), (Model("bench", 131_072),), DEFAULT_TIERS, relay_workers=workers)

    async def serve() -> None:
        gateway = Gateway(
            spec, LoopClock(), RandomIds(), HttpUpstream(), random.Random(1), ListSink(), "bench", crew=relay_workers(spec, print)
        )
        gateway.apply(static_roster(spec))
        port = await gateway.start("127.0.0.1", 0)
        for _ in range(int(READY_S / 0.05)):
            if gateway.lending is None or gateway.lending.workers == workers:
                break
            await asyncio.sleep(0.05)
        print(port, flush=True)
        await asyncio.Event().wait()

    uvloop.run(serve())


def start_engines(count: int, directory: str) -> list[tuple[subprocess.Popen[bytes], str]]:
    engines = []
    for number in range(count):
        ready = Path(directory, f"engine-{number}.json")
        command = [sys.executable, "-m", "forebay.emulator", "--profile", PROFILE, "--model", "bench", "--ready-file", str(ready)]
        engines.append((subprocess.Popen(command, stdout=subprocess.DEVNULL), ready))
    give_up_s = time.monotonic() + READY_S
    while not all(ready.exists() for _, ready in engines):
        if time.monotonic() > give_up_s:
            raise SystemExit("the emulated engines do not start")
        time.sleep(0.05)
    return [(process, json.loads(ready.read_bytes())["urls"][0]) for process, ready in engines]


async def metric(port: int, name: str) -> int:
    page = await (await RawClient.connect(port)).ask("/metrics")
    rows = [line for line in page.body.decode().splitlines() if line.startswith(name)]
    return sum(int(float(row.rsplit(" ", 1)[1])) for row in rows)


async def kill(port: int, victim: subprocess.Popen[bytes], args: argparse.Namespace) -> dict[str, Any]:
    whole = [Stream(number, args) for number in range(args.streams)]
    await asyncio.gather(*[stream.run(port) for stream in whole])
    bad = [stream.error or "no finish reason" for stream in whole if stream.error or not stream.finish]
    if bad:
        raise SystemExit(f"undisturbed, {len(bad)} answers went wrong: {bad[0]}")
    warm = asyncio.Event()
    left = itertools.count(int(WARM_TOKENS * args.streams * args.tokens), -1)
    cut = [Stream(number, args, lambda: None if next(left) else warm.set()) for number in range(args.streams)]
    tasks = [asyncio.create_task(stream.run(port)) for stream in cut]
    await warm.wait()
    out = sum(stream.events for stream in cut) / args.streams
    quiet_s = max(stream.gap_s for stream in cut)
    for stream in cut:
        stream.gap_s = 0.0
    at_workers = await metric(port, "forebay_relay_worker_streams ")
    os.kill(victim.pid, signal.SIGKILL)
    await asyncio.gather(*tasks)
    moved = await metric(port, "forebay_continued_total")
    rate = roster_capacity(PROFILES[PROFILE], 1.0, 0.05, args.prompt, args.tokens).prefill_tokens_per_s
    prefill_s = moved * (args.prompt + out) / (rate * (args.replicas - 1))
    # Those with the longest gaps are those that were moved.
    gaps_s = sorted((stream.gap_s for stream in cut), reverse=True)[:moved]
    return {
        "streams": args.streams,
        "at_workers": at_workers,
        "continued": moved,
        "truncated": sum(bool(stream.error) or not stream.finish for stream in cut),
        "other_text": sum(one.text != other.text for one, other in zip(whole, cut, strict=True)),
        "other_usage": sum(one.usage != other.usage for one, other in zip(whole, cut, strict=True)),
        "tokens_out_at_kill": round(out, 1),
        "gap_s_max": round(max(gaps_s, default=0.0), 3),
        "gap_s_median": round(gaps_s[len(gaps_s) // 2], 3) if gaps_s else 0.0,
        "gap_s_before": round(quiet_s, 3),
        "prefill_again_s": round(prefill_s, 3),
        "goal_s": round(prefill_s + MARGIN_S, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=400, help="tokens of each answer")
    parser.add_argument("--workers", type=int, default=0, help="relay workers behind the gateway")
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--gateway-for", nargs="+", metavar="URL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gateway_for:
        gateway_role(args.gateway_for, args.workers)
        return
    with tempfile.TemporaryDirectory() as directory:
        engines = start_engines(args.replicas, directory)
        command = [sys.executable, __file__, "--workers", str(args.workers), "--gateway-for", *[url for _, url in engines]]
        gateway = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert gateway.stdout is not None
        try:
            result = uvloop.run(kill(int(gateway.stdout.readline()), engines[0][0], args))
        finally:
            for process in (gateway, *[process for process, _ in engines]):
                process.kill()
                process.wait()
    for name, value in result.items():
        print(f"{name:20}{value:>10}")
    good = not (result["truncated"] or result["other_text"] or result["other_usage"]) and result["gap_s_max"] <= result["goal_s"]
    print("met" if good else "MISSED")
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
