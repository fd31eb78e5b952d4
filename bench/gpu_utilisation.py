"""What the meters of a fixed fleet show while its load climbs through its capacity: utilisation flat, KV and the queue ahead of the breach.

    python bench/gpu_utilisation.py [--out docs/gpu-utilisation.png] [--json PATH]

72 replicas behind a plain load balancer, in the simulator; the rate climbs evenly from 50 to 400 requests a second over 40
minutes. Each warning is timed against the end of the first minute in which the first token was late for one request in twenty.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import matplotlib
import msgspec
import numpy as np

from forebay.app.config import load
from forebay.demand import synthesis
from forebay.demand.intensity import Intensity
from forebay.demand.lengths import Lognormal
from forebay.simulation.fast import FastFleet
from forebay.simulation.lab import play
from forebay.simulation.lab_scenario import scenario_from
from forebay.simulation.scripted import Static
from forebay.simulation.values import Queueing

matplotlib.use("Agg")

from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[1]
REPLICAS = 72
STILL_S, CLIMB_S, END_S = 300.0, 2400.0, 60.0
FROM_PER_S, TO_PER_S = 50.0, 400.0
ROW_S = 15.0
HELD_ROWS = 4
"""A line is crossed where a value stays beyond it for a minute."""
GPU, KV, QUEUE, TOKEN, PACE = "#868e96", "#1c7ed6", "#7048e8", "#0b7285", "#e8590c"


def played(seed):
    """(pool, timeline) of the fixed fleet under the climb."""
    pool = load(ROOT / "examples/lab.yaml").pools[0]
    tiers = load(ROOT / "examples/lab.yaml").tiers
    pool = msgspec.structs.replace(pool, scaling=msgspec.structs.replace(pool.scaling, min_replicas=REPLICAS))
    scenario = scenario_from(pool, tiers, duration_s=STILL_S + CLIMB_S + END_S, initial_replicas=REPLICAS, seed=seed)
    rules = msgspec.structs.replace(scenario.rules, queueing=Queueing.ENGINE)
    scenario = msgspec.structs.replace(scenario, timeline_s=ROW_S, rules=rules)
    edges = np.cumsum([0.0, STILL_S, CLIMB_S, END_S])
    rate = Intensity(edges, np.array([FROM_PER_S, FROM_PER_S, TO_PER_S]), np.array([FROM_PER_S, TO_PER_S, TO_PER_S]))
    chance = np.random.default_rng(seed)
    lengths = Lognormal(pool.scaling.prompt_tokens, pool.scaling.output_tokens)
    rows = synthesis.requests(synthesis.times(rate, 1.0, chance), lengths, chance)
    arrivals = synthesis.tiered(rows, [1.0, *[0.0] * (len(tiers) - 1)], chance)
    run = play(scenario, Static(REPLICAS), arrivals, name="static", fleet=FastFleet, cpu_clock=time.process_time)
    return pool, run.timeline


def crossed_s(rows, beyond):
    """When the first of ``HELD_ROWS`` readings in a row for which ``beyond`` holds was taken; None where that never is."""
    held = 0
    for row in rows:
        held = held + 1 if beyond(row) else 0
        if held == HELD_ROWS:
            return row.at_s - (HELD_ROWS - 1) * ROW_S
    return None


def numbers(pool, rows):
    """Means of the utilisation by rate, and the seconds by which each warning is ahead of the breach."""
    slo = pool.slo
    minutes = [row for row in rows if row.at_s % 60 == 0]
    breach_s = next(row.at_s for row in minutes if row.ttft_p95_s > slo.ttft_s)
    quiet = [row for row in rows if 60 < row.at_s <= STILL_S]
    busy = [row for row in rows if row.at_s > breach_s]
    found = {
        "breach_s": breach_s,
        "rate_at_breach_per_s": FROM_PER_S + (TO_PER_S - FROM_PER_S) * (breach_s - STILL_S) / CLIMB_S,
        "gpu_usage_at_50_per_s": float(np.mean([row.gpu_usage for row in quiet])),
        "gpu_usage_in_breach": float(np.mean([row.gpu_usage for row in busy])),
        "kv_usage_at_50_per_s": float(np.mean([row.kv_usage for row in quiet])),
        "kv_usage_in_breach": float(np.mean([row.kv_usage for row in busy])),
    }
    ahead = {
        "kv_50_percent": crossed_s(rows, lambda row: row.kv_usage > 0.5),
        "kv_80_percent": crossed_s(rows, lambda row: row.kv_usage > 0.8),
        "one_waiting_for_three_replicas": crossed_s(rows, lambda row: row.engines_waiting > REPLICAS / 3),
        "gpu_99_percent": crossed_s(rows, lambda row: row.gpu_usage > 0.99),
        "pace_p95": next((row.at_s for row in minutes if row.itl_p95_s > slo.itl_s), None),
    }
    found["ahead_of_breach_s"] = {name: None if at_s is None else breach_s - at_s for name, at_s in ahead.items()}
    return found


def draw(pool, rows, found, path):
    """The picture of the docs page."""
    at = [row.at_s / 60 for row in rows]
    minutes = [row for row in rows if row.at_s % 60 == 0]
    at_minutes = [row.at_s / 60 for row in minutes]
    figure, axes = pyplot.subplots(4, 1, figsize=(10, 9.5), sharex=True, gridspec_kw={"height_ratios": [0.8, 1.3, 1, 1.1]})
    axes[0].plot(at, [row.arrived / ROW_S for row in rows], color="#4263eb")
    axes[0].set_ylabel("requests/s")
    axes[1].plot(at, [100 * row.gpu_usage for row in rows], color=GPU, linewidth=2.4, label="GPU utilisation")
    axes[1].plot(at, [100 * row.kv_usage for row in rows], color=KV, linewidth=2, label="KV cache in use")
    axes[1].set_ylabel("%")
    axes[1].set_ylim(0, 106)
    axes[2].fill_between(
        at, [row.engines_waiting / REPLICAS for row in rows], color=QUEUE, alpha=0.6, step="pre", label="waiting per replica"
    )
    axes[2].set_yscale("symlog", linthresh=1)
    axes[2].set_ylabel("requests")
    axes[3].plot(at_minutes, [row.ttft_p95_s for row in minutes], color=TOKEN, linewidth=2, label="first token, p95 of each minute")
    axes[3].axhline(pool.slo.ttft_s, color="#e03131", linestyle="--", linewidth=1, label=f"promise: {pool.slo.ttft_s:g} s")
    axes[3].set_yscale("log")
    axes[3].set_ylabel("s")
    axes[3].set_xlabel("minutes")
    breach = found["breach_s"] / 60
    for axis in axes:
        axis.axvspan(breach, at[-1], color="#e03131", alpha=0.10, zorder=0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if axis is axes[1]:
            axis.legend(loc="center left", fontsize=9, framealpha=0.9)
        elif axis.get_legend_handles_labels()[0]:
            axis.legend(loc="upper left", fontsize=9, framealpha=0.9)
    figure.suptitle("A fixed fleet, ever more load: what each meter says before the promise breaks (red)", x=0.01, ha="left", fontsize=12)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gpu-utilisation.png")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    pool, rows = played(options.seed)
    found = numbers(pool, rows)
    draw(pool, rows, found, options.out)
    text = json.dumps(found, indent=2)
    if options.json:
        options.json.write_text(text + "\n")
    print(text)
    flat = min(found["gpu_usage_at_50_per_s"], found["gpu_usage_in_breach"]) > 0.97
    early = all(
        (found["ahead_of_breach_s"][name] or -1) > 0
        for name in ("kv_50_percent", "kv_80_percent", "one_waiting_for_three_replicas", "pace_p95")
    )
    return 0 if flat and early else 1


if __name__ == "__main__":
    sys.exit(main())
