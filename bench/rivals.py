"""Which other autoscaler keeps the promise over a whole recorded week, at its source's defaults or as tuned, and for how many GPU-hours.

    python bench/rivals.py [--traces azure2024,servegen,o365] [--cold-starts 6m,90s] [--rows defaults|tuned|both]
                            [--train 3d] [--start 3d] [--jobs 2] [--json PATH]

The worlds are those of `bench/policies.py`. Here a policy is played only until it has missed more requests than the promise allows
of the whole span: it cannot hold any more, whatever comes, so which ones hold is exact and found in a fraction of the time.
Forebay's own row is played to the end. With `--start` each begins after its lead-in, as in `forebay compare`. `tuned` rows have the
setting of each grid that is the cheapest to hold the hours around the busiest, a million requests at most, as `forebay compare
--tuned` has: of the first `--train` of the trace, or of what is before `--start`, or, where both are nothing, of the very span that
is played, which flatters them.
Needs ../shared/traces beside the repository; says so and ends where it is absent.
"""

import argparse
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import policies as worlds

from forebay.app.lab import candidates, lead_in, policies, tuning
from forebay.app.lab.candidates import Candidate
from forebay.app.lab.comparing import TUNED
from forebay.app.lab.over_cores import over_cores
from forebay.app.lab.playing import play_one
from forebay.app.lab.request import LabRequest
from forebay.app.lab.training_span import training_span
from forebay.app.lab.world import Prepared, prepared, scenario
from forebay.cli import compare, lab_options
from forebay.demand.arrays import ArrivalSource
from forebay.domain.scaling import Policy
from forebay.domain.units import format_share
from forebay.scaling.capacity import pool_capacity
from forebay.simulation import tune
from forebay.simulation.fast import FastFleet
from forebay.simulation.values import FleetRules, Scenario

DAY_S = 86_400.0


class Lost(Exception):
    """More was missed than the promise allows of the whole span."""


class Row(msgspec.Struct, frozen=True):
    """What came of one policy; ``gpu_hours`` and ``kept`` are of the whole span where it holds, up to ``lost_day`` where it does not."""

    name: str
    gpu_hours: float | None
    kept: float
    lost_day: float | None
    settings: str
    cpu_s: float


class Task(msgspec.Struct, frozen=True):
    """One policy in one world; ``candidate`` None: as its source has it."""

    ready: Prepared
    name: str
    candidate: Candidate | None
    allowed: int
    """Misses after which it is lost."""
    led: bool = True
    """It has a lead-in where something came before; a trial has none, as in `forebay compare --tuned`."""


def asked(trace: str, cold_start: str, folder: Path, start: str = "0s") -> LabRequest:
    """The world of ``bench/policies.py``, through the options of `forebay compare`."""
    name, *options = worlds.PLAYED[trace]
    path = worlds.ten_minute_means(worlds.TRACES / name, "A_prod", folder) if trace == "o365" else worlds.TRACES / name
    given: dict[str, Any] = {key: each.default for key, each in inspect.signature(compare.command).parameters.items()}
    for option, text in zip(options[::2], options[1::2], strict=True):
        key = option.removeprefix("--").replace("-", "_")
        given[key] = float(text) if isinstance(given[key], float) else text
    given.update(trace=str(path), lengths=worlds.LENGTHS, cold_start=cold_start, start=start)
    return lab_options.request(worlds.ROOT / "examples" / "lab.yaml", None, lab_options.trace_options(given), given)


def work(task: Task, tell: Callable[[float], None]) -> Row:
    """Play ``task``, after its lead-in, until it ends or is lost."""
    seed, fleets = task.ready.request.seed, list[FastFleet]()
    name = task.name + (TUNED if task.candidate else "")

    def made() -> Policy:
        return candidates.make(task.candidate, task.ready) if task.candidate else policies.make(task.name, task.ready)

    def fleet(rules: FleetRules, arrivals: ArrivalSource) -> FastFleet:
        fleets.append(FastFleet(rules, arrivals))
        return fleets[0]

    def progress(share: float) -> None:
        tell(share)
        if missed(fleets[0], world) > task.allowed:
            raise Lost(share)

    settings = candidates.described(task.candidate) if task.candidate else "defaults"
    began_s = time.process_time()
    ready, policy = lead_in.begun(task.ready, made, name, seed, lambda _: None) if task.led else (task.ready, made())
    world = scenario(ready, seed)
    try:
        found = play_one(ready, world, policy, name, seed, progress, fleet)
    except Lost as lost:
        share = lost.args[0]
        return Row(name, None, kept(fleets[0], world), share * world.duration_s / DAY_S, settings, time.process_time() - began_s)
    return Row(name, found.gpu_hours, kept(fleets[0], world), None, settings, time.process_time() - began_s)


def missed(fleet: FastFleet, world: Scenario) -> int:
    """Requests of promised tiers that are answered or refused and kept not both promises."""
    totals = [fleet.totals(index) for index, tier in enumerate(world.rules.tiers) if not tier.preemptible]
    return sum(each.completed + each.shed + each.cut - each.both_met for each in totals)


def kept(fleet: FastFleet, world: Scenario) -> float:
    """Share of what arrived so far in promised tiers that kept both promises; what is under way counts as missed."""
    totals = [fleet.totals(index) for index, tier in enumerate(world.rules.tiers) if not tier.preemptible]
    return sum(each.both_met for each in totals) / max(1, sum(each.arrived for each in totals))


def compared(trace: str, cold_start: str, wanted: argparse.Namespace) -> list[Row]:
    """Every row of one world."""
    quiet: Callable[..., None] = lambda *_: None  # noqa: E731 - two signatures, both ignored
    with tempfile.TemporaryDirectory() as folder:
        ready = prepared(asked(trace, cold_start, Path(folder), wanted.start), quiet, quiet)
        allowed = int(ready.survey.requests * (1 - ready.request.pool.slo.attainment))
        names = policies.chosen("--policies", wanted.policies)
        # Ours is never stopped: its hours are what the others' are held against.
        tasks = [Task(ready, name, None, sys.maxsize if name == policies.FAVOURITE else allowed) for name in names]
        if wanted.rows == "tuned":
            tasks = [task for task in tasks if task.name == policies.FAVOURITE]
        if wanted.rows != "defaults":
            known = prepared(asked(trace, cold_start, Path(folder), wanted.train), quiet, quiet) if wanted.train else ready
            tasks += [Task(ready, each.policy, each, allowed) for each in tuned(known, names, wanted.jobs) if each.place]
        return [row for _, row in over_cores(work, tasks, wanted.jobs, quiet)]


def tuned(ready: Prepared, names: list[str], jobs: int) -> list[Candidate]:
    """The best setting of each of ``names`` on the hours around the busiest (`app.lab.training_span`): the cheapest that holds there.

    Where none holds, the one that was lost last. Trials stop when they are lost, as weeks do.
    """
    quiet: Callable[..., None] = lambda *_: None  # noqa: E731 - two signatures, both ignored
    span = training_span(ready, pool_capacity(ready.request.pool).rate_per_s or 0.0)
    trained = tuning.bounded(prepared(span.request, quiet, quiet))
    requests = min(trained.survey.requests, tune.REQUESTS_MAX)
    allowed = int(requests * (1 - ready.request.pool.slo.attainment))
    others = [name for name in names if name != policies.FAVOURITE]
    trials = [Task(trained, name, each, allowed, led=False) for name in others for each in candidates.listed(name, trained, span.hourly)]
    rows = dict(over_cores(work, trials, jobs, quiet))

    def worth(place: int) -> tuple[bool, float, float]:
        row = rows[place]
        return (row.gpu_hours is None or row.kept < worlds.ATTAINMENT, row.gpu_hours or -(row.lost_day or 0.0), -row.kept)

    best: dict[str, int] = {}
    for place, trial in enumerate(trials):
        if trial.name not in best or worth(place) < worth(best[trial.name]):
            best[trial.name] = place
    return [each for place in best.values() if (each := trials[place].candidate) is not None]


def show(trace: str, cold_start: str, rows: list[Row], took_s: float) -> None:
    ours = next((row.gpu_hours for row in rows if row.name == policies.FAVOURITE), None)
    print(f"\n{trace}, cold start {cold_start} ({took_s:.0f} s)")
    for row in sorted(rows, key=lambda row: (row.gpu_hours is None, row.gpu_hours or -(row.lost_day or 0))):
        if row.gpu_hours is None:
            print(f"✗ {row.name:26} lost on day {row.lost_day:5.2f}, {row.kept:7.2%} kept by then; {row.settings}")
        else:
            ratio = f"{row.gpu_hours / ours:6.3f} × ours" if ours else ""
            print(
                f"{'✓' if row.kept >= worlds.ATTAINMENT else '✗'} {row.name:26} {row.gpu_hours:9.1f} GPU-hours {ratio} {format_share(row.kept, worlds.ATTAINMENT):>7} kept; {row.settings}"
            )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default="azure2024,servegen,o365")
    parser.add_argument("--cold-starts", default="6m,90s")
    parser.add_argument("--policies", default="all")
    parser.add_argument(
        "--start", default="0s", help="play from here on; what is before is known, and is what is tuned on (of nothing: on the very span)"
    )
    parser.add_argument("--train", help="tune on the first so much of the trace, and play all of it")
    parser.add_argument(
        "--rows", default="both", choices=("defaults", "tuned", "both"), help="tuned: those whose best setting is not the default"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", metavar="PATH")
    wanted = parser.parse_args()
    if not worlds.TRACES.is_dir():
        sys.exit(f"{worlds.TRACES} is not there: the recorded traces are not part of the repository; nothing was played")
    results = {}
    for trace in wanted.traces.split(","):
        for cold_start in wanted.cold_starts.split(","):
            began_s = time.monotonic()
            rows = compared(trace, cold_start, wanted)
            results[f"{trace} {cold_start}"] = [msgspec.to_builtins(row) for row in rows]
            show(trace, cold_start, rows, time.monotonic() - began_s)
            if wanted.json:
                Path(wanted.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
