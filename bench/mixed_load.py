"""Interactive and batch on one pool at more than it can serve: what interactive keeps, and what batch gets of the rest. Usage:

    .venv/bin/python bench/mixed_load.py [--seconds 90] [--seeds 1,2,3,4] [--replicas 2] [--profile llama-3.1-70b-fp8-2xh100] [--json PATH]

The unmodified gateway over emulated engines in a virtual world, so the machine's speed does not matter. Four cases with the same
arrivals: interactive alone at 60 % of what the replicas serve at their SLO, batch alone at 200 % (what the fleet can do at most),
both (60 % and 70 %), and both with what the queue does for interactive switched off: batch declared as a second tier that is not
preemptible. Interactive answers are streams and the time to their first byte is the client's; batch answers come whole. Each prompt
begins with words of its own, since emulated engines cache no prefixes. Quantiles are over all seeds, as one has 500 requests a minute.

What batch gets of what is left is told by requests and by work: engine seconds that the profile's law gives those which ended. Batch alone
ends other requests than batch beside interactive does, whose lengths make the share by number stray by 2 % over eight seeds of 150 s.
"""

import argparse
import asyncio
import json
import random
from pathlib import Path

import msgspec

from forebay.adapters.upstream import HttpUpstream
from forebay.domain.profile import Profile
from forebay.domain.roster import Roster, RosterPool, RosterReplica
from forebay.emulator.engine_server import EngineServer
from forebay.engine.capacity import at_slo, roster_capacity
from forebay.engine.catalogue import PROFILES
from forebay.gateway.service import Gateway
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec, Team
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.ids import CountingIds
from forebay.testing.loop import run
from forebay.testing.raw_client import RawClient

TTFT_S, ITL_S = 1.0, 0.05
PROMPT_TOKENS, OUTPUT_TOKENS = 1000, 200
KEYS = {"interactive": "sk-interactive", "batch": "sk-batch-work"}


class Tally:
    """What one tier got."""

    def __init__(self) -> None:
        self.ttft_s: list[float] = []
        self.completed = self.refused = self.other = 0
        self.work_s = 0.0
        """Of the completed ones."""

    def add(self, other: "Tally") -> None:
        self.ttft_s += other.ttft_s
        self.completed += other.completed
        self.work_s += other.work_s
        self.refused += other.refused
        self.other += other.other

    def row(self, measured_s: float) -> dict[str, float]:
        ordered = sorted(self.ttft_s)
        return {
            "ttft_p50_s": round(ordered[len(ordered) // 2], 3) if ordered else 0.0,
            "ttft_p95_s": round(ordered[int(len(ordered) * 0.95)], 3) if ordered else 0.0,
            "per_s": round(self.completed / measured_s, 3),
            "work_s_per_s": round(self.work_s / measured_s, 4),
            "refused": self.refused,
            "other": self.other,
        }


def work_of(profile: Profile, sequences: int, prompt: int, output: int) -> float:
    """Engine seconds of one request in a full batch: its prompt's, and its share of each step that gives one of its tokens."""
    law = profile.law
    step_s = law.base_s / sequences + law.per_sequence_s + law.per_kv_token_s * (prompt + output / 2)
    return law.per_prefill_token_s * prompt + step_s * output


async def one(
    port: int, clock: LoopClock, tier: str, prompt: int, output: int, work_s: float, tally: Tally, counts: tuple[float, float]
) -> None:
    client = await RawClient.connect(port)
    at_s = clock.now_s()
    stream = tier == "interactive"
    words = (f"{tier} {at_s:.9f} " + "word" * prompt)[: 4 * prompt]
    body = {"model": "m", "messages": [{"role": "user", "content": words}], "max_tokens": output, "ignore_eos": True}
    client.send("/v1/chat/completions", body | {"stream": stream}, {"authorization": f"Bearer {KEYS[tier]}", "connection": "close"})
    try:
        head = await client.head()
        first_s = clock.now_s()
        status = int(head.split(" ")[1])
        if status == 200 and stream:
            while await client.reader.read(65536):
                pass
        ended_s = clock.now_s()
    except (EOFError, ConnectionError):
        return
    finally:
        client.close()
    if status == 200:
        if counts[0] <= at_s < counts[1] and stream:
            tally.ttft_s.append(first_s - at_s)
        if counts[0] <= ended_s < counts[1]:
            tally.completed += 1
            tally.work_s += work_s
    elif counts[0] <= at_s < counts[1]:
        tally.refused += status == 429
        tally.other += status != 429


Result = tuple[dict[str, Tally], dict[str, float]]
"""By tier, and what else is counted."""


async def play(profile_name: str, replica_count: int, shares: dict[str, float], seconds: float, seed: int, preemptible: bool) -> Result:
    profile = PROFILES[profile_name]
    clock = LoopClock()
    engines = [EngineServer(profile, "m", clock, seed=f"{seed}/{number}") for number in range(replica_count)]
    capacity = roster_capacity(profile, TTFT_S, ITL_S)
    replicas = tuple([RosterReplica(f"r{n}", f"http://127.0.0.1:{await e.start('127.0.0.1', 0)}", capacity) for n, e in enumerate(engines)])
    tiers = tuple(msgspec.structs.replace(tier, preemptible=tier.preemptible and preemptible) for tier in DEFAULT_TIERS)
    teams = tuple(Team(tier, ((key, tier),)) for tier, key in KEYS.items())
    spec = Spec((Pool("p", "m", EngineKind("attach")),), (Model("m", 8192),), tiers, teams)
    gateway = Gateway(spec, clock, CountingIds(), HttpUpstream(), random.Random(seed), ListSink(), "gw")
    port = await gateway.start("127.0.0.1", 0)
    gateway.apply(Roster(1, 1, 10.0, (RosterPool("p", replicas),)))
    rate = replica_count * at_slo(profile, PROMPT_TOKENS, OUTPUT_TOKENS, TTFT_S, ITL_S).requests_per_s
    tallies = {tier: Tally() for tier in KEYS}
    counts = (seconds / 3, seconds)

    async def arrivals(tier: str, share: float) -> None:
        chance = random.Random(f"{seed}/{tier}")
        async with asyncio.TaskGroup() as group:
            while clock.now_s() < seconds:
                await clock.sleep_until(clock.now_s() + chance.expovariate(rate * share))
                prompt = chance.randint(PROMPT_TOKENS // 2, PROMPT_TOKENS * 3 // 2)
                output = max(8, min(800, round(chance.expovariate(1 / OUTPUT_TOKENS))))
                work_s = work_of(profile, capacity.sequences, prompt, output)
                group.create_task(one(port, clock, tier, prompt, output, work_s, tallies[tier], counts))

    tasks = [asyncio.ensure_future(arrivals(tier, share)) for tier, share in shares.items() if share]
    await clock.sleep_until(seconds)
    gateway.check()
    meters = gateway.desk.pools["p"].meters
    waits = meters["interactive"].queue_wait
    counted = {
        "interactive lane wait s": waits.sum_s,
        "interactive started": sum(waits.counts),
        "batch requeued": meters["batch"].requeued,
        "engine preemptions": sum(engine.stats.preemptions.value for engine in engines),
    }
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await gateway.close()
    for engine in engines:
        await engine.stop()
    return {tier: tally for tier, tally in tallies.items() if shares.get(tier)}, counted


def pooled(results: list[Result], measured_s: float) -> dict[str, dict[str, float]]:
    """One row by tier over all seeds; rates are means."""
    tallies = results[0][0]
    for more, _ in results[1:]:
        for tier, tally in more.items():
            tallies[tier].add(tally)
    rows = {tier: tally.row(measured_s * len(results)) for tier, tally in tallies.items()}
    sums = {name: sum(counted[name] for _, counted in results) for name in results[0][1]}
    if "interactive" in rows:
        rows["interactive"]["lane_wait_mean_s"] = round(sums["interactive lane wait s"] / max(1, sums["interactive started"]), 4)
    if "batch" in rows:
        rows["batch"]["requeued"] = sums["batch requeued"]
    rows["engines"] = {"preemptions": sums["engine preemptions"]}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--profile", default="llama-3.1-70b-fp8-2xh100", choices=list(PROFILES))
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3, 4], metavar="N,…")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--json", metavar="PATH")
    args = parser.parse_args()
    cases = {
        "interactive alone": ({"interactive": 0.6}, True),
        "batch alone": ({"batch": 2.0}, True),
        "both": ({"interactive": 0.6, "batch": 0.7}, True),
        "both, not preemptible": ({"interactive": 0.6, "batch": 0.7}, False),
    }
    results = {}
    for name, (shares, preemptible) in cases.items():
        played = [
            run(lambda: play(args.profile, args.replicas, shares, args.seconds, seed, preemptible))  # noqa: B023
            for seed in args.seeds
        ]
        results[name] = pooled(played, args.seconds * 2 / 3)
        print(name, json.dumps(results[name]), flush=True)
    alone, both = results["interactive alone"]["interactive"], results["both"]
    left, left_work = (results["batch alone"]["batch"][name] - both["interactive"][name] for name in ("per_s", "work_s_per_s"))
    summary = {
        "ttft_p95 to alone": round(both["interactive"]["ttft_p95_s"] / alone["ttft_p95_s"], 3),
        "batch of what is left": round(both["batch"]["per_s"] / left, 3),
        "batch of the work that is left": round(both["batch"]["work_s_per_s"] / left_work, 3),
        "interactive shed": both["interactive"]["refused"],
    }
    print(json.dumps(summary))
    if args.json:
        Path(args.json).write_text(json.dumps({"runs": results, "summary": summary}, indent=2))


if __name__ == "__main__":
    main()
