"""Plays one policy in one scenario over a simulated fleet: the control loop, the lives of replicas, and the accounts, in virtual time.

The policy is the live one and sees what the live controller would show it. The fleet owns requests and engines, this
module owns time: it plays the fleet up to the next thing that happens, lets it happen, and goes on. What a decision says
about admission (its posture) goes to the fleet's front queue at once, as a roster takes it to the gateways.
"""

import math
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial

import numpy as np

from forebay.demand.arrays import Arrivals, ArrivalSource
from forebay.domain.scaling import Decision, History, Observation, Policy
from forebay.simulation.accounting import MINUTE_S, Actions, AlertLog, Breaches, Meter
from forebay.simulation.actuators import actuator
from forebay.simulation.fast import FastFleet
from forebay.simulation.faults import Faults, befallen, check_outages
from forebay.simulation.fleet import SimulatedFleet
from forebay.simulation.lab_acting import act, act_on_count
from forebay.simulation.lab_agenda import Agenda, Turn
from forebay.simulation.lab_history import Buckets
from forebay.simulation.lab_life import Lives, S
from forebay.simulation.lab_scenario import check_scenario
from forebay.simulation.lab_timeline import Timeline
from forebay.simulation.sensing import DUST_S, Facts, Senses
from forebay.simulation.values import FleetRules, Outage, RunResult, Scenario

LOOK_S_MIN = 1.0
"""A policy that asks to be asked again sooner waits for this: the live loop's own pace."""
SENSE_S_MAX = 15.0
RAMP_DAYS_MAX = 28
PRESENT_RAMP = "present_ramp_per_s2"
"""The number that a policy tells of the ramp it measured; the largest of each day becomes ``past_ramps_per_s2``."""

FleetFactory = Callable[[FleetRules, ArrivalSource], SimulatedFleet]


def play(
    scenario: Scenario,
    policy: Policy,
    arrivals: ArrivalSource,
    *,
    name: str,
    cpu_clock: Callable[[], float],
    fleet: FleetFactory = FastFleet,
    progress: Callable[[float], None] | None = None,
    past: History | None = None,
    pool: str = "pool",
) -> RunResult:
    """What ``policy`` makes of ``scenario``. Arrivals from its end on are left out; what is in flight then runs to its end.

    ``cpu_clock`` gives seconds of CPU (for ``decide_s`` and ``wall_s`` alone), ``progress`` is told the fraction that is
    played, ``past`` is demand before second 0. Raises BadInput for an ill scenario, history or trace.
    """
    check_scenario(scenario)
    began_s = cpu_clock()
    run = _Run(scenario, policy, fleet(scenario.rules, until(arrivals, scenario.duration_s)), cpu_clock, progress, past, pool)
    run.play()
    return run.result(name, began_s)


def until(arrivals: ArrivalSource, end_s: float) -> Iterator[Arrivals]:
    """``arrivals`` before ``end_s``; the source is read no further than the chunk in which they end."""
    for chunk in arrivals:
        if len(chunk.at_s) and chunk.at_s[-1] >= end_s:
            # A trace out of order is for the fleet to refuse: only what follows the first late row is cut.
            rows = int(np.argmax(chunk.at_s >= end_s))
            yield Arrivals(
                chunk.at_s[:rows],
                chunk.prompt_tokens[:rows],
                chunk.output_tokens[:rows],
                chunk.tier[:rows],
                chunk.group[:rows],
                chunk.shared_tokens[:rows],
            )
            return
        yield chunk


class _Run:
    """One run; `play` it, then ask for its `result`."""

    def __init__(
        self,
        scenario: Scenario,
        policy: Policy,
        fleet: SimulatedFleet,
        cpu_clock: Callable[[], float],
        progress: Callable[[float], None] | None,
        past: History | None,
        pool: str,
    ) -> None:
        self._scenario = scenario
        self._policy = policy
        self._fleet = fleet
        self._cpu_clock = cpu_clock
        self._progress = progress
        self._pool = pool
        rules = scenario.rules
        check_outages(scenario.outages)
        promised = [index for index, tier in enumerate(rules.tiers) if not tier.preemptible]
        self._agenda = Agenda()
        self._meter = Meter(rules.profile.gpus, scenario.duration_s, scenario.warm_share if scenario.warm_max else None)
        self._lives = Lives(scenario, fleet, self._agenda, self._meter, pool)
        faults = Faults(scenario.metric_faults, scenario.seed)
        dated = [(index, tier.longest_wait_s) for index, tier in enumerate(rules.tiers) if tier.preemptible]
        self._senses = Senses(fleet, promised, faults, scenario.scrape_delay_s, net=bool(dated), dated=dated)
        self._buckets = Buckets(scenario.start_wall_s, scenario.history_bucket_s, past)
        self._actuator = actuator(scenario)
        self._act = act_on_count if self._actuator.count_only else act
        self._actions = Actions(scenario.initial_replicas)
        self._alerts = AlertLog()
        self._breaches = Breaches(scenario.promise_attainment)
        self._timeline = Timeline(fleet, len(rules.tiers), promised)
        self._ramps = _Ramps()
        self._desired = scenario.initial_replicas
        self._memory = b""
        self._decision: Decision | None = None
        self._decisions = 0
        self._decide_s = 0.0

    def play(self) -> None:
        """From second 0 to the end, and until what is in flight then is over (or a drain's longest time)."""
        scenario, agenda, fleet = self._scenario, self._agenda, self._fleet
        self._lives.begin_with(scenario.initial_replicas)
        sense_s = scenario.interval_s / math.ceil(scenario.interval_s / SENSE_S_MAX)
        self._every(sense_s, Turn.SENSE, self._sense, first_s=-scenario.scrape_delay_s % sense_s)
        self._every(scenario.history_bucket_s, Turn.SENSE, self._end_bucket)
        self._every(MINUTE_S, Turn.ROW, self._end_minute)
        self._every(scenario.timeline_s, Turn.ROW, self._row)
        for clock, period_s in enumerate(self._actuator.syncs_s):
            self._every(period_s, Turn.ACTUATE, partial(self._sync, clock))
        for index, outage in enumerate(scenario.outages):
            agenda.at(outage.at_s, Turn.TROUBLE, partial(self._befall, index, outage))
        agenda.at(0.0, Turn.DECIDE, self._decide)
        now_s = 0.0
        while now_s < scenario.duration_s:
            now_s = min(agenda.next_s, scenario.duration_s)
            fleet.run_until(now_s)
            agenda.run(now_s)
        self._lives.close(scenario.duration_s)
        fleet.run_until(scenario.duration_s + scenario.drain_s_max)

    def result(self, name: str, began_s: float) -> RunResult:
        """What came of it."""
        scenario, meter, fleet = self._scenario, self._meter, self._fleet
        tiers = {tier.name: fleet.results(index) for index, tier in enumerate(scenario.rules.tiers)}
        gpu_hours = meter.gpu_hours
        totals = [tier.totals for tier in tiers.values()]
        arrived = sum(tier.arrived for tier in totals)
        unfinished = arrived - sum(tier.completed + tier.shed + tier.cut for tier in totals)
        notes = []
        if unfinished:
            notes.append(f"{unfinished} requests had not ended {scenario.drain_s_max:g} s after the end")
        if self._timeline.left_out:
            notes.append(f"the last {self._timeline.left_out} rows of the timeline are left out")
        return RunResult(
            policy=name,
            seed=scenario.seed,
            duration_s=scenario.duration_s,
            requests=arrived,
            tiers=tiers,
            gpu_hours=gpu_hours,
            gpu_hours_by_state={state: seconds / 3600.0 for state, seconds in meter.gpu_seconds.items()},
            cost_usd=gpu_hours * scenario.gpu_hour_usd,
            replicas_mean=gpu_hours * 3600.0 / scenario.rules.profile.gpus / scenario.duration_s,
            replicas_peak=self._lives.peak,
            scale_actions=self._actions.changes,
            reversals=self._actions.reversals,
            starts=self._lives.starts,
            breaches=self._breaches.count,
            longest_breach_s=self._breaches.longest_s,
            preemptions=sum(tier.preempted for tier in totals),
            alerts=self._alerts.begun,
            first_alert_s=self._alerts.first_s,
            decisions=self._decisions,
            decide_s=self._decide_s,
            wall_s=self._cpu_clock() - began_s - self._decide_s,
            timeline=tuple(self._timeline.rows),
            notes=tuple(notes),
        )

    def _every(self, period_s: float, turn: Turn, action: Callable[[float], None], first_s: float | None = None) -> None:
        """``action`` at ``first_s`` (default: after one period) and then each period, on a grid that does not drift, to the end."""
        begin_s = period_s if first_s is None else first_s
        count = 0

        def act(now_s: float) -> None:
            nonlocal count
            count += 1
            at_s = begin_s + count * period_s
            if at_s <= self._scenario.duration_s + DUST_S:
                self._agenda.at(at_s, turn, act)
            action(now_s)

        self._agenda.at(begin_s, turn, act)

    def _sense(self, now_s: float) -> None:
        self._senses.take(now_s, self._lives.in_state(S.READY, S.DRAINING))

    def _end_bucket(self, now_s: float) -> None:
        del now_s
        counts = self._senses.counts()
        self._buckets.end((counts.arrived, counts.prompt_tokens, counts.output_tokens))

    def _end_minute(self, now_s: float) -> None:
        self._senses.end_minute(now_s)
        self._timeline.minute(self._senses.minute_p95_s)
        tiers = self._scenario.rules.tiers
        self._breaches.minute([self._fleet.totals(index) for index, tier in enumerate(tiers) if not tier.preemptible])
        if self._progress is not None:
            self._progress(min(1.0, now_s / self._scenario.duration_s))

    def _row(self, now_s: float) -> None:
        self._timeline.row(now_s, self._lives, self._senses, self._actuator.target, self._decision)

    def _befall(self, index: int, outage: Outage, now_s: float) -> None:
        chance = random.Random(f"{self._scenario.seed}/outage/{index}")
        for replica in befallen(outage, list(self._lives.replicas.values()), chance):
            if outage.kind == "crash":
                self._lives.crash(replica, now_s)
            else:
                self._lives.reclaim(replica, now_s, outage.notice_s)

    def _decide(self, now_s: float) -> None:
        scenario, agenda = self._scenario, self._agenda
        latest = self._senses.latest
        if not scenario.scrape_delay_s and (latest is None or latest.at_s < now_s):
            self._sense(now_s)
        seen = self._observe(now_s)
        begun_s = self._cpu_clock()
        decision = self._policy.decide(seen)
        self._decide_s += self._cpu_clock() - begun_s
        self._decisions += 1
        self._take(decision, seen.wall_s, now_s)
        self._carry_out(seen, now_s)
        self._lives.hold_warm(max(0, min(decision.warm, scenario.warm_max)), now_s)
        ticks = math.floor(now_s / scenario.interval_s + DUST_S) + 1
        next_s = ticks * scenario.interval_s
        if decision.look_again_at_s > now_s:
            look_s = max(decision.look_again_at_s, now_s + LOOK_S_MIN)
            next_s = look_s if look_s < next_s - DUST_S else next_s
        if next_s < scenario.duration_s:
            agenda.at(next_s, Turn.DECIDE, self._decide)

    def _observe(self, now_s: float) -> Observation:
        wall_s = self._scenario.start_wall_s + now_s
        facts = Facts(
            self._pool,
            now_s,
            wall_s,
            self._desired,
            self._memory,
            self._lives.cold_starts.signal(now_s),
            self._scenario.cold_start.unshared_s,
            self._ramps.past,
            self._buckets.view,
            self._lives.warm_nodes.held,
            self._lives.warm_starts.signal(now_s),
            self._scenario.cold_start.unshared_s - self._scenario.cold_start.provision_s,
        )
        seen = self._senses.observe(facts, self._lives.replicas.values())
        if not self._senses.heard:
            self._buckets.unheard()
        return seen

    def _take(self, decision: Decision, wall_s: float, now_s: float) -> None:
        scenario = self._scenario
        self._desired = max(scenario.min_replicas, min(scenario.max_replicas, decision.replicas))
        self._memory = decision.memory
        self._decision = decision
        self._fleet.set_posture(decision.posture)
        self._alerts.take(decision, now_s)
        for term in decision.terms:
            if PRESENT_RAMP in term.numbers:
                self._ramps.take(term.numbers[PRESENT_RAMP], wall_s)
        self._actuator.decided(self._desired, now_s)

    def _sync(self, clock: int, now_s: float) -> None:
        present = sum(replica.state is not S.DRAINING for replica in self._lives.replicas.values())
        self._actuator.sync(clock, now_s, present)
        if present != self._actuator.target:
            self._carry_out(self._observe(now_s), now_s)

    def _carry_out(self, seen: Observation, now_s: float) -> None:
        target = self._actuator.target
        self._actions.take(target, now_s)
        self._act(self._lives, self._scenario, target, seen.replicas, now_s)


class _Ramps:
    """The largest ramp that the policy measured within each past day of the calendar (UTC), as the controller keeps them."""

    def __init__(self) -> None:
        self.past: tuple[float, ...] = ()
        self._today: tuple[object, float] | None = None

    def take(self, ramp_per_s2: float, wall_s: float) -> None:
        """Note the present ramp."""
        day = datetime.fromtimestamp(wall_s, UTC).date()
        if self._today is not None and self._today[0] != day:
            self.past = (*self.past, self._today[1])[-RAMP_DAYS_MAX:]
            self._today = None
        self._today = (day, max(0.0, ramp_per_s2, self._today[1] if self._today is not None else 0.0))
