"""Answers the admin API's questions from the controller's state and the Store: the read side, which changes nothing."""

import re
from collections import Counter
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from forebay.controller.service import Controller
from forebay.controller.status import Explanation, PoolStatus, ReplicaStatus, Status, explanation
from forebay.controller.sturdy import SturdyStore
from forebay.controller.usage_report import UsageReport, by_of, day_of, usage_report
from forebay.controller.ward import Ward
from forebay.domain.errors import BadInput
from forebay.domain.events import Event
from forebay.domain.replica import ReplicaState
from forebay.domain.signal import Known, Signal, Unknown
from forebay.domain.units import parse_duration_s
from forebay.ports import Clock, EngineSignals
from forebay.scaling import explain

SECONDS_PER_MIN = 60.0
FUTURE_S_MAX = 60.0
NAMED_MAX = 3
"""Gateways, in a sentence."""
CLOCK_TIME = re.compile(r"[0-2]?[0-9]:[0-5][0-9]")


def iso(wall_s: float) -> str:
    """Unix time as ISO, UTC, to the second."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_iso(text: str, now_wall_s: float) -> float:
    """Unix time of an ISO time (without an offset: UTC), of a time of today (``15:28``) or of one ago (``-10m``).

    Raises BadInput that says what is allowed, for a time that is still to come too.
    """
    at_s = _moment(text.strip(), now_wall_s)
    if at_s > now_wall_s + FUTURE_S_MAX:
        raise BadInput(f"at: found {text!r}, which is still to come; it is {iso(now_wall_s)}")
    return at_s


def _moment(text: str, now_wall_s: float) -> float:
    if text.startswith("-"):
        try:
            return now_wall_s - parse_duration_s(text[1:])
        except ValueError as error:
            raise BadInput(f"at: {error}") from None
    if CLOCK_TIME.fullmatch(text):
        text = f"{iso(now_wall_s)[:10]}T{text.zfill(5)}:00"
    try:
        at = datetime.fromisoformat(text.replace("Z", "+00:00"))
        # By way of UTC: an offset can lead out of the calendar at both its ends.
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        allowed = "an ISO time such as 2026-11-29T08:00:00Z, a time of today (UTC) such as 08:00, or one ago such as -10m"
        raise BadInput(f"at: found {text[:100]!r}; allowed: {allowed}") from None


class Reports:
    """`Source` of the admin API over a live controller."""

    def __init__(self, controller: Controller, store: SturdyStore, clock: Clock) -> None:
        self._controller = controller
        self._store = store
        self._clock = clock
        self.registry = CollectorRegistry()
        self.registry.register(_Exposition(controller, store))

    def status(self) -> Status:
        """The fleet at this instant."""
        controller, now_s = self._controller, self._clock.now_s()
        records = controller.book.records.values()
        return Status(
            at=iso(self._clock.wall_s()),
            term=controller.roster.term,
            roster_version=controller.roster.version,
            gateways={record.name: "ok" if now_s - record.heard_s <= controller.book.lease_s else "silent" for record in records},
            pools=tuple(self._pool(ward, now_s) for ward in controller.wards.values()),
            problems=((self._store.problem,) if self._store.problem else ()) + self._refused(),
        )

    def _refused(self) -> tuple[str, ...]:
        """That the configuration file is refused, by whom and why."""
        found = {why: _named(gateways) for why, gateways in self._controller.book.refusing().items()}
        if why := self._controller.reloads.why:
            found[why] = "the controller" + (f" and {found[why]}" if why in found else "")
        return tuple(f"the configuration file is refused by {who}, and the one before goes on: {why}" for why, who in found.items())

    def explain(self, pool: str | None, at: str | None) -> list[Explanation]:
        """Why each pool (or ``pool``) has its replicas now, or had them at the ISO time ``at``."""
        wards = self._controller.wards
        if pool is not None and pool not in wards:
            raise BadInput(f"pool: found {pool!r}; allowed: {', '.join(wards)}")
        names = list(wards) if pool is None else [pool]
        if at is None:
            decided = [(ward.decision, self._wall_of(ward)) for ward in map(wards.__getitem__, names)]
            return [explanation(decision, iso(wall_s)) for decision, wall_s in decided if decision is not None]
        until_s = from_iso(at, self._clock.wall_s())
        found = [record for name in names for record in self._store.decisions(name, until_s, 1)]
        if not found:
            raise BadInput(f"at: nothing was decided yet at {iso(until_s)}; the history begins later")
        return [explanation(record.decision, iso(record.at_wall_s)) for record in found]

    def usage(self, since: str | None, until: str | None, by: str | None) -> UsageReport:
        """The ledger from one day to another, which is in, added up by the names in ``by``."""
        now_s = self._clock.wall_s()
        since_day = day_of("since", since, now_s) if since else 0
        until_day = day_of("until", until, now_s) + 1 if until else None
        return usage_report(self._store.usage(since_day, until_day), by_of(by), since_day, until_day)

    def recent_events(self, limit: int) -> list[Event]:
        """The newest events, oldest first."""
        return self._store.events(limit=limit)

    def _wall_of(self, ward: Ward) -> float:
        return ward.observation.wall_s if ward.observation is not None else self._clock.wall_s()

    def _pool(self, ward: Ward, now_s: float) -> PoolStatus:
        decision, seen = ward.decision, ward.observation
        bound = explain.binding(decision) if decision is not None else None
        readings: dict[str, Signal] = {
            "lanes_waiting": seen.lanes_waiting if seen else Unknown(),
            "arrival_per_s": seen.arrival_per_s if seen else Unknown(),
            "ttft_attainment": seen.ttft_attainment if seen else Unknown(),
            "cold_start_s": seen.cold_start_s if seen else Unknown(),
        }
        arrival = _value(readings["arrival_per_s"])
        gpu_hours = self._controller.meter.gpu_hours(ward.pool.name)
        price = ward.pool.profile.gpu_hour_usd if ward.pool.profile else 0.0
        return PoolStatus(
            pool=ward.pool.name,
            model=ward.pool.model,
            desired=ward.desired,
            replicas=dict(Counter(view.state.value for view in ward.views)),
            binding=bound.name if bound else "",
            because=bound.because if bound else "",
            posture=decision.posture.value if decision else "open",
            waiting=_value(readings["lanes_waiting"]),
            arrival_per_min=None if arrival is None else arrival * SECONDS_PER_MIN,
            ttft_attainment=_value(readings["ttft_attainment"]),
            cold_start_s=_value(readings["cold_start_s"]),
            gpu_hours=round(gpu_hours, 4),
            cost_usd=round(gpu_hours * price, 4) if price else None,
            unknown={name: reading.why for name, reading in readings.items() if isinstance(reading, Unknown)},
            alerts=decision.alerts if decision else (),
            detail=tuple(self._replica(ward, view.id, now_s) for view in ward.views),
            waiting_in_engines=_sum([each.waiting for each in seen.replicas if each.state is ReplicaState.READY] if seen else []),
            waiting_preemptible=self._controller.book.preemptible_waiting(ward.pool.name, now_s),
            unserved=self._controller.book.unserved(ward.pool.name, now_s),
            needed=explain.needed(decision) if decision is not None else None,
            kv_differs=self._controller.kv_told.differs(ward.pool.name),
        )

    def _streams(self, pool: str, replica: str, now_s: float) -> int | None:
        """On one replica; None while a gateway that may have some there is silent: what it said last is no news."""
        book = self._controller.book
        return book.streams(pool, replica, now_s) if book.loads(pool, now_s) is not None else None

    def _replica(self, ward: Ward, replica: str, now_s: float) -> ReplicaStatus:
        view = next(view for view in ward.views if view.id == replica)
        signals = ward.signals.get(replica, EngineSignals())
        return ReplicaStatus(
            id=view.id,
            state=view.state.value,
            for_s=round(now_s - view.since_s, 1),
            url=view.url,
            streams=self._streams(view.pool, view.id, now_s),
            kv_usage=_value(signals.kv_usage),
            cold_start_s=view.cold_start_s,
            restarts=view.restarts,
            problem=view.problem,
            gateway="" if self._controller.leasing is None else self._controller.leasing.leases.holder(view.id),
            ejected=self._controller.book.ejected(view.pool, view.id, now_s),
        )


def _named(gateways: list[str]) -> str:
    more = f" and {len(gateways) - NAMED_MAX} more" if len(gateways) > NAMED_MAX else ""
    return f"gateway{'s' * (len(gateways) > 1)} {', '.join(gateways[:NAMED_MAX])}{more}"


def _value(signal: Signal) -> float | None:
    return signal.value if isinstance(signal, Known) else None


def _sum(signals: list[Signal]) -> float | None:
    told = [signal.value for signal in signals if isinstance(signal, Known)]
    return sum(told) if told else None


class _Exposition:
    """The controller's own metrics: a reading that is not known has no sample, never a zero."""

    def __init__(self, controller: Controller, store: SturdyStore) -> None:
        self._controller = controller
        self._store = store

    def collect(self) -> list[Metric]:
        """All families at this instant."""
        desired = GaugeMetricFamily("forebay_replicas_desired", "Replicas wanted by the last decision", labels=["pool"])
        states = GaugeMetricFamily("forebay_replicas", "Replicas by state", labels=["pool", "state"])
        terms = GaugeMetricFamily("forebay_term_replicas", "Replicas asked for by each term of the last decision", labels=["pool", "term"])
        binding = GaugeMetricFamily("forebay_term_binding", "1 for the term that binds", labels=["pool", "term"])
        waiting = GaugeMetricFamily("forebay_lanes_waiting", "Requests waiting in lanes, preemptible ones left out", labels=["pool"])
        alerts = GaugeMetricFamily("forebay_alert", "1 while the alert holds", labels=["pool", "alert"])
        seconds = CounterMetricFamily("forebay_gpu_seconds", "GPU-seconds by replica state", labels=["pool", "state"])
        ratio = GaugeMetricFamily(
            "forebay_kv_ratio",
            "KV tokens that the engine holds, per token booked there: its budget is divided by it",
            labels=["pool", "replica"],
        )
        brake = GaugeMetricFamily("forebay_kv_brake", "Share of the KV budget held back for preemptions", labels=["pool", "replica"])
        preemptions = CounterMetricFamily("forebay_engine_preemptions", "Sequences that engines have preempted", labels=["pool"])
        kept = GaugeMetricFamily(
            "forebay_history_kept", "0 while the store refuses what should be kept", value=float(not self._store.problem)
        )
        for name, ward in self._controller.wards.items():
            desired.add_metric([name], ward.desired)
            for state in ReplicaState:
                states.add_metric([name, state.value], ward.count(state))
            for term in ward.decision.terms if ward.decision else ():
                terms.add_metric([name, term.name], term.replicas)
                binding.add_metric([name, term.name], float(term.binding))
            if ward.observation is not None and isinstance(ward.observation.lanes_waiting, Known):
                waiting.add_metric([name], ward.observation.lanes_waiting.value)
            for alert in ward.decision.alerts if ward.decision else ():
                alerts.add_metric([name, alert.kind.value], 1.0)
            for state_name, value in self._controller.meter.gpu_seconds.get(name, {}).items():
                seconds.add_metric([name, state_name], value)
            for view in ward.views:
                correction = self._controller.corrections.correction(view.id)
                if correction is not None:
                    ratio.add_metric([name, view.id], correction.ratio)
                    brake.add_metric([name, view.id], correction.brake)
            preemptions.add_metric([name], self._controller.corrections.preemptions_total.get(name, 0))
        reloads = self._controller.reloads
        seen = CounterMetricFamily("forebay_config_reloads", "Changed configurations, taken or refused", labels=["result"])
        seen.add_metric(["taken"], reloads.taken)
        seen.add_metric(["refused"], reloads.refused)
        refused_help = "1 while the configuration file was refused, and the controller goes by the one before"
        refused = GaugeMetricFamily("forebay_config_refused", refused_help, value=float(reloads.waits))
        return [desired, states, terms, binding, waiting, alerts, seconds, kept, ratio, brake, preemptions, seen, refused]
