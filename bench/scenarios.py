"""Named troubles of a Wednesday, for the pool of `examples/lab.yaml` (a start takes six minutes): each goal with its number.

    python bench/scenarios.py [--only spike,outage,day] [--seed 0] [--json PATH]

1. *spike*: ten times the load within two minutes, for forty, without and with a calendar entry. Without: the lanes are back under the
   SLO within detection + cold start + backlog ÷ spare capacity, and interactive is shed last. With: no breach.
2. *outage*: each way in which metrics can be gone, for 20 minutes at the peak and in the trough. No scale-in, an alert within two minutes,
   attainment no more than 0.2 points below the same hours without the outage.
3. *day*: at noon lengths change, or a tenant with long prompts joins, or a lost region's traffic arrives at once. Attainment over the
   day at least 98 %, and an hour later a replica is thought to serve what it then serves (or, for the region, what it served before).
   With prompts and answers 1.5 times as long, more prompts than the promise allows take a second to prefill on an idle replica: the
   promise is out of reach, and the question is how many replicas are held for it.

Traffic is made: the Azure 2024 conversations' day and week, 36 requests/s on average, lengths lognormal around the pool's shape, 5 % of noise
a minute. The policy knows two weeks of it, and begins with the memory of the day before. All of it takes about two minutes on one core.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
import time
from datetime import date
from pathlib import Path

import msgspec
import numpy as np

from forebay.app.config import load
from forebay.demand import generator, transform
from forebay.demand.arrays import ArrivalSource
from forebay.demand.intensity import Intensity, smooth
from forebay.demand.lengths import Lognormal
from forebay.demand.synthesis import NOISE_CELL_S, requests, tiered, times
from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import Decision, History, Observation
from forebay.engine.capacity import at_slo
from forebay.scaling.capacity import pool_capacity, whole_replicas
from forebay.scaling.policy import QueueFirst
from forebay.simulation.fast import FastFleet
from forebay.simulation.faults import FROZEN_AFTER_S, KINDS
from forebay.simulation.lab import play
from forebay.simulation.lab_scenario import scenario_from
from forebay.simulation.scripted import Static
from forebay.simulation.values import FleetRules, MetricFault, RunResult
from forebay.spec.types import CalendarEntry

SPEC = load(Path(__file__).resolve().parents[1] / "examples" / "lab.yaml")
POOL = msgspec.structs.replace(SPEC.pools[0], scaling=msgspec.structs.replace(SPEC.pools[0].scaling, max_replicas=400, starts_max=400))
"""With `max` high enough for ten times the load."""
CAPACITY = pool_capacity(POOL)
REPLICA_PER_S = CAPACITY.rate_per_s or math.nan
INTERVAL_S = POOL.scaling.interval_s
PROMISE = POOL.slo.attainment

RATE_PER_S = 36.0
HOUR_S, DAY_S, BUCKET_S = 3600.0, 86_400.0, 300.0
PAST_DAYS = 14
MONDAY = date(2024, 5, 6)
TUESDAY_S, WEDNESDAY_S = (PAST_DAYS + 1) * DAY_S, (PAST_DAYS + 2) * DAY_S
NOON_S = 12 * HOUR_S
PEAK_S, TROUGH_S = 13 * HOUR_S, 22 * HOUR_S
OUTAGE_S, BEFORE_S, AFTER_S = 1200.0, 1800.0, 2400.0
ALERT_S = 120.0
DETECTED_S = 60.0
"""Until as many are asked for as ten times the load takes. The load itself is there after 120 s; a reading is of the last half minute."""
SPIKE_AT_S, SPIKE_FACTOR, SPIKE_RAMP_S, SPIKE_HOLD_S = 1800.0, 10.0, 120.0, 2400.0
JUDGED_S = 60.0
"""Attainment is that of a minute; a moment has none."""
PLANNED_MARGIN = 1.25
"""Of the calendar's entry: replicas for ten times the load, by what a replica is known to serve, preemptible work included, and this much more."""
AMPLE = 3.0
"""Times the replicas that the load is worth: what is still missed then, no number of replicas cures."""
RELEARNED = 0.1
DECIDED = "demand"
"""The term that tells what a replica is thought to serve."""


class Traffic:
    """Seventeen days from a Monday on: what came (for the policy's history), and the rate of what comes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        plan = generator.Plan(kinds={"conversation": 1.0}, rate=RATE_PER_S, start=MONDAY, duration_s=(PAST_DAYS + 4) * DAY_S)
        series = generator.rates(plan, "conversation", np.random.default_rng([seed, 1]))
        self.start_wall_s = series.start_wall_s
        self.rate: Intensity = smooth(series.values, series.step_s)
        self._counts = np.random.default_rng([seed, 2]).poisson(series.values * BUCKET_S)

    def history(self, upto_s: float, share: float = 1.0) -> History:
        """The two weeks before ``upto_s``; ``share``: of the requests that aren't preemptible."""
        first, last = round((upto_s - PAST_DAYS * DAY_S) / BUCKET_S), round(upto_s / BUCKET_S)
        counts = (self._counts[first:last] * share).astype("<f4")
        prompt, output = (counts * np.float32(mean) for mean in (POOL.scaling.prompt_tokens, POOL.scaling.output_tokens))
        return History(self.start_wall_s + first * BUCKET_S, BUCKET_S, counts.tobytes(), prompt.tobytes(), output.tobytes())

    def source(self, from_s: float, duration_s: float, stream: int = 0) -> ArrivalSource:
        """Arrivals of a span, all of the most important tier. Equal spans have equal arrivals."""
        chance = np.random.default_rng([self.seed, 3, stream, round(from_s)])
        rate = self.rate.window(from_s, duration_s).noisy(0.05, NOISE_CELL_S, chance)
        lengths = Lognormal(POOL.scaling.prompt_tokens, POOL.scaling.output_tokens)
        return tiered(requests(times(rate, 1.0, chance), lengths, chance), [1.0], chance)

    def per_s(self, at_s: float) -> float:
        """The mean rate of the five minutes around ``at_s``."""
        return float(self.rate.expected(np.array([at_s - 150.0, at_s + 150.0]))[0]) / 300.0


class Sample(msgspec.Struct, frozen=True):
    """What is seen at one decision."""

    at_s: float
    desired: int
    ready: int
    replica_per_s: float
    met: tuple[int, ...]
    missed: tuple[int, ...]
    shed: tuple[int, ...]
    waiting: tuple[int, ...]
    memory: bytes


class Watched:
    """Forebay's policy as it runs live, what it was told first taken from an earlier run, and everything noted."""

    def __init__(self, calendar: tuple[CalendarEntry, ...], memory: bytes) -> None:
        self._policy = QueueFirst(POOL.scaling, CAPACITY, calendar, POOL.name, POOL.slo, SPEC.tiers[0].longest_wait_s)
        self._memory = memory
        self._fleet: FastFleet | None = None
        self._tiers = 0
        self.samples: list[Sample] = []

    def fleet(self, rules: FleetRules, arrivals: ArrivalSource) -> FastFleet:
        self._fleet, self._tiers = FastFleet(rules, arrivals), len(rules.tiers)
        return self._fleet

    def decide(self, observation: Observation) -> Decision:
        if not self.samples:
            observation = msgspec.structs.replace(observation, memory=self._memory)
        decision = self._policy.decide(observation)
        if decision.reason == "hold_ill":
            raise RuntimeError(f"the policy did not understand what it saw: {decision.terms[0].because}")
        assert self._fleet is not None
        totals = [self._fleet.totals(tier) for tier in range(self._tiers)]
        rate = next((term.numbers["replica_rate_per_s"] for term in decision.terms if term.name == DECIDED), math.nan)
        self.samples.append(
            Sample(
                observation.now_s,
                decision.replicas,
                sum(replica.state is ReplicaState.READY for replica in observation.replicas),
                rate,
                tuple(tier.ttft_met for tier in totals),
                tuple(tier.ttft_missed for tier in totals),
                tuple(tier.shed for tier in totals),
                tuple(tier.waiting for tier in totals),
                decision.memory,
            )
        )
        return decision


class Played(msgspec.Struct):
    result: RunResult
    samples: list[Sample]

    @property
    def attained(self) -> float:
        """Interactive requests with both promises kept."""
        return self.result.tiers[SPEC.tiers[0].name].both_attainment

    def at(self, at_s: float) -> Sample:
        return next(sample for sample in self.samples if sample.at_s >= at_s)


def played(traffic: Traffic, from_s: float, source: ArrivalSource, duration_s: float, begin: Sample | None, **more) -> Played:
    """Forebay's policy from ``from_s`` of the traffic on, beginning as ``begin`` ended."""
    share, calendar = more.pop("share", 1.0), more.pop("calendar", ())
    first = begin.desired if begin is not None else math.ceil(traffic.per_s(from_s) / REPLICA_PER_S * 1.2)
    world = scenario_from(
        POOL, SPEC.tiers, duration_s=duration_s, start_wall_s=traffic.start_wall_s + from_s, initial_replicas=first, seed=traffic.seed
    )
    watched = Watched(calendar, begin.memory if begin is not None else b"")
    result = play(
        msgspec.structs.replace(world, **more),
        watched,
        source,
        name="forebay",
        cpu_clock=time.process_time,
        fleet=watched.fleet,
        past=traffic.history(from_s, share),
        pool=POOL.name,
    )
    return Played(result, watched.samples)


class Report:
    """Lines for people and scripts."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def told(self, scenario: str, what: str, value: float, unit: str = "") -> None:
        self.rows.append({"scenario": scenario, "what": what, "value": value})
        print(f"  {'':4}{what}: {_number(value)}{unit}")

    def judged(self, scenario: str, what: str, value: float, goal: str, met: bool, unit: str = "") -> None:
        self.rows.append({"scenario": scenario, "what": what, "value": value, "goal": goal, "met": bool(met)})
        print(f"  {'ok' if met else 'NOT':4}{what}: {_number(value)}{unit} (goal: {goal})")


def _number(value: float) -> str:
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:,.0f}"


# -- 1. the spike


def spikes(traffic: Traffic, wednesday: Played, report: Report) -> None:
    """Ten in the morning, a mix of tiers."""
    begin_s = 9.5 * HOUR_S
    duration_s = SPIKE_AT_S + 2 * SPIKE_RAMP_S + SPIKE_HOLD_S + 1200.0
    weights = [0.7, 0.2, 0.1]
    share = 1.0 - sum(weight for weight, tier in zip(weights, SPEC.tiers, strict=True) if tier.preemptible)
    plateau_per_s = SPIKE_FACTOR * traffic.per_s(WEDNESDAY_S + begin_s + SPIKE_AT_S + SPIKE_HOLD_S / 2) * share
    needed = whole_replicas(plateau_per_s / REPLICA_PER_S)

    def arrivals() -> ArrivalSource:
        rng = [np.random.default_rng([traffic.seed, 4, stream]) for stream in (0, 1)]
        rows = transform.multiplied(
            traffic.source(WEDNESDAY_S + begin_s, duration_s), transform.spike(SPIKE_AT_S, SPIKE_FACTOR, SPIKE_RAMP_S, SPIKE_HOLD_S), rng[0]
        )
        unsaid = (chunk._replace(tier=np.full(len(chunk.at_s), -1, np.int16)) for chunk in rows)
        return tiered(unsaid, weights, rng[1])

    start_s = begin_s + SPIKE_AT_S
    planned = math.ceil(PLANNED_MARGIN * plateau_per_s / share / wednesday.at(begin_s).replica_per_s)
    entry = CalendarEntry("launch", (POOL.name,), (2,), start_s, start_s + 2 * SPIKE_RAMP_S + SPIKE_HOLD_S, "UTC", planned)
    for calendar in ((), (entry,)):
        name = "spike, calendar" if calendar else "spike"
        print(
            f"{name}: {plateau_per_s / SPIKE_FACTOR:.0f} → {plateau_per_s:.0f} requests/s (preemptible ones aside), {needed} replicas' worth"
        )
        run = played(traffic, WEDNESDAY_S + begin_s, arrivals(), duration_s, wednesday.at(begin_s), share=share, calendar=calendar)
        if calendar:
            _no_breach(name, run, report)
        else:
            _back(name, run, needed, plateau_per_s, report)


def _back(name: str, run: Played, needed: int, plateau_per_s: float, report: Report) -> None:
    samples = [sample for sample in run.samples if sample.at_s >= SPIKE_AT_S]
    first = samples[0]
    raised = next((sample.at_s for sample in samples if sample.desired > first.desired), math.inf)
    asked = next((sample.at_s for sample in samples if sample.desired >= needed), math.inf)
    there = next((sample for sample in samples if sample.ready >= needed), samples[-1])
    backlog = sum(there.waiting[:2])
    detection_s = asked - SPIKE_AT_S
    worked_off_s, spare_per_s = _worked_off(there, samples, plateau_per_s)
    back_s = _back_s(run, SPIKE_AT_S, SPIKE_AT_S + SPIKE_RAMP_S + SPIKE_HOLD_S) - SPIKE_AT_S
    allowed_s = detection_s + CAPACITY.cold_start_s + worked_off_s + JUDGED_S
    report.told(name, "first replica more asked for after", raised - SPIKE_AT_S, " s")
    report.judged(
        name, f"detection: {needed} or more asked for after", detection_s, f"≤ {DETECTED_S:.0f} s", detection_s <= DETECTED_S, " s"
    )
    report.told(name, "cold start", CAPACITY.cold_start_s, " s")
    report.told(name, "backlog when they were there (not preemptible)", backlog)
    report.told(name, "spare capacity from then on, until it is worked off, on average", spare_per_s, " requests/s")
    report.told(name, "backlog ÷ spare capacity", worked_off_s, " s")
    report.judged(
        name,
        "lanes back under the SLO after",
        back_s,
        f"≤ {allowed_s:.0f} s, the sum and {JUDGED_S:.0f} s to judge by",
        back_s <= allowed_s < math.inf,
        " s",
    )
    report.told(name, "most replicas asked for", max(sample.desired for sample in samples))
    report.told(
        name,
        f"replicas before, and {(samples[-1].at_s - SPIKE_AT_S - SPIKE_HOLD_S - 2 * SPIKE_RAMP_S) / 60:.0f} min after its end: before",
        first.desired,
    )
    report.told(name, "… after", samples[-1].desired)
    last = samples[-1]
    shares = []
    for tier, told in enumerate(SPEC.tiers[:2]):
        arrived = last.met[tier] + last.missed[tier] - first.met[tier] - first.missed[tier]
        shares.append((last.shed[tier] - first.shed[tier]) / max(1, arrived))
        report.told(name, f"shed of {told.name} since the spike began", 100 * shares[-1], " %")
    report.judged(
        name, "interactive shed last: its share less standard's", 100 * (shares[0] - shares[1]), "≤ 0", shares[0] <= shares[1], " points"
    )


def _worked_off(there: Sample, samples: list[Sample], plateau_per_s: float) -> tuple[float, float]:
    """Seconds from ``there`` until what is ready beyond the load has had time for the backlog, and how much that was a second, on average."""
    backlog = left = float(sum(there.waiting[:2]))
    for before, now in itertools.pairwise(sample for sample in samples if sample.at_s >= there.at_s):
        if left <= 0:
            took_s = before.at_s - there.at_s
            return took_s, backlog / took_s if took_s > 0 else 0.0
        left -= (before.ready * REPLICA_PER_S - plateau_per_s) * (now.at_s - before.at_s)
    return math.inf, 0.0


def _back_s(run: Played, from_s: float, until_s: float) -> float:
    """The end of the last minute within the span in which a tier that isn't preemptible missed its TTFT promise."""
    looks = round(JUDGED_S / INTERVAL_S)
    back_s = from_s
    for before, now in zip(run.samples, run.samples[looks:], strict=False):
        if not from_s < now.at_s <= until_s:
            continue
        for tier in (0, 1):
            met, missed = now.met[tier] - before.met[tier], now.missed[tier] - before.missed[tier]
            if missed > (1 - PROMISE) * (met + missed):
                back_s = now.at_s
    return back_s


def _no_breach(name: str, run: Played, report: Report) -> None:
    rows = [row for row in run.result.timeline if SPIKE_AT_S < row.at_s <= SPIKE_AT_S + SPIKE_RAMP_S + SPIKE_HOLD_S]
    bad = sum(row.missed > (1 - PROMISE) * (row.missed + row.both_met) for row in rows)
    shed = run.samples[-1].shed[0]
    met, missed = (
        run.at(SPIKE_AT_S + SPIKE_HOLD_S).met[0] - run.at(SPIKE_AT_S).met[0],
        run.at(SPIKE_AT_S + SPIKE_HOLD_S).missed[0] - run.at(SPIKE_AT_S).missed[0],
    )
    report.told(name, "ready when it began", run.at(SPIKE_AT_S).ready)
    report.told(name, "interactive first tokens in time during it", 100 * met / max(1, met + missed), " %")
    report.told(name, "interactive requests shed", shed)
    report.judged(name, "minutes of breach during it", bad, "0", bad == 0)


# -- 2. outages of the metrics


def outages(traffic: Traffic, wednesday: Played, report: Report) -> None:
    """Every kind, at both ends of the day."""
    for place, at_s in (("peak", PEAK_S), ("trough", TROUGH_S)):
        begin_s, duration_s = at_s - BEFORE_S, BEFORE_S + OUTAGE_S + AFTER_S

        def run(*faults: MetricFault, begin_s: float = begin_s, duration_s: float = duration_s) -> Played:
            source = traffic.source(WEDNESDAY_S + begin_s, duration_s)
            return played(traffic, WEDNESDAY_S + begin_s, source, duration_s, wednesday.at(begin_s), metric_faults=faults)

        sound = run()
        print(
            f"outage, {place}: {traffic.per_s(WEDNESDAY_S + at_s):.0f} requests/s, {sound.at(BEFORE_S).desired} replicas; sound: {sound.attained:.2%}"
        )
        for kind in KINDS:
            name = f"outage, {place}, {kind}"
            print(name)
            ill = run(MetricFault(kind, BEFORE_S, BEFORE_S + OUTAGE_S))
            # A page that stands still gives itself away only after a while, as the live scraper has it: until then steps down are nobody's fault.
            knowable_s = BEFORE_S + (FROZEN_AFTER_S + INTERVAL_S if kind == "frozen" else 0.0) + INTERVAL_S
            wanted = [sample.desired for sample in ill.samples if knowable_s <= sample.at_s <= BEFORE_S + OUTAGE_S]
            lowered = sum(after < before for before, after in itertools.pairwise(wanted))
            alert_s = ill.result.first_alert_s.get("signals_unknown", math.inf) - BEFORE_S
            points = 100 * (ill.attained - sound.attained)
            report.judged(name, "steps down while nothing was known", lowered, "0", lowered == 0)
            report.judged(name, "alert after", alert_s, f"≤ {ALERT_S:.0f} s", alert_s <= ALERT_S, " s")
            report.judged(name, "attainment against the sound hours", points, "≥ −0.2", points >= -0.2, " points")


# -- 3. days that change at noon


def days(traffic: Traffic, wednesday: Played, tuesday: Played, report: Report) -> None:
    """Lengths, a tenant, a region."""
    print(f"day: nothing changes: {wednesday.attained:.2%} attained, {wednesday.result.gpu_hours:.0f} GPU-hours")
    report.told("day, unchanged", "attainment over the day", 100 * wednesday.attained, " %")

    def whole(stream: int = 0) -> ArrivalSource:
        return traffic.source(WEDNESDAY_S, DAY_S, stream)

    chance = np.random.default_rng([traffic.seed, 5])
    changes = {
        "answers twice as long": (transform.lengthened(whole(), 1.0, 2.0, NOON_S), (1.0, 2.0)),
        "all lengths × 1.5": (transform.lengthened(whole(), 1.5, 1.5, NOON_S), (1.5, 1.5)),
        "a tenant with prompts of 4,000": (transform.long_context(whole(), 0.15, 4000, NOON_S, chance), None),
        "a lost region's traffic": (transform.merged(whole(), whole(1), NOON_S), (1.0, 1.0)),
    }
    for change, (source, factors) in changes.items():
        name = f"day, {change}"
        run = played(traffic, WEDNESDAY_S, source, DAY_S, tuesday.samples[-1])
        print(f"{name}: {run.at(NOON_S).desired} replicas at noon, at most {max(sample.desired for sample in run.samples)}")
        report.judged(name, "attainment over the day", 100 * run.attained, "≥ 98 %", run.attained >= 0.98, " %")
        report.told(name, f"GPU-hours (unchanged: {wednesday.result.gpu_hours:.0f})", run.result.gpu_hours)
        before, hour_on, settled = (_thought(run, at_s) for at_s in (NOON_S, NOON_S + HOUR_S, DAY_S))
        report.told(name, "a replica is thought to serve, at noon", before, "/s")
        report.told(name, "… an hour later", hour_on, "/s")
        report.told(name, "… at the end of the day", settled, "/s")
        if factors is not None and factors != (1.0, 1.0):
            report.told(name, "an ample fleet attains", 100 * _ample(traffic, factors), " %")
        target = before if factors == (1.0, 1.0) else settled
        off = abs(hour_on / target - 1)
        goal = f"≤ {RELEARNED:.0%} from {'that of noon' if target is before else 'that of the evening'}"
        report.judged(name, "the estimate, an hour later, is off by", 100 * off, goal, off <= RELEARNED, " %")


def _ample(traffic: Traffic, factors: tuple[float, float]) -> float:
    """Attainment of a fleet that has nothing else to wait for, over half an hour of the afternoon."""
    prompt, output = (
        round(mean * factor) for mean, factor in zip((POOL.scaling.prompt_tokens, POOL.scaling.output_tokens), factors, strict=True)
    )
    rate = at_slo(POOL.profile, prompt, output, POOL.slo.ttft_s, POOL.slo.itl_s).requests_per_s
    begin_s = WEDNESDAY_S + NOON_S + HOUR_S
    replicas = math.ceil(AMPLE * traffic.per_s(begin_s) / rate)
    source = transform.lengthened(traffic.source(begin_s, 1800.0), *factors, 0.0)
    world = scenario_from(POOL, SPEC.tiers, duration_s=1800.0, initial_replicas=replicas, seed=traffic.seed)
    result = play(world, Static(replicas), source, name="ample", cpu_clock=time.process_time)
    return result.tiers[SPEC.tiers[0].name].both_attainment


def _thought(run: Played, upto_s: float) -> float:
    """Median of the quarter of an hour before."""
    return statistics.median(sample.replica_per_s for sample in run.samples if upto_s - 900.0 < sample.at_s <= upto_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="spike,outage,day", help="parts, with commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH", help="- for stdout")
    options = parser.parse_args()
    out = sys.stdout
    if options.json == "-":
        sys.stdout = sys.stderr
    began_s = time.perf_counter()
    only, report = set(options.only.split(",")), Report()
    traffic = Traffic(options.seed)
    print(f"{POOL.profile.name}: {REPLICA_PER_S:.2f} requests/s a replica at the SLO, {CAPACITY.cold_start_s:.0f} s a start")
    tuesday = played(traffic, TUESDAY_S, traffic.source(TUESDAY_S, DAY_S), DAY_S, None)
    wednesday = played(traffic, WEDNESDAY_S, traffic.source(WEDNESDAY_S, DAY_S), DAY_S, tuesday.samples[-1])
    if "spike" in only:
        spikes(traffic, wednesday, report)
    if "outage" in only:
        outages(traffic, wednesday, report)
    if "day" in only:
        days(traffic, wednesday, tuesday, report)
    judged = [row for row in report.rows if "met" in row]
    missed = [f"{row['scenario']}: {row['what']}" for row in judged if not row["met"]]
    wall_s = time.perf_counter() - began_s
    print(f"{len(judged) - len(missed)} of {len(judged)} goals met, {wall_s:.0f} s")
    if options.json:
        text = json.dumps({"seed": options.seed, "wall_s": wall_s, "rows": report.rows, "missed": missed}, indent=1)
        if options.json == "-":
            print(text, file=out)
        else:
            Path(options.json).write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
