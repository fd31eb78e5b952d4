"""B15: SageServe LT-UA: each hour a plan from a forecast, spent step by step only while memory says so.

Each hour: replicas for the largest forecast demand between 20 and 60 minutes ahead, plus 10 %; with one model, region and GPU
its integer programme has this closed form. The difference is then spent one by one: up while memory is more than half
full, down while it is less than a quarter full. Once it is spent, demand five times the forecast adds one more. One action
is under way at a time (65 s, its time to reclaim an instance).

In place of its ARIMA: yesterday's shape × the level of the last hour against the same hour yesterday, and the last hour's
highest level where there is less than a day of history. What it does without metrics is not defined: it holds, and plans
nothing. Source: kjain1810/SageServe fcfde736, arbiter.py, long_term_allocation.py, global_arbiter.py.
"""

import math

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.domain.scaling import History, Term, TermKind
from forebay.scaling.baselines import reading, windows
from forebay.scaling.baselines.frame import Answer, Seen
from forebay.scaling.baselines.reading import Gap
from forebay.scaling.baselines.windows import Samples
from forebay.scaling.capacity import whole_replicas

TICK_S = 10.0
DAY_S = 86_400.0
SAMPLE_S = 60.0
"""Demand is remembered once a minute."""


class SageSettings(msgspec.Struct, frozen=True):
    """``tokens_per_s``: prompt tokens per second that one replica takes."""

    tokens_per_s: float
    plan_s: float = 3600.0
    from_s: float = 1200.0
    until_s: float = 3600.0
    margin: float = 0.10
    up_usage: float = 0.5
    down_usage: float = 0.25
    ratio: float = 5.0
    action_s: float = 65.0


class SageMemory(msgspec.Struct, frozen=True, array_like=True):
    """``left``: replicas of the hour's plan still to be added (negative: removed)."""

    demand: Samples = ()
    planned_s: float | None = None
    forecast: float = 0.0
    left: int = 0
    busy_until_s: float | None = None


class Sage:
    """LT-UA: long-term plan, utilisation- and ARIMA-aware."""

    tick_s = TICK_S

    def __init__(self, settings: SageSettings) -> None:
        self.settings = settings

    def start(self) -> SageMemory:
        return SageMemory()

    def step(self, seen: Seen, memory: SageMemory) -> Answer[SageMemory]:
        now_s, current = seen.now_s, seen.current
        rate = reading.read(seen.observation.arrival_prompt_tokens_per_s)
        usage = _usage(seen)
        if isinstance(rate, Gap) or usage is None:
            return Answer((reading.hold(seen, "no_metric", "demand or memory is not known"),), memory)
        demand = memory.demand
        if not demand or now_s - demand[-1][0] >= SAMPLE_S:
            demand = windows.pushed(demand, now_s, rate, self.settings.plan_s)
        memory = msgspec.structs.replace(memory, demand=demand)
        if memory.planned_s is None or now_s - memory.planned_s >= self.settings.plan_s:
            memory = self._plan(seen, memory)
        numbers = {"left": float(memory.left), "usage": usage, "forecast_tokens_per_s": memory.forecast, "tokens_per_s": rate}
        if memory.busy_until_s is not None and now_s < memory.busy_until_s:
            return Answer((reading.hold(seen, "scaling_in_progress", "an action is under way"),), memory)
        step, because = self._step(memory, usage, rate)
        # What can't be had, or must stay, is not spent from the plan.
        if not step or not seen.limits.min_replicas <= current + step <= seen.limits.max_replicas:
            return Answer((Term("no_change", TermKind.TRIGGER, current, "nothing of the plan is due", numbers),), memory)
        busy_until_s = now_s + self.settings.action_s if step > 0 else memory.busy_until_s
        memory = msgspec.structs.replace(memory, left=memory.left - step, busy_until_s=busy_until_s)
        kind = TermKind.TRIGGER if step > 0 else TermKind.SCALE_IN
        return Answer((Term("plan" if because != "surge" else "surge", kind, max(1, current + step), because, numbers),), memory)

    def _step(self, memory: SageMemory, usage: float, rate: float) -> tuple[int, str]:
        settings = self.settings
        if memory.left == 0:
            return (1, "surge") if rate > settings.ratio * memory.forecast else (0, "")
        if memory.left > 0 and usage > settings.up_usage:
            return 1, "the plan has more, and memory fills"
        if memory.left < 0 and usage < settings.down_usage:
            return -1, "the plan has fewer, and memory is empty"
        return 0, ""

    def _plan(self, seen: Seen, memory: SageMemory) -> SageMemory:
        """The hour's plan: replicas for the highest demand ahead, less those that are there."""
        ahead = self._ahead(seen, memory.demand)
        needed = whole_replicas(ahead * (1 + self.settings.margin) / self.settings.tokens_per_s)
        return msgspec.structs.replace(memory, planned_s=seen.now_s, forecast=ahead, left=max(needed, 1) - seen.current)

    def _ahead(self, seen: Seen, demand: Samples) -> float:
        """Prompt tokens per second: the highest level forecast for the window ahead."""
        recent = windows.within(demand, seen.now_s, self.settings.plan_s)
        level = windows.mean(recent)
        rates = _rates(seen.observation.history)
        if rates is None or seen.observation.history is None:
            return max(recent, default=0.0)
        history = seen.observation.history
        bucket_s = history.bucket_s

        def level_at(from_s: float, until_s: float) -> npt.NDArray[np.float64]:
            first = math.floor((seen.observation.wall_s + from_s - history.start_wall_s) / bucket_s)
            last = math.ceil((seen.observation.wall_s + until_s - history.start_wall_s) / bucket_s)
            part = rates[first:last] if 0 <= first < last <= len(rates) else rates[:0]
            return part[np.isfinite(part)]

        hour = level_at(-DAY_S - self.settings.plan_s, -DAY_S)
        ahead = level_at(-DAY_S + self.settings.from_s, -DAY_S + self.settings.until_s)
        if not len(hour) or not len(ahead) or not hour.mean() > 0:
            return max(recent, default=0.0)
        return float(ahead.max() * level / hour.mean())


def _usage(seen: Seen) -> float | None:
    """Memory in use over all instances; None where one of them does not tell, or there is none."""
    told = [reading.known(replica.kv_usage) for replica in seen.ready]
    known = [value for value in told if value is not None]
    return windows.mean(known) if known and len(known) == len(told) else None


def _rates(history: History | None) -> npt.NDArray[np.float64] | None:
    """Prompt tokens per second of each past bucket; None where there is no history that can be used."""
    if history is None or not math.isfinite(history.start_wall_s) or not 0 < history.bucket_s < DAY_S:
        return None
    whole = len(history.prompt_tokens) // 4 * 4
    return np.frombuffer(history.prompt_tokens[:whole], dtype="<f4").astype(np.float64) / history.bucket_s
