"""Does sending a request to where its prefix is cached pay? Mooncake's conversations (which carry block hashes) over fixed fleets.

    python bench/prefix.py [--duration 3600] [--scale 1] [--replicas 6,8,12] [--json PATH]

Each way of dispatch is played on the same arrivals, engines and gateway queue (Llama-3.1-70B in FP8 on four H100, first token within 5 s,
100 ms a token): first tokens, the share of prompt tokens found cached, and the smallest fixed fleet that keeps the promise to 99 %, in
GPU-hours. Needs ../shared/traces beside the repository; says so and ends where it is absent.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from forebay.app.lab.peak import smallest_fleet
from forebay.app.traces import OpenedTrace, open_arrivals
from forebay.engine.catalogue import PROFILES
from forebay.simulation.fast import FastFleet
from forebay.simulation.lab import play
from forebay.simulation.lab_scenario import scenario_from
from forebay.simulation.scripted import Static
from forebay.simulation.tune import kept
from forebay.simulation.values import Dispatch, Scenario
from forebay.spec.types import EngineKind, Pool, Scaling, Slo, Tier

TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl"
SHAPE = (12_035, 343)
"""Mean lengths of the trace."""
POOL = Pool(
    "chat",
    "llama-3.1-70b",
    EngineKind("emulated"),
    PROFILES["llama-3.1-70b-fp8-4xh100"],
    slo=Slo(5.0, 0.1),
    scaling=Scaling(prompt_tokens=SHAPE[0], output_tokens=SHAPE[1], max_replicas=64),
)
TIERS = (Tier("interactive", 0, 5.0, 600.0),)


def opened(duration_s: float, scale: float) -> OpenedTrace:
    return open_arrivals(
        TRACE,
        "mooncake",
        lengths=None,
        shape=SHAPE,
        tiers=["interactive"],
        tier_weights=None,
        start_s=0.0,
        duration_s=duration_s,
        rate_scale=scale,
        noise=0.0,
        cv=1.0,
        column="",
        seed=0,
        lenient=False,
    )


def played(world: Scenario, replicas: int, trace: OpenedTrace) -> dict[str, Any]:
    fixed = msgspec.structs.replace(world, initial_replicas=replicas)
    run = play(fixed, Static(replicas), trace.source(), name="static", fleet=FastFleet, cpu_clock=time.process_time)
    tier = run.tiers["interactive"]
    totals = tier.totals
    return {
        "replicas": replicas,
        "ttft_mean_s": tier.ttft_s.get("mean"),
        "ttft_p95_s": tier.ttft_s.get("p95"),
        "hit_rate": totals.cached_tokens / max(1, totals.arrived_prompt_tokens),
        "kept": kept(run, fixed),
        "shed": totals.shed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duration", type=float, default=3600.0, help="seconds of the trace")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply its rate")
    parser.add_argument("--replicas", default="6,8,12", help="sizes of the fleets that are compared")
    parser.add_argument("--json", metavar="PATH")
    wanted = parser.parse_args()
    if not TRACE.is_file():
        sys.exit(f"{TRACE} is not there: the recorded traces are not part of the repository; nothing was played")
    trace = opened(wanted.duration, wanted.scale)
    print(f"{trace.requests_expected:,.0f} requests in {trace.duration_s / 60:.0f} min")
    base = scenario_from(POOL, TIERS, duration_s=trace.duration_s)
    found = {}
    for way in (Dispatch.ROUND_ROBIN, Dispatch.LEAST_LOADED, Dispatch.PREFIX):
        world = msgspec.structs.replace(base, rules=msgspec.structs.replace(base.rules, dispatch=way))
        rows = [played(world, int(count), trace) for count in wanted.replicas.split(",")]
        fewest, holds = smallest_fleet(world, trace.source, rows[0]["replicas"], time.process_time)
        hours = fewest * POOL.profile.gpus * trace.duration_s / 3600 if POOL.profile and holds else None
        found[way.value] = {"rows": rows, "smallest": fewest if holds else None, "gpu_hours": hours}
        print(
            f"\n{way.value}: " + (f"{fewest} replicas keep the promise, {hours:.1f} GPU-hours" if holds else "no fleet keeps the promise")
        )
        for row in rows:
            print(
                f"  {row['replicas']:3} replicas  first token mean {row['ttft_mean_s']:6.2f} s  p95 {row['ttft_p95_s']:6.2f} s"
                f"  cached {row['hit_rate']:6.1%}  kept {row['kept']:7.2%}  shed {row['shed']}"
            )
        sys.stdout.flush()
    if wanted.json:
        Path(wanted.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
