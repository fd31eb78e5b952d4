"""A comparison: every policy on every seed, the clairvoyant schedule beside them, over the cores; then the sums."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from forebay.app.lab import candidates, fault_spans, lead_in, summaries
from forebay.app.lab.advice import advice
from forebay.app.lab.candidates import Candidate
from forebay.app.lab.over_cores import over_cores
from forebay.app.lab.playing import play_one
from forebay.app.lab.policies import make
from forebay.app.lab.stages import Stages
from forebay.app.lab.summaries import Yardstick
from forebay.app.lab.witness import Witness
from forebay.app.lab.world import Prepared, opened, scenario
from forebay.app.report.content import format_hours
from forebay.demand.arrays import ArrivalSource
from forebay.domain.scaling import Policy
from forebay.simulation.clairvoyant import Bound, clairvoyant
from forebay.simulation.fast import FastFleet
from forebay.simulation.values import PolicySummary, RunResult

SECONDS_PER_HOUR = 3600.0
TUNED = " (tuned)"
"""After a policy's name: as tuned, not as its source has it."""
Tell = Callable[[float], None]
Doing = Callable[[str], None]


SAME_WITH_EVERY_SEED = (
    "All seeds gave the same: recorded requests are played as they came, and nothing else here is drawn. "
    "A ± of 0 says nothing about how sure the numbers are."
)


class Task(msgspec.Struct, frozen=True):
    """One run. ``policy`` None: not a policy, the clairvoyant schedule."""

    ready: Prepared
    policy: str | None
    seed: int
    timeline: bool = False
    """Keep it: it is most of a result, and only pictures want it."""
    candidate: Candidate | None = None
    """The settings to play; None: the policy's own."""
    explain_s: tuple[float, ...] = ()
    """Seconds of the run whose decisions are kept."""


class Comparison(msgspec.Struct, frozen=True):
    """All runs, by policy in the order of their summaries, cheapest first."""

    ready: Prepared
    bound: Bound | None
    summaries: tuple[PolicySummary, ...]
    runs: dict[str, tuple[RunResult, ...]]
    yardstick: Yardstick

    def attained(self, name: str) -> float:
        """Share of promises kept by the policy ``name``, in the tier that fares worst, over its seeds."""
        shares = [summaries.attained(run, self.yardstick.promised_tiers) for run in self.runs[name]]
        return sum(shares) / len(shares)

    def verdict(self) -> str:
        """What to tell whoever reads one sentence."""
        return summaries.verdict(self.summaries, {name: self.attained(name) for name in self.runs}, self.yardstick.promise)

    def advice(self) -> str:
        """What the faults account for, and what to try where nobody keeps the promise; else empty."""
        ready, pool = self.ready, self.ready.request.pool
        line = next((each for each in self.summaries if each.name == summaries.FAVOURITE), self.summaries[0])
        near, world = self.runs[line.name][0].near_faults, scenario(ready, ready.request.seed)
        blamed = fault_spans.told(line.name, near, world, line.holds_slo) if near is not None else ""
        if near is not None and fault_spans.apart(near) >= self.yardstick.promise:
            return blamed
        fixed = ready.peak_replicas if ready.peak_holds else None
        hours = fixed_gpu_hours(ready)
        mean, cold_start_s = self.runs[line.name][0].replicas_mean, world.cold_start.unshared_s
        return f"{blamed} {advice(self.summaries, fixed, hours, pool.scaling, mean, cold_start_s, self.yardstick.promise)}".strip()


def _said_to_nobody(_: str) -> None:
    """For whoever shows no stages."""


def compared(
    ready: Prepared,
    names: Sequence[str],
    *,
    seeds: int,
    jobs: int,
    bound: bool,
    timelines: bool,
    tell: Tell,
    doing: Doing = _said_to_nobody,
    tuned: Sequence[Candidate] = (),
    explain_s: Sequence[float] = (),
) -> Comparison:
    """Play ``names``, and the settings ``tuned`` beside them, on ``seeds`` seeds; the decisions at ``explain_s`` are kept.

    ``doing`` is told which stage that is in.

    Raises BadInput for faults or policies that don't fit the pool.
    """
    rows: list[tuple[str, Candidate | None]] = [(name, None) for name in names]
    rows += [(each.policy + TUNED, each) for each in tuned]
    runs = f"{len(rows)} policies" if len(rows) > 1 else names[0]
    title = f"{runs} × {seeds} seeds" if seeds > 1 else runs
    return played(
        ready,
        rows,
        seeds=seeds,
        jobs=jobs,
        bound=bound,
        timelines=timelines,
        tell=tell,
        doing=doing,
        title=title,
        explain_s=explain_s,
    )


def played(
    ready: Prepared,
    rows: Sequence[tuple[str, Candidate | None]],
    *,
    seeds: int,
    jobs: int,
    bound: bool,
    timelines: bool,
    tell: Tell,
    doing: Doing,
    title: str,
    explain_s: Sequence[float] = (),
) -> Comparison:
    """Play ``rows``: each has a name, and the settings it stands for (None: those of the policy of that name).

    ``doing`` is told when ``title`` begins, and when only the clairvoyant schedule is left.
    """
    first = ready.request.seed
    # The schedule takes longest: begun first, it is done when the others are.
    tasks = [Task(ready, None, first)] if bound else []
    asked = tuple(explain_s)
    tasks += [Task(ready, name, first + nth, timelines and not nth, settings, asked) for nth in range(seeds) for name, settings in rows]
    stages = Stages(len(tasks) - bound, bound, jobs == 1, title, doing, tell)
    results: dict[int, RunResult | Bound] = {}
    for place, run in over_cores(work, tasks, jobs, stages.tell):
        results[place] = run
        stages.done(bound=isinstance(run, Bound))
    runs: dict[str, list[RunResult]] = {name: [] for name, _ in rows}
    found: Bound | None = None
    for place in sorted(results):
        result = results[place]
        if isinstance(result, RunResult):
            runs[result.policy].append(result)
        else:
            found = result
    return summed(ready, found, {name: tuple(each) for name, each in runs.items()})


def summed(ready: Prepared, bound: Bound | None, runs: dict[str, tuple[RunResult, ...]]) -> Comparison:
    """The sums over ``runs``."""
    yardstick = measure(ready, bound)
    if all(map(_same_with_every_seed, runs.values())):
        ready = msgspec.structs.replace(ready, notes=(*ready.notes, SAME_WITH_EVERY_SEED))
    lines = summaries.ordered(summaries.summary(each, yardstick) for each in runs.values())
    if note := _limit_is_lower(bound, lines):
        ready = msgspec.structs.replace(ready, notes=(*ready.notes, note))
    return Comparison(ready, bound, tuple(lines), {line.name: runs[line.name] for line in lines}, yardstick)


def _limit_is_lower(bound: Bound | None, lines: Sequence[PolicySummary]) -> str:
    """That the schedule is no limit, where a policy keeps the promise for less; else empty."""
    cheaper = [line for line in lines if bound and line.holds_slo and line.gpu_hours < bound.gpu_hours * (1 - summaries.EQUAL)]
    if not cheaper:
        return ""
    hours = format_hours(cheaper[0].gpu_hours)
    return f"{cheaper[0].name} keeps the promise with {hours} GPU-hours, fewer than the schedule that was found: the limit is no higher."


def _same_with_every_seed(runs: Sequence[RunResult]) -> bool:
    found = {(run.requests, run.gpu_hours, *(tier.both_attainment for tier in run.tiers.values())) for run in runs}
    return len(runs) > 1 and len(found) == 1


def measure(ready: Prepared, bound: Bound | None) -> Yardstick:
    """What every policy of this comparison is measured with."""
    request, profile = ready.request, ready.request.pool.profile
    hour_usd = profile.gpu_hour_usd if profile is not None else 0.0
    static_usd = fixed_gpu_hours(ready) * hour_usd
    tiers = tuple(tier.name for tier in request.tiers if not tier.preemptible)
    return Yardstick(bound.gpu_hours if bound else None, static_usd if hour_usd else None, request.pool.slo.attainment, tiers)


def fixed_gpu_hours(ready: Prepared) -> float:
    """Of as many replicas as the peak takes, all the time."""
    profile = ready.request.pool.profile
    return ready.peak_replicas * ready.duration_s / SECONDS_PER_HOUR * (profile.gpus if profile is not None else 1)


def work(task: Task, tell: Tell) -> RunResult | Bound:
    """One run and its lead-in, in whatever process; the trace is opened anew and streamed."""
    ready, request = task.ready, task.ready.request

    def arrivals() -> ArrivalSource:
        return opened(request, task.seed, request.trace.start_s, request.trace.duration_s).source()

    if task.policy is None:
        spares = request.pool.scaling.spare_replicas
        return clairvoyant(scenario(ready, task.seed), arrivals, fleet=FastFleet, cpu_clock=time.process_time, spares=spares, progress=tell)
    name, candidate = task.policy, task.candidate

    def made() -> Policy:
        return make(name, ready) if candidate is None else candidates.make(candidate, ready)

    lead = lead_in.length_s(ready.past)
    led = lead / (lead + ready.duration_s)
    ready, policy = lead_in.begun(ready, made, name, task.seed, lambda share: tell(led * share))
    witness = Witness(policy, task.explain_s)
    world = scenario(ready, task.seed)
    result = play_one(ready, world, witness, name, task.seed, lambda share: tell(led + (1 - led) * share))
    result = msgspec.structs.replace(result, witnessed=witness.found(), near_faults=fault_spans.near(world, result.timeline))
    return result if task.timeline else msgspec.structs.replace(result, timeline=())


def speed(run: RunResult) -> dict[str, float]:
    """How fast the simulator was, decisions left out (they are the policy's)."""
    return {
        "requests": run.requests,
        "wall_s": run.wall_s,
        "requests_per_s": run.requests / run.wall_s if run.wall_s > 0 else 0.0,
        "decide_s": run.decide_s,
        "decisions": run.decisions,
    }


def as_json(comparison: Comparison) -> dict[str, Any]:
    """For scripts: the bound, and each policy."""
    bound, ready = comparison.bound, comparison.ready
    return {
        "bound_gpu_hours": bound.gpu_hours if bound else None,
        "lower_bound_gpu_hours": bound.lower_bound_gpu_hours if bound else None,
        "bound_attainment": bound.attainment if bound else None,
        "bound_is_loose": bound.loose if bound else None,
        "trace": ready.name,
        "duration_s": ready.duration_s,
        "lead_in_s": lead_in.length_s(ready.past),
        "requests": ready.survey.requests,
        "mean_per_s": ready.survey.mean_per_s,
        "peak_per_s": ready.survey.peak_per_s,
        "static_replicas": ready.peak_replicas,
        "promise": comparison.yardstick.promise,
        "verdict": comparison.verdict(),
        "advice": comparison.advice(),
        "notes": list(ready.notes),
        "skipped_rows": ready.skipped_rows,
        "sorted_rows": ready.sorted_rows,
        "policies": [summaries.as_json(line, comparison.runs[line.name]) for line in comparison.summaries],
    }
