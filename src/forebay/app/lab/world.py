"""From a request to the world it describes: the trace opened, surveyed, and the scenario that every policy is played in."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from forebay.app.lab import feasible, recorded
from forebay.app.lab.actuating import unused
from forebay.app.lab.clock import Clock, zone_of
from forebay.app.lab.faults import FaultPlan
from forebay.app.lab.idle_fleet import IdleFleet
from forebay.app.lab.peak import smallest_fleet
from forebay.app.lab.request import LabRequest
from forebay.app.lab.survey import HOUR_S, MINUTE_S, Survey, Surveyed
from forebay.app.traces import OpenedTrace, open_arrivals
from forebay.demand import synthesis
from forebay.demand.arrays import ArrivalSource
from forebay.domain.errors import BadInput
from forebay.domain.scaling import History
from forebay.domain.units import format_duration, format_span
from forebay.engine.capacity import at_slo
from forebay.engine.catalogue import PROFILES
from forebay.scaling.capacity import pool_capacity, whole_replicas
from forebay.simulation.clairvoyant import calm
from forebay.simulation.lab_scenario import scenario_from
from forebay.simulation.values import Scenario

Tell = Callable[[float], None]
HISTORY_S_MAX = 28 * 86_400.0
"""What came before the span is history, as far back as policies look."""
HISTORY_BUCKET_S = 300.0
HISTORY_ITEM_BYTES = 4
"""Columns of a history are float32."""
SHORT_OF_ASKED = 0.01
"""A span that ends so little (a minute at most) before what was asked for is whole: its last request need not come in its last second."""
SHAPE_FACTOR_MAX = 1.5
"""Lengths that are off by more than this make targets that are derived from the declared ones wrong."""
DECISIONS_MANY = 20_000
"""Of one run: beyond that it is worth saying what they cost."""
REQUESTS_A_DECISION = 50
"""As many requests take the simulator as long as one decision of Forebay's policy (0.3 ms, against 200,000 a second)."""
INTERVAL_IN_THE_LAB_S = 15.0
"""As seldom as an HPA looks; a start takes minutes."""
TIMELINE_ROWS_MAX = 10_080
"""Rows of a timeline: a week of minutes; longer runs have longer rows."""


class Prepared(msgspec.Struct, frozen=True):
    """What all runs of a comparison have in common. It is found once, and travels with each task."""

    request: LabRequest
    name: str
    """Of the trace."""
    duration_s: float
    start_wall_s: float
    """Unix time of second 0; 0: the trace doesn't say."""
    survey: Survey
    peak_replicas: int
    """The smallest fixed fleet that keeps the promise through the busiest hour; the pool's most where none does."""
    initial_replicas: int
    past: History | None
    notes: tuple[str, ...]
    skipped_rows: int = 0
    """Rows of the trace that were broken, and left out since that was asked for."""
    sorted_rows: int = 0
    """Rows of it that stood behind later ones, and were put in order since that was asked for."""
    peak_holds: bool = True
    """``peak_replicas`` keep the promise through the busiest hour; if not, a note says why not."""

    @property
    def clock(self) -> Clock:
        """By which times of the span are told."""
        return Clock(self.start_wall_s, zone_of(self.request.pool, self.request.calendar))


def opened(request: LabRequest, seed: int, start_s: float, duration_s: float | None, tell: Tell | None = None) -> OpenedTrace:
    """The arrivals of ``request`` in a span. Raises BadInput for a trace that can't be used.

    ``tell`` is told what fraction of a file has been read.
    """
    trace, scaling = request.trace, request.pool.scaling
    if trace.recorded is not None:
        names = [tier.name for tier in request.tiers]
        weights = dict(zip(names, synthesis.tier_weights(names, dict(trace.tiers) or None), strict=True))
        return recorded.opened(trace.recorded, trace.path, weights, (start_s, duration_s), trace.rate_scale, trace.gap_cv, seed)
    return open_arrivals(
        Path(trace.path),
        trace.trace_format,
        lengths=Path(trace.lengths) if trace.lengths else None,
        shape=(scaling.prompt_tokens, scaling.output_tokens),
        tiers=[tier.name for tier in request.tiers],
        tier_weights=dict(trace.tiers) or None,
        start_s=start_s,
        duration_s=duration_s,
        rate_scale=trace.rate_scale,
        noise=trace.noise,
        cv=trace.gap_cv,
        column=trace.column,
        seed=seed,
        lenient=trace.lenient,
        tell=tell,
    )


def prepared(request: LabRequest, doing: Callable[[str], None], tell: Tell | None = None) -> Prepared:
    """Read the trace once, and find what the pool would need for it. Raises BadInput where it could never serve it.

    ``doing`` is told what is being done, ``tell`` what fraction of that: reading a month takes a while.
    """
    scaling, slo, profile = request.pool.scaling, request.pool.slo, request.pool.profile
    feasible.require(request.pool, (scaling.prompt_tokens, scaling.output_tokens), PROFILES)
    assert profile is not None
    doing("reading the trace")
    trace = opened(request, request.seed, request.trace.start_s, request.trace.duration_s, tell)
    doing("adding it up")
    found = _surveyed(request, trace, MINUTE_S, tell).survey()
    if not found.requests:
        at_scale = f" at --rate-scale {request.trace.rate_scale:g}" if request.trace.rate_scale != 1 else ""
        span = format_span(request.trace.start_s, request.trace.duration_s)
        raise BadInput(f"{trace.name}: found no request {span}{at_scale}, allowed: one or more; take a longer span, or more of its rate")
    if request.trace.start_s:
        doing("adding up what came before")
    prompt = max(1, min(round(found.prompt_tokens_mean), profile.context_tokens - 1))
    output = max(1, min(round(found.output_tokens_mean), profile.context_tokens - prompt))
    state = at_slo(profile, prompt, output, slo.ttft_s, slo.itl_s)
    rate = state.requests_per_s or feasible.require(request.pool, (prompt, output), PROFILES).requests_per_s
    ready = Prepared(
        request=request,
        name=trace.name,
        duration_s=trace.duration_s,
        start_wall_s=trace.start_wall_s,
        survey=found,
        peak_replicas=max(1, whole_replicas(found.busiest_per_s / rate)),
        initial_replicas=1,
        past=_past(request, trace.start_wall_s, tell),
        notes=(),
        skipped_rows=trace.counts.broken + trace.counts.late,
        sorted_rows=trace.counts.sorted,
    )
    doing("playing the busiest hour")
    peak, holds = _peak(ready)
    idle = None if holds else _idle(ready, rate, doing)
    # How much more than the formula the real hour takes is what the first minutes take too.
    first = whole_replicas(found.first_per_s / rate * max(1.0, peak * rate / max(found.busiest_per_s, 1e-9))) if holds else peak
    return msgspec.structs.replace(
        ready,
        peak_replicas=max(peak, scaling.min_replicas),
        peak_holds=holds,
        initial_replicas=min(max(first, scaling.min_replicas, 1), scaling.max_replicas),
        notes=(
            *_read(request, trace),
            *_blind(ready.past),
            *(_hopeless(request, found, peak, *idle) if idle else ()),
            *_notes(request, found, rate, trace.duration_s),
        ),
    )


def ending(request: LabRequest, last_s: float, tell: Tell | None = None) -> LabRequest:
    """``request`` for the last ``last_s`` of its trace; all of it where it is shorter (and `prepared` says so). The whole of it is read."""
    whole_s = opened(request, request.seed, request.trace.start_s, None, tell).duration_s
    start_s = request.trace.start_s + max(0.0, whole_s - last_s)
    short_s = last_s if whole_s < last_s else None
    return msgspec.structs.replace(request, trace=msgspec.structs.replace(request.trace, start_s=start_s, duration_s=short_s))


def _peak(ready: Prepared) -> tuple[int, bool]:
    world, arrivals = _busiest_hour(ready)
    return smallest_fleet(world, arrivals, ready.peak_replicas, time.process_time)


def _idle(ready: Prepared, replica_rate_per_s: float, doing: Callable[[str], None]) -> tuple[float, str]:
    """What share of the busiest hour's requests an idle fleet keeps the promise to, and the nearest promise where that is too few."""
    doing("playing the busiest hour's requests on an idle fleet")
    world, arrivals = _busiest_hour(ready)
    fleet = IdleFleet(calm(world), arrivals, ready.survey.busiest_per_s, replica_rate_per_s, time.process_time)
    share = fleet.attained()
    return share, fleet.nearest() if share < world.promise_attainment else ""


def _busiest_hour(ready: Prepared) -> tuple[Scenario, Callable[[], ArrivalSource]]:
    request, found = ready.request, ready.survey
    start_s = request.trace.start_s + found.busiest_s
    span_s = min(HOUR_S, ready.duration_s - found.busiest_s)

    def arrivals() -> ArrivalSource:
        return opened(request, request.seed, start_s, span_s).source()

    faultless = msgspec.structs.replace(ready, request=msgspec.structs.replace(request, faults=FaultPlan()), duration_s=span_s)
    return scenario(faultless, request.seed), arrivals


def scenario(ready: Prepared, seed: int) -> Scenario:
    """The world for one seed. Raises BadInput for faults that don't fit into it."""
    request = ready.request
    base = scenario_from(
        request.pool,
        request.tiers,
        duration_s=ready.duration_s,
        # A trace without dates begins at the epoch, so that its past has a date too.
        start_wall_s=ready.start_wall_s or request.trace.start_s,
        initial_replicas=ready.initial_replicas,
        seed=seed,
    )
    cold_start = msgspec.structs.replace(
        base.cold_start,
        cv=request.start_cv,
        shared_bandwidth_bytes_per_s=request.shared_bandwidth_bytes_per_s,
        peer_to_peer=request.peer_to_peer,
    )
    rules = msgspec.structs.replace(base.rules, queueing=request.queueing, dispatch=request.dispatch, order=request.order)
    rows = max(1, math.ceil(ready.duration_s / MINUTE_S / TIMELINE_ROWS_MAX))
    world = msgspec.structs.replace(
        base,
        rules=rules,
        cold_start=cold_start,
        scrape_delay_s=request.scrape_delay_s,
        actuator=request.actuator,
        history_bucket_s=HISTORY_BUCKET_S,
        timeline_s=rows * MINUTE_S,
    )
    return request.faults.put_into(world)


def _surveyed(request: LabRequest, trace: OpenedTrace, bucket_s: float, tell: Tell | None = None) -> Surveyed:
    promised = tuple(not tier.preemptible for tier in request.tiers)
    return Surveyed(trace.duration_s, bucket_s, promised).take(trace.source(), tell)


def _past(request: LabRequest, start_wall_s: float, tell: Tell | None = None) -> History | None:
    """What the trace has before the span: policies that learn from history may know it."""
    span_s = math.floor(min(request.trace.start_s, HISTORY_S_MAX) / HISTORY_BUCKET_S) * HISTORY_BUCKET_S
    if span_s <= 0:
        return None
    start_s = request.trace.start_s - span_s
    try:
        trace = opened(request, request.seed, start_s, span_s)
    except BadInput:
        # The span itself was read, and all before it: what is wrong here can only be that nothing came.
        return None
    return _surveyed(request, trace, HISTORY_BUCKET_S, tell).history((start_wall_s or request.trace.start_s) - span_s)


def requests_of(request: LabRequest, start_wall_s: float) -> History:
    """What comes in the span itself, bucket by bucket."""
    trace = opened(request, request.seed, request.trace.start_s, request.trace.duration_s)
    return _surveyed(request, trace, HISTORY_BUCKET_S).history(start_wall_s or request.trace.start_s)


def _read(request: LabRequest, trace: OpenedTrace) -> list[str]:
    """What became of what was asked for: rows left out or put in order, a span that goes past the trace's end."""
    start_s = request.trace.start_s
    notes = [f"{trace.name}: {told}" for told in trace.counts.told()]
    notes += [f"{request.trace.lengths}: {told}" for told in trace.lengths_counts.told()]
    if request.trace.lenient and not notes:
        notes.append(f"No row of {trace.name} had to be skipped or put in order.")
    if request.trace.lengths and (not trace.rate_only or request.trace.recorded is not None):
        notes.append(f"--lengths is not used: the requests of {trace.name} have lengths of their own.")
    asked_s = request.trace.duration_s
    if asked_s is not None and asked_s - trace.duration_s > min(MINUTE_S, max(1.0, SHORT_OF_ASKED * asked_s)):
        notes.append(
            f"The trace ends at {format_duration(round(start_s + trace.duration_s))}: {format_duration(round(trace.duration_s))} of the "
            f"{format_duration(asked_s)} {format_span(start_s, None)} are played."
        )
    return notes


def _blind(past: History | None) -> list[str]:
    """That who forecasts has nothing to go by at first, and what to do about it."""
    if past is not None and len(past.requests) / HISTORY_ITEM_BYTES * past.bucket_s >= HOUR_S:
        return []
    return [
        "Next to nothing is known of what came before: policies that forecast, Forebay's too, are blind for the first hour, and have no "
        "day to compare with for the first one, as on a first day live. To judge an ordinary day begin later (`--start 1d`, some hours "
        "at least; in `backtest` a shorter `--last`): what is before is then their history, and the last hours of it a lead-in."
    ]


def _hopeless(request: LabRequest, found: Survey, peak: int, idle: float, nearest: str) -> list[str]:
    """Why the busiest hour can't be held: too few replicas, or a promise that no number of them keeps."""
    promise = request.pool.slo.attainment
    most = f"Not even {peak} replica{'s' if peak > 1 else ''}, the most allowed, keep{'' if peak > 1 else 's'} the promise through the"
    if idle >= promise:
        return [f"{most} busiest hour, with {found.busiest_per_s:.4g} requests/s: no policy can. Raise `max`, or loosen the promise."]
    kept = math.floor(1000 * idle) / 1000
    other = f" or, with {100 * promise:g} %, {nearest}" if nearest else ""
    return [
        f"No number of replicas keeps the promise through the busiest hour: {100 * (1 - idle):.2g} % of its requests miss it even on an "
        f"idle fleet, where {100 * (1 - promise):.2g} % may: a long prompt takes longer than the first token's time by itself, or holds up "
        f"short answers beside it. The nearest that can be kept is attainment: {kept:g}{other}."
    ]


def _notes(request: LabRequest, found: Survey, measured_per_s: float, duration_s: float) -> list[str]:
    """``measured_per_s``: what a replica serves at the trace's mean lengths."""
    declared_per_s = pool_capacity(request.pool).rate_per_s or 0.0
    scaling = request.pool.scaling
    notes = [told] if (told := unused(request.actuator, scaling.min_replicas)) else []
    notes += slow(scaling.interval_s, duration_s, found.requests)
    past = request.trace.recorded
    unknown = recorded.Buckets(past).unknown if past is not None else 0
    if past is not None and unknown:
        notes.append(
            f"Nothing is known of {unknown} of the recorded spans of {format_duration(past.bucket_s)} (controller away, gateways silent): "
            "they are played as idle, and live they were not."
        )
    declared, measured = (scaling.prompt_tokens, scaling.output_tokens), (found.prompt_tokens_mean, found.output_tokens_mean)
    if any(not 1 / SHAPE_FACTOR_MAX <= mean / said <= SHAPE_FACTOR_MAX for mean, said in zip(measured, declared, strict=True)):
        notes.append(
            f"The pool declares requests of {declared[0]:,} + {declared[1]:,} tokens, the trace has {measured[0]:,.0f} + "
            f"{measured[1]:,.0f} on average: set `shape` in the spec, since targets of most policies, and how many requests the gateway "
            f"gives a replica at once, are derived from it.{_what_shape_does(request, declared_per_s, measured_per_s)}"
        )
    return notes


def slow(interval_s: float, duration_s: float, requests: int) -> list[str]:
    """What to do where decisions, and not requests, are what a run waits for."""
    decisions = duration_s / interval_s
    if decisions <= max(DECISIONS_MANY, requests / REQUESTS_A_DECISION):
        return []
    return [
        f"The policy decides every {format_duration(interval_s)}, {decisions:,.0f} times here, which takes most of the time: "
        f"`interval: {format_duration(INTERVAL_IN_THE_LAB_S)}` in a copy of the spec answers several times sooner, a little differently. "
        "Look around with that, and play what you decide by with your own."
    ]


def _what_shape_does(request: LabRequest, declared_per_s: float, measured_per_s: float) -> str:
    """What to expect of a shape that is put right: costs move, and so does what is kept."""
    if request.pool.scaling.replica_rate_per_s is not None or not declared_per_s or not measured_per_s:
        return ""
    moves = "dearer, and then keeps more of the promise" if declared_per_s > measured_per_s else "cheaper, and then keeps less to spare"
    return (
        f" With it a replica counts for {measured_per_s:.3g} requests/s within the promise and not {declared_per_s:.3g}: a policy whose "
        f"targets come from that may become {moves}. Forebay's looks at the lengths that come, and hardly moves."
    )
