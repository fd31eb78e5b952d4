"""``--faults`` in words: what goes wrong in a simulated world, when, and for how long.

Several are parted by commas. Times are counted from the start of the run; ``+`` says for how long.

| word | meaning |
|---|---|
| ``metrics=KIND@2h+20m`` | metrics are wrong for 20 minutes: ``error``, ``empty``, ``frozen``, ``nan`` or ``renamed`` |
| ``metrics=KIND/25%@2h+20m`` | the same, for a quarter of the sources |
| ``metrics=random`` | one such fault in every six hours, its kind, time and length (5 to 20 minutes) drawn from the seed |
| ``crash=2@3h`` | two replicas crash; a share as ``crash=25%@3h`` |
| ``crashes=0.5`` | each replica crashes every other day on average |
| ``reclaim=25%@5h`` | spot nodes are taken back, with two minutes of notice; ``@5h+30s`` for another notice |
| ``shortage=12@4h+1h`` | for an hour no more than 12 nodes can be had |
"""

import random
import re
from collections.abc import Callable

import msgspec

from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration, parse_duration_s
from forebay.simulation.faults import KINDS
from forebay.simulation.values import MetricFault, Outage, Scenario, Shortage
from forebay.spec.problems import did_you_mean

FAULTS_MAX = 1000
NOTICE_S = 120.0
RANDOM_EVERY_S = 6 * 3600.0
RANDOM_LENGTH_S = (300.0, 1200.0)
WORDS = ("metrics", "crash", "crashes", "reclaim", "shortage")
_PART = re.compile(r"(?P<what>[^@+]*)(?:@(?P<at>[^@+]+))?(?:\+(?P<length>[^@+]+))?")


class FaultPlan(msgspec.Struct, frozen=True):
    """What was asked for. ``random_metrics`` are drawn once the length of the run and its seed are known."""

    metric_faults: tuple[MetricFault, ...] = ()
    outages: tuple[Outage, ...] = ()
    shortages: tuple[Shortage, ...] = ()
    crashes_per_replica_day: float = 0.0
    random_metrics: bool = False

    def put_into(self, scenario: Scenario) -> Scenario:
        """``scenario`` with these faults. Raises BadInput for one that would begin after its end: it would never be seen."""
        begun_s = [fault.from_s for fault in self.metric_faults] + [shortage.from_s for shortage in self.shortages]
        last_s = max([0.0, *begun_s, *(outage.at_s for outage in self.outages)])
        if last_s >= scenario.duration_s:
            end = format_duration(scenario.duration_s)
            raise BadInput(f"--faults: found one at {format_duration(last_s)}, allowed: before the end of the run, {end}")
        drawn = _drawn(scenario.duration_s, scenario.seed) if self.random_metrics else ()
        return msgspec.structs.replace(
            scenario,
            metric_faults=(*scenario.metric_faults, *self.metric_faults, *drawn),
            outages=(*scenario.outages, *self.outages),
            shortages=(*scenario.shortages, *self.shortages),
            crashes_per_replica_day=scenario.crashes_per_replica_day + self.crashes_per_replica_day,
        )


def parse_faults(text: str) -> FaultPlan:
    """The faults that ``text`` names. Raises BadInput saying which part is not understood, and what is."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > FAULTS_MAX:
        raise BadInput(f"--faults: found {len(parts)} of them, allowed: at most {FAULTS_MAX}")
    plan = FaultPlan()
    for part in parts:
        word, _, rest = part.partition("=")
        reader = _READERS.get(word.strip())
        if reader is None:
            hint = did_you_mean(word.strip(), WORDS)
            raise BadInput(
                f"--faults: found {part!r}, allowed: {', '.join(f'{name}=…' for name in WORDS)}{f'; {hint}' if hint else ''}; "
                "such as metrics=error@2h+20m,crash=2@3h"
            )
        plan = reader(plan, part, rest.strip())
    return plan


def _metrics(plan: FaultPlan, part: str, rest: str) -> FaultPlan:
    if rest == "random":
        return msgspec.structs.replace(plan, random_metrics=True)
    what, at_s, length_s = _split(part, rest)
    kind, _, share = what.partition("/")
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS)
        raise BadInput(f"--faults: {part!r}: found kind {kind!r}, allowed: {', '.join((*KINDS, 'random'))}{f'; {hint}' if hint else ''}")
    if at_s is None or not length_s:
        raise _wrong(part, "metrics=error@2h+20m, a kind, a time and a length above 0")
    fault = MetricFault(kind, at_s, at_s + length_s, _share(part, share) if share else 1.0)
    return msgspec.structs.replace(plan, metric_faults=(*plan.metric_faults, fault))


def _crash(plan: FaultPlan, part: str, rest: str) -> FaultPlan:
    what, at_s, length_s = _split(part, rest)
    if at_s is None or length_s is not None:
        raise _wrong(part, "crash=2@3h or crash=25%@3h")
    return msgspec.structs.replace(plan, outages=(*plan.outages, Outage("crash", at_s, _replicas(part, what))))


def _crashes(plan: FaultPlan, part: str, rest: str) -> FaultPlan:
    return msgspec.structs.replace(plan, crashes_per_replica_day=_number(part, rest, "a number above 0: crashes per replica and day"))


def _reclaim(plan: FaultPlan, part: str, rest: str) -> FaultPlan:
    what, at_s, length_s = _split(part, rest)
    if at_s is None:
        raise _wrong(part, "reclaim=25%@5h, or reclaim=3@5h+30s with a notice of its own")
    notice_s = NOTICE_S if length_s is None else length_s
    return msgspec.structs.replace(plan, outages=(*plan.outages, Outage("reclaim", at_s, _replicas(part, what), notice_s)))


def _shortage(plan: FaultPlan, part: str, rest: str) -> FaultPlan:
    what, at_s, length_s = _split(part, rest)
    if at_s is None or not length_s or not what.isdigit():
        raise _wrong(part, "shortage=12@4h+1h, a whole number of nodes, a time and a length above 0")
    return msgspec.structs.replace(plan, shortages=(*plan.shortages, Shortage(at_s, at_s + length_s, int(what))))


_READERS: dict[str, Callable[[FaultPlan, str, str], FaultPlan]] = {
    "metrics": _metrics,
    "crash": _crash,
    "crashes": _crashes,
    "reclaim": _reclaim,
    "shortage": _shortage,
}


def _split(part: str, rest: str) -> tuple[str, float | None, float | None]:
    """(what, seconds after the start, length in seconds), the last two None where they are not said."""
    match = _PART.fullmatch(rest)
    if match is None:
        raise _wrong(part, "WORD=WHAT@TIME+LENGTH, such as metrics=error@2h+20m")
    return match["what"].strip(), _time_s(part, match["at"]), _time_s(part, match["length"])


def _time_s(part: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise BadInput(f"--faults: {part!r}: {error}") from None


def _replicas(part: str, text: str) -> float:
    """A whole number of replicas, or a share below 1 for ``25%``."""
    if text.endswith("%"):
        share = _share(part, text)
        # A share of 1 would read as one replica.
        return min(share, 1 - 1e-9)
    if not text.isdigit() or int(text) < 1:
        raise _wrong(part, "a whole number of replicas, or a share such as 25%")
    return float(int(text))


def _share(part: str, text: str) -> float:
    percent = _number(part, text.removesuffix("%") if text.endswith("%") else "", "a share such as 25%")
    if percent > 100:
        raise _wrong(part, "a share of at most 100%")
    return percent / 100


def _number(part: str, text: str, allowed: str) -> float:
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) or float(text) <= 0:
        raise _wrong(part, allowed)
    return float(text)


def _wrong(part: str, allowed: str) -> BadInput:
    return BadInput(f"--faults: found {part!r}, allowed: {allowed}")


def _drawn(duration_s: float, seed: int) -> tuple[MetricFault, ...]:
    """One fault in each six hours, wholly inside the run."""
    chance = random.Random(f"{seed}/metrics")
    faults: list[MetricFault] = []
    begin_s = 0.0
    while begin_s < duration_s and len(faults) < FAULTS_MAX:
        window_s = min(RANDOM_EVERY_S, duration_s - begin_s)
        length_s = min(chance.uniform(*RANDOM_LENGTH_S), window_s)
        from_s = begin_s + chance.uniform(0.0, window_s - length_s)
        if length_s > 0:
            faults.append(MetricFault(chance.choice(KINDS), from_s, from_s + length_s))
        begin_s += RANDOM_EVERY_S
    return tuple(faults)
