"""What relay workers cost and carry: CPU seconds per streamed chunk of the gateway's own process, and of it with its workers.

    .venv/bin/python bench/relay_workers.py [--workers 0,1,2] [--rounds 5] [--seconds 4] [--pace-ms 20] [--chunks 400] [--json PATH]

One engine that answers on a timer, 64 streams, and one gateway for each number of workers, all with the same offered load, in
alternating rounds after a warm-up. ``owner``: what is left on the core that also has the queue. ``all ÷ none``: what the same chunks cost
in all, against a gateway that relays them itself.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

import gateway_vs_nginx as base
import psutil
import uvloop

READY_S = 30.0


async def gateway_main(engine_port: int, workers: int) -> None:
    """A gateway over one replica with more slots than streams; its port is printed when its workers have started."""
    from forebay.adapters.clock import LoopClock, RandomIds
    from forebay.adapters.upstream import HttpUpstream
    from forebay.app import gateway_wiring, process
    from forebay.gateway.service import Gateway, static_roster
    from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec

    pool = Pool("bench", base.MODEL, EngineKind("attach", attach=(f"http://127.0.0.1:{engine_port}",)), queued_max=10_000)
    spec = Spec(pools=(pool,), models=(Model(base.MODEL, 131_072),), tiers=DEFAULT_TIERS, relay_workers=workers)
    crew = gateway_wiring.relay_workers(spec, print)
    gateway = Gateway(spec, LoopClock(), RandomIds(), HttpUpstream(), random.Random(1), base.NoSink(), "bench", crew=crew)
    roster = static_roster(spec)
    gateway.apply(type(roster)(roster.term, roster.version, roster.lease_s, tuple(base._wide(pool) for pool in roster.pools)))
    port = await gateway.start("127.0.0.1", 0)
    for _ in range(int(READY_S / 0.05)):
        if gateway.lending is None or gateway.lending.workers == workers:
            break
        await asyncio.sleep(0.05)
    else:
        raise SystemExit("the workers have not started")
    process.settle()
    print(port, flush=True)
    await asyncio.Event().wait()


def start_python(*role: str) -> tuple[subprocess.Popen, int]:
    process = subprocess.Popen([sys.executable, __file__, *role], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def shares(pid: int) -> list[float]:
    """CPU seconds of a process, and of each of its children."""
    return [base.cpu_s(one) for one in [pid, *sorted(child.pid for child in psutil.Process(pid).children())]]


async def drive(port: int, pid: int, args: argparse.Namespace) -> dict:
    """One round: µs per chunk of the owner and of all, and chunks per second."""
    load = base.Load()
    wire = load.stream_wire = base.request(port, {"chunks": args.chunks, "pace_ms": args.pace_ms})
    loop = asyncio.get_running_loop()
    clients = [await loop.create_connection(lambda: base.Client(load, wire, 0.0), "127.0.0.1", port) for _ in range(base.CONNECTIONS)]
    await asyncio.sleep(args.warm_s)
    before = (shares(pid), load.chunks, loop.time())
    await asyncio.sleep(args.seconds)
    after = (shares(pid), load.chunks, loop.time())
    load.over = True
    for transport, _ in clients:
        transport.abort()
    await asyncio.sleep(0.3)
    if load.errors:
        raise SystemExit(f"{load.errors} errors: {load.error!r}")
    chunks = after[1] - before[1]
    spent_us = [(late - early) / chunks * 1e6 for early, late in zip(before[0], after[0], strict=True)]
    return {"owner_us": spent_us[0], "all_us": sum(spent_us), "chunks_per_s": chunks / (after[2] - before[2])}


async def bench(args: argparse.Namespace) -> dict:
    numbers = [int(word) for word in args.workers.split(",")]
    children = []
    rounds: dict[int, list[dict]] = {number: [] for number in numbers}
    try:
        engine, engine_port = start_python("--role", "engine")
        children.append(engine)
        places = {}
        for number in numbers:
            gateway, port = start_python("--role", "gateway", "--engine-port", str(engine_port), "--workers", str(number))
            children.append(gateway)
            places[number] = (port, gateway.pid)
        for _ in range(args.rounds):
            for number, (port, pid) in places.items():
                rounds[number].append(await drive(port, pid, args))
    finally:
        for child in children:
            child.terminate()
            child.wait(10)
    found = {}
    for number, each in rounds.items():
        row = {name: statistics.median(one[name] for one in each) for name in ("owner_us", "all_us", "chunks_per_s")}
        for name, of in (("owner_ratio", "owner_us"), ("all_ratio", "all_us")):
            pairs = zip(each, rounds[numbers[0]], strict=True)
            row[name] = statistics.median(one[of] / none["all_us"] for one, none in pairs)
        found[str(number)] = row
    return {"streams": base.CONNECTIONS, "chunks": args.chunks, "pace_ms": args.pace_ms, "rounds": args.rounds, "by_workers": found}


def show(result: dict) -> None:
    print(
        f"{result['streams']} streams of {result['chunks']} chunks, one each {result['pace_ms']} ms; medians of {result['rounds']} rounds"
    )
    print("workers  owner µs/chunk  all µs/chunk  owner ÷ none  all ÷ none  chunks/s")
    for number, row in result["by_workers"].items():
        print(
            f"{number:>7}  {row['owner_us']:14.1f}  {row['all_us']:12.1f}  {row['owner_ratio']:12.2f}  {row['all_ratio']:10.2f}"
            f"  {row['chunks_per_s']:8.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", choices=("bench", "engine", "gateway"), default="bench", help=argparse.SUPPRESS)
    parser.add_argument("--engine-port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--workers", default="0,1,2", help="numbers of workers, the first of them what the others are compared with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round, after --warm-s")
    parser.add_argument("--warm-s", type=float, default=2.0)
    parser.add_argument("--pace-ms", type=int, default=20, help="between two chunks of a stream")
    parser.add_argument("--chunks", type=int, default=400, help="of one answer")
    parser.add_argument("--json", type=Path, help="write the result there too")
    args = parser.parse_args()
    if args.role == "engine":
        uvloop.run(base.engine_main())
    elif args.role == "gateway":
        uvloop.run(gateway_main(args.engine_port, int(args.workers)))
    else:
        result = uvloop.run(bench(args))
        show(result)
        if args.json:
            args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
