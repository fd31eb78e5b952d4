"""One row of what happened for each step of the timeline: differences of the fleet's totals, gauges as they were last looked at."""

from collections.abc import Sequence
from typing import NamedTuple

from forebay.domain.replica import PENDING_STATES, ReplicaState
from forebay.domain.scaling import Decision
from forebay.scaling.explain import binding
from forebay.simulation.accounting import judged
from forebay.simulation.fleet import SimulatedFleet
from forebay.simulation.lab_life import Lives
from forebay.simulation.sensing import Senses
from forebay.simulation.values import Minute

ROWS_MAX = 200_000
"""Rows kept: 138 days of minutes. Later ones are left out, and the run says so."""


class _Sums(NamedTuple):
    arrived: int
    arrived_tokens: int
    met: int
    missed: int
    shed: int


class Timeline:
    """Collects `Minute` rows; memory is theirs, bounded by ROWS_MAX."""

    def __init__(self, fleet: SimulatedFleet, tiers: int, promised: Sequence[int]) -> None:
        self._fleet = fleet
        self._tiers = tiers
        self._promised = tuple(promised)
        self._before = _Sums(0, 0, 0, 0, 0)
        self._worst_s = (-1.0, -1.0)
        self.rows: list[Minute] = []
        self.left_out = 0

    def minute(self, p95_s: tuple[float, float]) -> None:
        """A minute is over, with these percentiles of TTFT and TPOT: a row tells those of its worst minute."""
        # A NaN compares false with everything, so a minute without a request changes nothing.
        self._worst_s = (max(self._worst_s[0], p95_s[0]), max(self._worst_s[1], p95_s[1]))

    def row(self, now_s: float, lives: Lives, senses: Senses, desired: int, decision: Decision | None) -> None:
        """A step of the timeline is over; ``decision`` is in force."""
        if len(self.rows) >= ROWS_MAX:
            self.left_out += 1
            return
        totals = [self._fleet.totals(tier) for tier in range(self._tiers)]
        met, missed = judged([totals[tier] for tier in self._promised])
        tokens = sum(tier.arrived_prompt_tokens + tier.arrived_output_tokens for tier in totals)
        sums = _Sums(sum(tier.arrived for tier in totals), tokens, met, missed, sum(tier.shed for tier in totals))
        grown = _Sums(*(now - before for now, before in zip(sums, self._before, strict=True)))
        self._before = sums
        states = [replica.state for replica in lives.replicas.values()]
        seen = senses.latest
        engines = list(seen.readings.values()) if seen is not None else []
        gpu_usage = list(seen.gpu_usage.values()) if seen is not None else []
        worst_s, self._worst_s = self._worst_s, (-1.0, -1.0)
        self.rows.append(
            Minute(
                now_s,
                grown.arrived,
                grown.arrived_tokens,
                grown.met,
                grown.missed,
                grown.shed,
                sum(tier.waiting for tier in totals),
                sum(engine.waiting for engine in engines),
                sum(engine.running for engine in engines),
                _mean([engine.kv_usage for engine in engines]),
                _mean(gpu_usage),
                max(0.0, worst_s[0]),
                max(0.0, worst_s[1]),
                desired,
                states.count(ReplicaState.READY),
                sum(state in PENDING_STATES for state in states),
                states.count(ReplicaState.DRAINING),
                decision.reason if decision is not None else "",
                term.because if decision is not None and (term := binding(decision)) is not None else "",
            )
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
