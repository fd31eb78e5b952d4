"""One gateway process and two behind one address, under the same load: requests a second, CPU per request, and how the two share it.

    .venv/bin/python bench/several_gateways.py [--json PATH] [--seconds 10] [--rounds 3] [--connections 64] [--counts 1,2]

Whole `forebay up`s over the stub engines of `bench/gateway.py`, so queue, admission, metering and leases are all on. What a request costs
in CPU can be read on a busy machine; requests a second only on one with free cores for gateways, engines and the load.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import gateway as single
import gateway_vs_nginx as base
import psutil
import uvloop

ENGINES = 2
START_S = 120.0
CONFIG = """
models:
  {model}: {{context: 131072}}
pools:
  chat:
    model: {model}
    attach: {urls}
gateway: {{listen: "127.0.0.1:0", count: {count}}}
admin: {{listen: "127.0.0.1:0"}}
"""


class Up:
    """One `forebay up` with ``count`` gateways."""

    def __init__(self, folder: Path, urls: list[str], count: int) -> None:
        folder.mkdir()
        config, self.ready = folder / "forebay.yaml", folder / "ready.json"
        config.write_text(CONFIG.format(model=base.MODEL, urls=json.dumps(urls), count=count))
        command = [sys.executable, "-m", "forebay.cli.main", "up", "-c", str(config), "--ready-file", str(self.ready)]
        with (folder / "up.log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={**os.environ, "TMPDIR": str(folder)})

    def until_ready(self) -> None:
        """Wait for its address, and until every gateway has a replica."""
        give_up_s = time.monotonic() + START_S
        while not self.ready.exists():
            assert self.process.poll() is None, "forebay up has ended"
            assert time.monotonic() < give_up_s, "forebay up is not ready"
            time.sleep(0.1)
        said = json.loads(self.ready.read_text())
        self.port = int(said["gateway"].rpartition(":")[2])
        children = psutil.Process(self.process.pid).children()
        self.gateways = [child.pid for child in children if "forebay.app.gateway_main" in child.cmdline()]
        while len(self.gateways) > 1:
            with urllib.request.urlopen(f"{said['admin']}/v1/status", timeout=20) as answer:
                replicas = json.load(answer)["pools"][0]["detail"]
            if len({replica["gateway"] for replica in replicas} - {""}) == len(self.gateways):
                break
            time.sleep(0.2)

    def close(self) -> None:
        """End it in order."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


async def drive(up: Up, args: argparse.Namespace) -> dict:
    """One round: as many requests as ``connections`` clients can have answered."""
    load, loop = base.Load(), asyncio.get_running_loop()
    wire = base.request(up.port, {})
    load.stream_wire = None
    clients = [await loop.create_connection(lambda: base.Client(load, wire, 0.0), "127.0.0.1", up.port) for _ in range(args.connections)]
    await asyncio.sleep(1.0)
    requests, began_s = load.requests, time.perf_counter()
    cpu_s = [single.cpu_s(pid) for pid in up.gateways]
    await asyncio.sleep(args.seconds)
    taken_s = [single.cpu_s(pid) - before for pid, before in zip(up.gateways, cpu_s, strict=True)]
    served, seconds = load.requests - requests, time.perf_counter() - began_s
    load.over = True
    for transport, _ in clients:
        transport.abort()
    await asyncio.sleep(0.5)
    return {
        "per_s": served / seconds,
        "cpu_us": sum(taken_s) / served * 1e6,
        "share": max(taken_s) / sum(taken_s),
        "cores": sum(taken_s) / seconds,
        "errors": load.errors,
    }


async def bench(args: argparse.Namespace) -> dict:
    engines = [single.start_python("--role", "engine") for _ in range(ENGINES)]
    urls = [f"http://127.0.0.1:{port}" for _, port in engines]
    rounds: dict[int, list[dict]] = {count: [] for count in args.counts}
    with tempfile.TemporaryDirectory() as folder:
        ups = {count: Up(Path(folder) / str(count), urls, count) for count in args.counts}
        try:
            for up in ups.values():
                up.until_ready()
            for _ in range(args.rounds):
                for count, up in ups.items():
                    rounds[count].append(await drive(up, args))
        finally:
            for up in ups.values():
                up.close()
            for engine, _ in engines:
                engine.kill()
    return {str(count): {name: statistics.median(row[name] for row in each) for name in each[0]} for count, each in rounds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--counts", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2])
    args = parser.parse_args()
    result = uvloop.run(bench(args))
    print("gateways   requests/s   CPU µs a request   cores used   of them the busiest   errors")
    for count, row in result.items():
        print(f"{count:>8} {row['per_s']:>12.0f} {row['cpu_us']:>18.1f} {row['cores']:>12.2f} {row['share']:>21.0%} {row['errors']:>8.0f}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
