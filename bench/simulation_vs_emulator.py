"""The simulator against the emulator served live over HTTP at speed 1: the same arrivals, the same profile, TTFT and ITL side by side.

    python bench/simulation_vs_emulator.py [--minutes 3] [--rate-scale 2.5] [--json PATH]

The emulator is a process of its own, asked by `forebay replay` (real sockets, real time). Goal: p50 and p95 within 5 %.
The simulator has no sockets, timers or processes that wake each other, so what these add before a first token is measured too, by
requests that come one at a time, and the comparison is printed with and without it. Run it as root on a machine that others use (`quiet.py`).
Takes its rows from azure2023's conversations where ../shared/traces is there, else from a lognormal mix.
"""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from quiet import CLIENT_CORE, ENGINE_CORE, favoured

from forebay.demand.arrays import CHUNK_ROWS, Arrivals
from forebay.demand.arrivals import arrivals, sized
from forebay.demand.trace import Counts, TraceRow
from forebay.domain.profile import Profile
from forebay.engine.capacity import roster_capacity
from forebay.engine.catalogue import PROFILES
from forebay.loadgen import files
from forebay.simulation.fast import FastFleet
from forebay.simulation.values import Dispatch, FleetRules, Order, Queueing, TierRules

TRACE = Path(__file__).resolve().parents[2] / "shared" / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
PROFILE = PROFILES["llama-3.1-8b-h100"]
ALONE, ALONE_EVERY_S = 30, 0.35
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


def simulated(rows: list[TraceRow], profile: Profile = PROFILE, seed: int = 0) -> dict[str, dict[str, float]]:
    """TTFT and ITL of ``rows`` on one replica of ``profile``, by quantile, seconds; ``seed`` draws how its steps scatter, if they do."""
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
    rules = FleetRules(profile, roster_capacity(profile, 1.0, 0.05), tiers, Queueing.ENGINE, Dispatch.LEAST_LOADED, Order.FIFO, seed=seed)
    fleet = FastFleet(rules, chunks)
    fleet.add()
    fleet.run_until(rows[-1].at_s + 3600)
    found = fleet.results(0)
    return {"ttft": found.ttft_s, "itl": found.itl_s}


@contextlib.contextmanager
def emulator(folder: Path) -> Iterator[str]:
    """The URL of an emulated engine."""
    ready = folder / "ready.json"
    command = [*FOREBAY, "emulate", "--profile", PROFILE.name, "--ready-file", str(ready)]
    engine = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=favoured(ENGINE_CORE))
    try:
        while not ready.exists():
            assert engine.poll() is None, "the emulator did not start"
            time.sleep(0.05)
        yield json.loads(ready.read_bytes())["urls"][0]
    finally:
        engine.terminate()
        engine.wait(30)


def live(url: str, path: Path, folder: Path, minutes: float, rate_scale: float) -> dict[str, Any]:
    report = folder / "report.json"
    command = [*FOREBAY, "replay", "--target", url, "--trace", str(path), "--duration", f"{60 * minutes:g}s"]
    command += ["--rate-scale", f"{rate_scale:g}", "--json", str(report)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=favoured(CLIENT_CORE))
    found: dict[str, Any] = json.loads(report.read_bytes())
    return found


def path_s(url: str, folder: Path) -> tuple[float, float]:
    """Median seconds that the live path adds before a first token where nobody else is served, and the generator's lag within that."""
    path = folder / "alone.jsonl"
    with path.open("w") as out:
        for place in range(ALONE):
            out.write(json.dumps({"at_s": 1 + ALONE_EVERY_S * place, "prompt_tokens": 400, "output_tokens": 8}) + "\n")
    seen = live(url, path, folder, 60, 1.0)
    return seen["ttft_s"]["p50"] - simulated(rows_of(path, 60, 1.0))["ttft"]["p50"], seen["generator_lag_s"]["p50"]


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
        with emulator(folder) as url:
            added_s, lag_s = path_s(url, folder)
            theirs = live(url, path, folder, wanted.minutes, wanted.rate_scale)
    bare = simulated(rows)
    ours = simulated(rows, msgspec.structs.replace(PROFILE, front_end_s=PROFILE.front_end_s + added_s))
    print(f"{len(rows)} requests over {wanted.minutes:g} min to one {PROFILE.name}; {theirs['completed']} completed live")
    print(
        f"a lone request's first token comes {1e3 * added_s:.2f} ms later live than simulated ({1e3 * lag_s:.2f} ms of it before it is sent)"
    )
    result: dict[str, Any] = {"requests": len(rows), "generator_bound": theirs["generator_bound"], "path_s": added_s, "lag_s": lag_s}
    for what, key in (("ttft", "ttft_s"), ("itl", "itl_s")):
        for quantile in ("p50", "p95"):
            plain, seen, whole = bare[what][quantile], theirs[key][quantile], ours[what][quantile]
            result[f"{what}_{quantile}"] = (plain, seen)
            result[f"{what}_{quantile}_with_path"] = (whole, seen)
            print(
                f"  {what} {quantile}: simulated {1e3 * plain:8.2f} ms   live {1e3 * seen:8.2f} ms   {plain / seen - 1:+.1%}"
                f"   with the path {whole / seen - 1:+.1%}"
            )
    if theirs["generator_bound"]:
        print("the generator was the bottleneck: run it again on a quieter machine")
    if wanted.json:
        Path(wanted.json).write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
