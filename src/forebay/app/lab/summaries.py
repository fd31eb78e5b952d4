"""Runs become lines of a comparison: means over seeds, half-widths of 95 % confidence, and one judgement each, held or not.

Savings are counted against the smallest fixed fleet that serves the trace's peak, and only GPUs that were given back (or
lent to batch) save anything: its bill less the policy's own, every node that was paid for included.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from scipy.special import stdtrit

from forebay.app.report.content import format_hours
from forebay.domain.units import format_share
from forebay.simulation.values import FleetRules, PolicySummary, RunResult

CONFIDENCE = 0.95
SECONDS_PER_DAY = 86_400.0
FAVOURITE = "forebay"
EQUAL = 0.0005
"""So much more or less is 0.0 %."""


class Yardstick(msgspec.Struct, frozen=True):
    """What every policy is measured with."""

    bound_gpu_hours: float | None
    static_usd: float | None
    """What a fixed fleet for the peak would have cost; None where no price is known."""
    promise: float
    """Share of the requests of each promised tier that shall get all they were promised."""
    promised_tiers: tuple[str, ...]


def promised_tiers(rules: FleetRules) -> tuple[str, ...]:
    """The tiers that have a promise: those that can't be preempted."""
    return tuple(tier.name for tier in rules.tiers if not tier.preemptible)


def attained(run: RunResult, tiers: Iterable[str]) -> float:
    """Share of requests with every promise kept, in that of ``tiers`` that fares worst; 1 where none of them had a request."""
    shares = [run.tiers[name].both_attainment for name in tiers if name in run.tiers and run.tiers[name].totals.arrived]
    return min(shares, default=1.0)


def summary(runs: Sequence[RunResult], yardstick: Yardstick) -> PolicySummary:
    """One policy over its seeds. Raises ValueError where there is no run."""
    if not runs:
        raise ValueError("a summary needs a run")
    hours = _mean([run.gpu_hours for run in runs])
    cost = _mean([run.cost_usd for run in runs])
    kept = [attained(run, yardstick.promised_tiers) for run in runs]
    days = [run.duration_s / SECONDS_PER_DAY for run in runs]
    return PolicySummary(
        name=runs[0].policy,
        gpu_hours=hours,
        vs_clairvoyant=hours / yardstick.bound_gpu_hours if yardstick.bound_gpu_hours else None,
        ttft_attainment=_by_tier(runs, "ttft_attainment"),
        itl_attainment=_by_tier(runs, "itl_attainment"),
        both_attainment=_by_tier(runs, "both_attainment"),
        shed=round(_mean([_total(run, "shed") for run in runs])),
        truncated=round(_mean([_total(run, "cut") for run in runs])),
        scale_actions=round(_mean([run.scale_actions for run in runs])),
        reversals_per_day=_mean([run.reversals / day for run, day in zip(runs, days, strict=True)]),
        breaches=round(_mean([run.breaches for run in runs])),
        longest_breach_s=max(run.longest_breach_s for run in runs),
        preemptions=round(_mean([run.preemptions for run in runs])),
        cost_usd=cost,
        saved_vs_static_usd=None if yardstick.static_usd is None else yardstick.static_usd - cost,
        holds_slo=_mean(kept) >= yardstick.promise,
        confidence=_confidence(runs, kept, yardstick) if len(runs) > 1 else {},
    )


def half_width(values: Sequence[float]) -> float:
    """Half of the CONFIDENCE interval of the mean of ``values``, which are taken for draws of one normal distribution (Student's t)."""
    count = len(values)
    mean = _mean(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2)) * math.sqrt(variance / count)


def ordered(summaries: Iterable[PolicySummary]) -> list[PolicySummary]:
    """Cheapest first; of two that cost the same, the one that keeps more."""
    return sorted(summaries, key=lambda each: (each.gpu_hours, -min(each.both_attainment.values(), default=1.0), each.name))


def as_json(each: PolicySummary, runs: Sequence[RunResult]) -> dict[str, Any]:
    """One policy for scripts: the summary's own keys, and a few of the runs'."""
    return {
        **msgspec.to_builtins(each),
        "requests": round(_mean([run.requests for run in runs])),
        "replicas_mean": _mean([run.replicas_mean for run in runs]),
        "replicas_peak": max(run.replicas_peak for run in runs),
        "gpu_hours_by_state": {
            state: _mean([run.gpu_hours_by_state.get(state, 0.0) for run in runs]) for state in runs[0].gpu_hours_by_state
        },
        "alerts": {kind: max(run.alerts.get(kind, 0) for run in runs) for kind in sorted({kind for run in runs for kind in run.alerts})},
        "decide_ms": 1e3 * sum(run.decide_s for run in runs) / max(1, sum(run.decisions for run in runs)),
        "tiers": {
            name: {what: getattr(result, what) for what in ("ttft_s", "itl_s", "tpot_s", "wait_s")}
            for name, result in runs[0].tiers.items()
        },
        "seeds": [run.seed for run in runs],
        "near_faults": runs[0].near_faults,
    }


def verdict(summaries: Sequence[PolicySummary], kept: Mapping[str, float], promise: float) -> str:
    """What to tell whoever reads one sentence. ``kept``: share of promises kept, by policy name."""
    if len(summaries) == 1:
        return _alone(summaries[0], kept, promise)
    holding = [each for each in ordered(summaries) if each.holds_slo]
    favourite = next((each for each in summaries if each.name == FAVOURITE), None)
    if not holding:
        best = max(summaries, key=lambda each: kept[each.name])
        return f"No policy keeps the promise of {_percent(promise)}; {best.name} comes nearest with {_kept(kept[best.name], promise)}."
    if favourite is None:
        return f"{_alone(holding[0], kept, promise)} It is the cheapest of {len(holding)} that do."
    others = [each for each in holding if each is not favourite]
    first = _alone(favourite, kept, promise)
    if not others:
        return f"{first} No other policy does." if favourite.holds_slo else first
    other = others[0]
    if not favourite.holds_slo:
        return f"{first} {other.name} does, with {format_hours(other.gpu_hours)} GPU-hours."
    which = f"{other.name} is the only other policy that does" if len(others) == 1 else f"{len(others)} others do, of which {other.name}"
    return f"{first} {which}{_beside(other.gpu_hours / favourite.gpu_hours - 1, several=len(others) > 1)}"


def _beside(more: float, *, several: bool) -> str:
    """How the cheapest other policy compares; ``more``: the share of GPU-hours that it needs beyond the favourite's."""
    if abs(more) < EQUAL:
        return " is the cheapest, with just as many GPU-hours." if several else ", with just as many GPU-hours."
    relation = f"{abs(more):.1%} {'more' if more > 0 else 'fewer'} GPU-hours"
    return f" is the cheapest, with {relation}." if several else f", with {relation}."


def _alone(each: PolicySummary, kept: Mapping[str, float], promise: float) -> str:
    share = _kept(kept[each.name], promise)
    limit = f", {each.vs_clairvoyant:.3f} × the clairvoyant schedule" if each.vs_clairvoyant is not None else ""
    if each.holds_slo:
        keeps = f"{each.name} keeps the promise ({share} of {_percent(promise)}) with {format_hours(each.gpu_hours)} GPU-hours{limit}."
        return keeps + _dearer(each)
    hours = format_hours(each.gpu_hours)
    return f"{each.name} does not keep the promise: {share} of the {_percent(promise)}, with {hours} GPU-hours{limit}."


def _dearer(each: PolicySummary) -> str:
    """That what keeps the promise costs more than what never scales; else empty."""
    saved = each.saved_vs_static_usd
    if saved is None or saved >= 0 or -saved < EQUAL * each.cost_usd:
        return ""
    cost, static = each.cost_usd, each.cost_usd + saved
    return f" It saves nothing: it costs ${cost:,.2f}, the fixed fleet that keeps the promise through the busiest hour ${static:,.2f}."


def _kept(share: float, promise: float) -> str:
    """As short as it may be without contradicting the verdict."""
    short = _percent(share)
    said = round(float(short.removesuffix(" %")), 9) >= round(100 * promise, 9)
    return short if said == (share >= promise) else format_share(share, promise).replace("%", " %")


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %" if share < 0.9999 or share == 1 else f"{100 * share:.5g} %"


def _confidence(runs: Sequence[RunResult], kept: Sequence[float], yardstick: Yardstick) -> dict[str, float]:
    hours = half_width([run.gpu_hours for run in runs])
    widths = {"gpu_hours": hours, "both_attainment": half_width(kept), "cost_usd": half_width([run.cost_usd for run in runs])}
    if yardstick.bound_gpu_hours:
        widths["vs_clairvoyant"] = hours / yardstick.bound_gpu_hours
    return widths


def _by_tier(runs: Sequence[RunResult], what: str) -> dict[str, float]:
    names = [name for name in runs[0].tiers if any(run.tiers[name].totals.arrived for run in runs)]
    return {name: _mean([getattr(run.tiers[name], what) for run in runs]) for name in names}


def _total(run: RunResult, what: str) -> int:
    return sum(getattr(tier.totals, what) for tier in run.tiers.values())


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
