"""How fast the fleet simulator is: simulated requests per second on one core, what a hundred times the replicas cost, and memory.

    python bench/simulation.py [--requests 2000000] [--json PATH] [--peers] [--peers-python .venv-peers/bin/python]

Every case is a process of its own, played as the lab plays it: to the next decision, a scrape of every replica, and on. Seconds
are of CPU, after compilation, with the drawing of arrivals in them. Decisions are timed apart: Forebay's policy over `examples/lab.yaml`'s
pool with four weeks of history, which it learns from at its first look. ``--peers`` runs DynoSim (`python -m dynamo.replay` of
ai-dynamo 1.3.1) and Forebay on the same hour of azure2023's conversations with 4 replicas. Lengths are that trace's where
../shared/traces is there, else lognormal ones of the same means.
"""

import argparse
import csv
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forebay.app.config import load
from forebay.demand.arrays import CHUNK_ROWS, Arrivals
from forebay.domain.profile import Profile
from forebay.domain.scaling import Decision, History, Observation
from forebay.engine.capacity import roster_capacity
from forebay.engine.catalogue import PROFILES
from forebay.scaling.capacity import pool_capacity
from forebay.scaling.policy import QueueFirst
from forebay.simulation import lab
from forebay.simulation.fast import FastFleet
from forebay.simulation.lab_scenario import scenario_from
from forebay.simulation.values import Dispatch, FleetRules, Queueing, TierRules

TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
DECISION_S = 15.0
GOAL_PER_S = 400_000
GOAL_GROWTH = 3.0
GOAL_DECIDE_MS = 0.5
DECIDING_S, DECIDING_PER_S = 3 * 3600.0, 60.0
WEEKS_S, BUCKET_S = 28 * 86_400.0, 300.0
GOAL_OVER_PEER = 300.0
PEER_REPLICAS = 4
PEER_BLOCKS = 27_000
OWN_REPEATS = 21
STANDARD = TierRules("standard", 1.0, 0.05, 30.0)
TIERS = (TierRules("premium", 0.5, 0.05, 15.0), STANDARD, TierRules("batch", 60.0, 1.0, 600.0, preemptible=True))


class Case(NamedTuple):
    """One row of the table."""

    name: str
    profile: str
    replicas: int
    per_s: float
    tiers: tuple[TierRules, ...] = (STANDARD,)
    queueing: Queueing = Queueing.GATEWAY
    dispatch: Dispatch = Dispatch.LEAST_LOADED
    groups: int = 0
    unrest: bool = False
    """Every minute a replica crashes, one is drained and one is added."""


CASES = {
    case.name: case
    for case in (
        Case("20 replicas", "llama-3.1-70b-fp8-4xh100", 20, 200.0),
        Case(
            "20 replicas, all features", "llama-3.1-70b-fp8-4xh100", 20, 200.0, TIERS, dispatch=Dispatch.PREFIX, groups=20_000, unrest=True
        ),
        Case(
            "20 replicas, engines queue",
            "llama-3.1-70b-fp8-4xh100",
            20,
            200.0,
            queueing=Queueing.ENGINE,
            dispatch=Dispatch.ROUND_ROBIN,
        ),
        Case("20 replicas of one H200", "llama-3.1-70b-fp8-1xh200", 20, 70.0),
        Case("20 replicas, a fifth too much", "llama-3.1-70b-fp8-1xh200", 20, 100.0),
        Case("2,000 replicas, the same traffic", "llama-3.1-70b-fp8-4xh100", 2000, 200.0),
    )
}


def conversations() -> list[tuple[float, int, int]]:
    """Seconds, prompt and output tokens of azure2023's conversations; none where the trace isn't there."""
    if not TRACE.exists():
        return []
    with TRACE.open(newline="") as lines:
        rows = [(datetime.fromisoformat(row["TIMESTAMP"][:26]), row) for row in csv.DictReader(lines)]
    start = rows[0][0]
    return [((at - start).total_seconds(), int(row["ContextTokens"]), max(1, int(row["GeneratedTokens"]))) for at, row in rows]


def lengths() -> npt.NDArray[np.int64]:
    """(n, 2): prompt and output tokens to draw from."""
    rows = conversations()
    if rows:
        return np.array([row[1:] for row in rows])
    chance = np.random.default_rng(0)
    prompts = chance.lognormal(math.log(1155) - 0.32, 0.8, 20_000)
    outputs = chance.lognormal(math.log(211) - 0.5, 1.0, 20_000)
    return np.clip(np.column_stack([prompts, outputs]), 1, 8000).astype(np.int64)


def drawn(case: Case, requests: int) -> Iterator[Arrivals]:
    """Poisson arrivals, a chunk at a time."""
    chance, pairs, at_s = np.random.default_rng(1), lengths(), 0.0
    while requests:
        rows = min(requests, CHUNK_ROWS)
        requests -= rows
        times = at_s + np.cumsum(chance.exponential(1 / case.per_s, rows))
        at_s = times[-1]
        pair = pairs[chance.integers(0, len(pairs), rows)].astype(np.int32)
        tier = chance.choice(len(case.tiers), rows, p=(0.2, 0.7, 0.1)) if len(case.tiers) == 3 else np.zeros(rows)
        group = chance.integers(0, case.groups, rows) if case.groups else np.full(rows, -1)
        shared = pair[:, 0] // 2 if case.groups else np.zeros(rows, np.int32)
        yield Arrivals(times, pair[:, 0].copy(), pair[:, 1].copy(), tier.astype(np.int16), group, shared)


def rules_of(profile: Profile, case: Case) -> FleetRules:
    capacity = roster_capacity(profile, STANDARD.ttft_s, STANDARD.itl_s, 1155, 211)
    return FleetRules(profile, capacity, case.tiers, case.queueing, case.dispatch)


def shake(fleet: FastFleet, live: list[int], minute: int) -> None:
    """A crash, a drain that ends, and the replicas that take their place."""
    crashed, drained = live.pop(minute % len(live)), live.pop(minute * 7 % len(live))
    fleet.drain(drained)
    fleet.stop(crashed)
    fleet.run_until(fleet.now_s + 5.0)
    fleet.stop(drained)
    live += [fleet.add(), fleet.add()]


def play(case: Case, requests: int) -> dict[str, Any]:
    """One case, in this process."""
    rules = rules_of(PROFILES[case.profile], case)
    warm = FastFleet(rules, drawn(case, 100))
    warm.add()
    warm.run_until(1000.0)
    fleet = FastFleet(rules, drawn(case, requests))
    live = [fleet.add() for _ in range(case.replicas)]
    cpu_s, wall_s, ticks = time.process_time(), time.perf_counter(), 0
    while not fleet.exhausted:
        fleet.run_until(fleet.now_s + DECISION_S)
        for row in live:
            fleet.read(row)
        ticks += 1
        if case.unrest and ticks % 4 == 0:
            shake(fleet, live, ticks // 4)
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    results = [fleet.results(tier) for tier in range(len(case.tiers))]
    fleet.check()
    return {
        "case": case.name,
        "profile": case.profile,
        "replicas": case.replicas,
        "requests": requests,
        "simulated_s": fleet.now_s,
        "requests_per_cpu_s": requests / cpu_s,
        "requests_per_s": requests / wall_s,
        "us_per_request": 1e6 * cpu_s / requests,
        "scrapes": ticks * len(live),
        "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "shed": sum(result.totals.shed for result in results),
        "preempted": sum(result.totals.preempted for result in results),
        "both_attainment": results[min(1, len(results) - 1)].both_attainment,
    }


def in_own_process(name: str, requests: int) -> dict[str, Any]:
    """Memory is a process's, and one case must not warm the caches of the next."""
    words = (sys.executable, __file__, "--one", name, "--requests", str(requests))
    answer = subprocess.run(words, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


class Timed:
    """A policy, and the seconds of CPU that each of its decisions took."""

    def __init__(self, policy: QueueFirst) -> None:
        self._policy = policy
        self.took_s: list[float] = []

    def decide(self, observation: Observation) -> Decision:
        began_s = time.process_time()
        decision = self._policy.decide(observation)
        self.took_s.append(time.process_time() - began_s)
        return decision


def deciding() -> dict[str, float]:
    """What a decision costs, some twenty replicas and four weeks of history before it."""
    spec = load(Path(__file__).resolve().parents[1] / "examples" / "lab.yaml")
    (pool,) = spec.pools
    scenario = scenario_from(pool, spec.tiers, duration_s=DECIDING_S, start_wall_s=WEEKS_S, initial_replicas=20)
    times_s = np.arange(0, WEEKS_S, BUCKET_S)
    counts = np.random.default_rng(2).poisson(DECIDING_PER_S * BUCKET_S * (1 - 0.3 * np.cos(times_s * 2 * math.pi / 86_400.0)) / 0.7)
    past = History(0.0, BUCKET_S, *(np.asarray(counts * tokens, "<f4").tobytes() for tokens in (1, 1155, 211)))
    timed = Timed(QueueFirst(pool.scaling, pool_capacity(pool), (), pool.name, pool.slo))
    arrivals = drawn(Case("deciding", "", 20, DECIDING_PER_S), round(1.1 * DECIDING_PER_S * DECIDING_S))
    played = lab.play(scenario, timed, arrivals, name="forebay", cpu_clock=time.process_time, past=past, pool=pool.name)
    first_s, *others_s = timed.took_s
    found = {"decide_ms": 1e3 * statistics.mean(others_s), "first_decide_ms": 1e3 * first_s, "replicas_mean": played.replicas_mean}
    print(f"decide {found['decide_ms']:.2f} ms of CPU on average over {len(others_s)}, goal ≤ {GOAL_DECIDE_MS:g}; ", end="")
    print(f"the first, which learns from four weeks, {found['first_decide_ms']:.0f} ms; {played.replicas_mean:.1f} replicas")
    return found


def children_s(words: tuple[str, ...]) -> tuple[float, float]:
    """Seconds of CPU and of wall that a command takes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - began


def dynosim_s(python: str, rows: list[tuple[float, int, int]], folder: Path) -> tuple[float, float]:
    """Seconds of CPU and wall of DynoSim on ``rows``, its own start (`--help`) taken off."""
    trace, block = folder / "trace.jsonl", 512
    with trace.open("w") as out:
        hashes = 0
        for at_s, prompt, output in rows:
            blocks = -(-prompt // block)
            ids = list(range(hashes, hashes + blocks))
            hashes += blocks
            line = {"timestamp": int(at_s * 1000), "input_length": prompt, "output_length": output, "hash_ids": ids}
            out.write(json.dumps(line) + "\n")
    engine = {"block_size": 16, "num_gpu_blocks": PEER_BLOCKS, "max_num_seqs": 256, "max_num_batched_tokens": 2048}
    words = (python, "-m", "dynamo.replay")
    start = children_s((*words, "--help"))
    options = ("--num-workers", str(PEER_REPLICAS), "--replay-mode", "offline", "--router-mode", "round_robin")
    sizes = ("--trace-block-size", str(block), "--extra-engine-args", json.dumps(engine), "--report-json", str(folder / "report.json"))
    whole = children_s((*words, str(trace), *options, *sizes))
    return whole[0] - start[0], whole[1] - start[1]


def own_s(rows: list[tuple[float, int, int]]) -> float:
    """Median seconds of CPU of Forebay on ``rows``, engines queueing, round robin, the same slots and blocks."""
    case = Case("peer", "llama-3.1-70b-fp8-4xh100", PEER_REPLICAS, 0.0, queueing=Queueing.ENGINE, dispatch=Dispatch.ROUND_ROBIN)
    given = PROFILES[case.profile]
    profile = Profile(**{**{name: getattr(given, name) for name in given.__struct_fields__}, "kv_tokens": PEER_BLOCKS * 16})
    columns = np.array(rows)
    chunk = Arrivals(
        columns[:, 0].copy(),
        columns[:, 1].astype(np.int32),
        columns[:, 2].astype(np.int32),
        np.zeros(len(rows), np.int16),
        np.full(len(rows), -1, np.int64),
        np.zeros(len(rows), np.int32),
    )
    taken_s = []
    for _ in range(OWN_REPEATS):
        began_s = time.process_time()
        fleet = FastFleet(rules_of(profile, case), iter([chunk]))
        for _ in range(PEER_REPLICAS):
            fleet.add()
        while not fleet.exhausted:
            fleet.run_until(fleet.now_s + DECISION_S)
        taken_s.append(time.process_time() - began_s)
        assert fleet.results(0).totals.completed == len(rows)
    return statistics.median(taken_s)


def against_peer(python: str) -> dict[str, float] | None:
    """Both on the same rows, in one run; None (and why) where it can't be done."""
    rows = conversations()
    if not rows:
        print(f"no peers: {TRACE} is not there")
        return None
    if not Path(python).exists():
        print(f"no peers: {python} is not there; make a virtual environment with ai-dynamo==1.3.1 in it")
        return None
    with tempfile.TemporaryDirectory() as folder:
        peer_cpu_s, peer_wall_s = dynosim_s(python, rows, Path(folder))
    ours_s = own_s(rows)
    found = {
        "requests": len(rows),
        "dynosim_cpu_s": peer_cpu_s,
        "dynosim_wall_s": peer_wall_s,
        "dynosim_requests_per_s": len(rows) / peer_cpu_s,
        "forebay_cpu_s": ours_s,
        "forebay_requests_per_s": len(rows) / ours_s,
        "ratio": peer_cpu_s / ours_s,
    }
    print(f"\nDynoSim  {found['dynosim_requests_per_s']:>12,.0f} requests per CPU second ({peer_cpu_s:.1f} s, wall {peer_wall_s:.1f} s)")
    print(f"Forebay  {found['forebay_requests_per_s']:>12,.0f} requests per CPU second ({ours_s:.4f} s, median of {OWN_REPEATS})")
    print(f"ratio    {found['ratio']:>12,.0f}   goal ≥ {GOAL_OVER_PEER:g}")
    return found


def report(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Print the table; returns what the goals are about."""
    print(f"{'case':<34}{'requests':>11}{'per CPU s':>12}{'per wall s':>12}{'µs each':>9}{'MiB':>6}{'shed':>9}{'both':>8}")
    for row in rows:
        print(
            f"{row['case']:<34}{row['requests']:>11,}{row['requests_per_cpu_s']:>12,.0f}{row['requests_per_s']:>12,.0f}"
            f"{row['us_per_request']:>9.2f}{row['memory_mib']:>6.0f}{row['shed']:>9,}{row['both_attainment']:>8.1%}"
        )
    by_name = {row["case"]: row for row in rows}
    slowest = min(row["requests_per_cpu_s"] for row in rows if row["replicas"] == 20)
    growth = by_name["2,000 replicas, the same traffic"]["us_per_request"] / by_name["20 replicas"]["us_per_request"]
    print(
        f"\nslowest of 20 replicas {slowest:,.0f} requests/s, goal ≥ {GOAL_PER_S:,}; 20 → 2,000 replicas ×{growth:.2f}, goal ≤ {GOAL_GROWTH:g}"
    )
    return {"slowest_requests_per_s": slowest, "growth_20_to_2000": growth}


def main() -> None:
    """Run all cases, or the one named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2_000_000)
    parser.add_argument("--json", metavar="PATH")
    parser.add_argument("--peers", action="store_true", help="also DynoSim, where it is installed")
    parser.add_argument("--peers-python", default=str(Path(__file__).resolve().parents[1] / ".venv-peers" / "bin" / "python"))
    parser.add_argument("--one", choices=list(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(play(CASES[options.one], options.requests)))
        return
    rows = [in_own_process(name, options.requests) for name in CASES]
    found: dict[str, Any] = {"cases": rows, **report(rows), **deciding()}
    if options.peers:
        found["peer"] = against_peer(options.peers_python)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
