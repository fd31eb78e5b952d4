"""The simulator against the emulator served live over HTTP at speed 1: the same arrivals, the same profile, TTFT and ITL side by side.

    python bench/simulation_vs_emulator.py [--minutes 3] [--rate-scale 2.5] [--json PATH]

The emulator is a process of its own, asked by `forebay replay` (real sockets, real time). Goal: p50 and p95 within 5 %.
Takes its rows from azure2023's conversations where ../shared/traces is there, else from a lognormal mix.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from forebay.demand.arrays import CHUNK_ROWS, Arrivals
from forebay.demand.arrivals import arrivals, sized
from forebay.demand.trace import Counts, TraceRow
from forebay.engine.capacity import roster_capacity
from forebay.engine.catalogue import PROFILES
from forebay.loadgen import files
from forebay.simulation.fast import FastFleet
from forebay.simulation.values import Dispatch, FleetRules, Order, Queueing, TierRules

TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
PROFILE = PROFILES["llama-3.1-8b-h100"]
FOREBAY = (sys.executable, "-m", "forebay.cli.main")


def rows_of(path: Path, minutes: float, rate_scale: float) -> list[TraceRow]:
    """The very rows that `forebay replay` sends with these options and seed 0."""
    selection = files.Selection(
        path=str(path), trace_format="auto", start_s=0.0, duration_s=60 * minutes, rate_scale=rate_scale, lenient=False, tiers={}
    )
    return files.load(selection, 0, Counts())


def own_trace(folder: Path, minutes: float) -> Path:
    chance = random.Random(0)
    path = folder / "trace.jsonl"
    times = arrivals(lambda _: 5.5, 60 * minutes, chance)
    with path.open("w") as out:
        for row in sized(times, 1155, 211, chance, 0.9):
            out.write(json.dumps({"at_s": row.at_s, "prompt_tokens": row.prompt_tokens, "output_tokens": row.output_tokens}) + "\n")
    return path


def simulated(rows: list[TraceRow]) -> dict[str, dict[str, float]]:
    columns = Arrivals(
        np.array([row.at_s for row in rows]),
        np.array([row.prompt_tokens for row in rows], np.int32),
        np.array([row.output_tokens for row in rows], np.int32),
        np.zeros(len(rows), np.int16),
        np.full(len(rows), -1, np.int64),
        np.zeros(len(rows), np.int32),
    )
    chunks = (Arrivals(*(column[at : at + CHUNK_ROWS] for column in columns)) for at in range(0, len(rows), CHUNK_ROWS))
    tiers = (TierRules("all", 3600.0, 3600.0, 36000.0),)
    rules = FleetRules(PROFILE, roster_capacity(PROFILE, 1.0, 0.05), tiers, Queueing.ENGINE, Dispatch.LEAST_LOADED, Order.FIFO)
    fleet = FastFleet(rules, chunks)
    fleet.add()
    fleet.run_until(rows[-1].at_s + 3600)
    found = fleet.results(0)
    return {"ttft": found.ttft_s, "itl": found.itl_s}


def live(path: Path, folder: Path, minutes: float, rate_scale: float) -> dict[str, Any]:
    ready = folder / "ready.json"
    engine = subprocess.Popen([*FOREBAY, "emulate", "--profile", PROFILE.name, "--ready-file", str(ready)], stdout=subprocess.DEVNULL)
    try:
        while not ready.exists():
            assert engine.poll() is None, "the emulator did not start"
            time.sleep(0.05)
        url = json.loads(ready.read_bytes())["urls"][0]
        report = folder / "report.json"
        command = [*FOREBAY, "replay", "--target", url, "--trace", str(path), "--duration", f"{60 * minutes:g}s"]
        subprocess.run([*command, "--rate-scale", f"{rate_scale:g}", "--json", str(report)], check=True, stdout=subprocess.DEVNULL)
        return json.loads(report.read_bytes())
    finally:
        engine.terminate()
        engine.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--rate-scale", type=float, default=2.5)
    parser.add_argument("--json", metavar="PATH")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = TRACE if TRACE.exists() else own_trace(folder, wanted.minutes)
        rows = rows_of(path, wanted.minutes, wanted.rate_scale)
        ours = simulated(rows)
        theirs = live(path, folder, wanted.minutes, wanted.rate_scale)
    print(f"{len(rows)} requests over {wanted.minutes:g} min to one {PROFILE.name}; {theirs['completed']} completed live")
    result: dict[str, Any] = {"requests": len(rows), "generator_bound": theirs["generator_bound"]}
    for what, key in (("ttft", "ttft_s"), ("itl", "itl_s")):
        for quantile in ("p50", "p95"):
            pair = (ours[what][quantile], theirs[key][quantile])
            result[f"{what}_{quantile}"] = pair
            print(f"  {what} {quantile}: simulated {1e3 * pair[0]:8.2f} ms   live {1e3 * pair[1]:8.2f} ms   {pair[0] / pair[1] - 1:+.1%}")
    if theirs["generator_bound"]:
        print("the generator was the bottleneck: run it again on a quieter machine")
    if wanted.json:
        Path(wanted.json).write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
