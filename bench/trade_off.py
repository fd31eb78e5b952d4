"""What calm costs: GPU-hours beside changes a day, as the policy's band and its calm before a scale-in are made narrower and wider.

    python bench/trade_off.py [--traces azure2024,servegen,o365] [--cold-starts 6m] [--days 7] [--jobs 2] [--json PATH]

Each point is Forebay's policy with one pair of settings (`scaling.prices.band`, `scaling.forecast.calm`) over one of the worlds of
`bench/policies.py`, beside the clairvoyant schedule. Reversals are changes of direction within 30 minutes. Needs ../shared/traces
beside the repository; says so and ends where it is absent.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import policies as worlds
from rivals import DAY_S, asked

from forebay.app.lab import policies
from forebay.app.lab.comparing import Task, play_one
from forebay.app.lab.comparing import work as compared_work
from forebay.app.lab.over_cores import over_cores
from forebay.app.lab.world import Prepared, prepared, scenario
from forebay.simulation.clairvoyant import Bound
from forebay.simulation.tune import kept

POINTS: tuple[dict[str, float], ...] = (
    {"start_share": 0.0, "forecast_calm_s": 60.0},
    {"start_share": 0.3},
    {"start_share": 0.5},
    {},
    {"start_share": 0.65, "forecast_calm_s": 900.0},
    {"start_share": 0.75},
    {"start_share": 0.75, "forecast_calm_s": 900.0},
    {"start_share": 0.85, "forecast_calm_s": 1800.0},
)


class Point(msgspec.Struct, frozen=True):
    """One pair of settings over one world."""

    settings: dict[str, float]
    gpu_hours: float
    kept: float
    actions_per_day: float
    reversals_per_day: float


class Asked(msgspec.Struct, frozen=True):
    """Settings to play; None: the clairvoyant schedule."""

    ready: Prepared
    settings: dict[str, float] | None


def work(task: Asked, tell: Callable[[float], None]) -> Point | Bound:
    ready = task.ready
    if task.settings is None:
        found = compared_work(Task(ready, None, ready.request.seed), tell)
        assert isinstance(found, Bound)
        return found
    world = scenario(ready, ready.request.seed)
    policy = policies.favourite(ready.request, msgspec.structs.replace(ready.request.pool.scaling, **task.settings))
    run = play_one(ready, world, policy, policies.FAVOURITE, ready.request.seed, tell)
    days = run.duration_s / DAY_S
    return Point(task.settings, run.gpu_hours, kept(run, world), run.scale_actions / days, run.reversals / days)


def curve(trace: str, cold_start: str, days: float | None, jobs: int) -> tuple[float, list[Point]]:
    """(clairvoyant GPU-hours, points from the liveliest settings to the calmest)."""
    with tempfile.TemporaryDirectory() as folder:
        request = asked(trace, cold_start, Path(folder))
        if days is not None:
            request = msgspec.structs.replace(request, trace=msgspec.structs.replace(request.trace, duration_s=days * DAY_S))
        ready = prepared(request, lambda _: None, None)
        found = dict(over_cores(work, [Asked(ready, each) for each in (None, *POINTS)], jobs, lambda _: None))
    bound = found.pop(0)
    assert isinstance(bound, Bound)
    return bound.gpu_hours, [found[place] for place in sorted(found)]  # type: ignore[misc]


def said(settings: dict[str, float]) -> str:
    band, calm_s = settings.get("start_share"), settings.get("forecast_calm_s")
    return f"band {'default' if band is None else f'{band:.2f}':8} calm {'default' if calm_s is None else f'{calm_s / 60:.0f}m':8}"


def show(title: str, limit: float, points: list[Point]) -> None:
    print(f"\n{title}: clairvoyant {limit:.1f} GPU-hours")
    print(f"  {'settings':27} {'GPU-hours':>10} {'× limit':>8} {'kept':>8} {'changes/day':>12} {'turns/day':>10}")
    for each in points:
        print(
            f"  {said(each.settings):27} {each.gpu_hours:10.1f} {each.gpu_hours / limit:8.3f} {each.kept:8.2%}"
            f" {each.actions_per_day:12.1f} {each.reversals_per_day:10.1f}"
        )
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default="azure2024,servegen,o365")
    parser.add_argument("--cold-starts", default="6m")
    parser.add_argument("--days", type=float, help="play only the first so many; default: all")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", metavar="PATH")
    wanted = parser.parse_args()
    if not worlds.TRACES.is_dir():
        sys.exit(f"{worlds.TRACES} is not there: the recorded traces are not part of the repository; nothing was played")
    results: dict[str, Any] = {}
    for trace in wanted.traces.split(","):
        for cold_start in wanted.cold_starts.split(","):
            limit, points = curve(trace, cold_start, wanted.days, wanted.jobs)
            title = f"{trace}, cold start {cold_start}"
            results[title] = {"bound_gpu_hours": limit, "points": [msgspec.to_builtins(each) for each in points]}
            show(title, limit, points)
            if wanted.json:
                Path(wanted.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
