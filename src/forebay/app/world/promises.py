"""Promises that no world may break, checked each second and at the end. Each has a name; a failure shows it."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from forebay.admission.outcomes import ANSWERS, Refusal
from forebay.app.world.clients import Answer, Told, Wish
from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import Decision, Observation, Policy
from forebay.domain.signal import Unknown
from forebay.domain.usage import COUNTS, OUTPUT, PROMPT, How
from forebay.gateway.meters import Outcome
from forebay.gateway.service import Gateway
from forebay.ports import Store

WAITED_CODES = frozenset(ANSWERS[why].code for why in (Refusal.EXPIRED, Refusal.WOULD_EXPIRE))


class Broken(msgspec.Struct, frozen=True):
    """One broken promise."""

    at_s: float
    promise: str
    detail: str


class WatchedPolicy:
    """The live policy, with an eye on it: Unknown never lowers, caps hold, exactly one term binds."""

    def __init__(self, policy: Policy, replicas_max: int, broken: list[Broken]) -> None:
        self._policy = policy
        self._max = replicas_max
        self._broken = broken

    def decide(self, observation: Observation) -> Decision:
        """Decide, then check the decision."""
        decision = self._policy.decide(observation)
        ready = [replica for replica in observation.replicas if replica.state is ReplicaState.READY]
        blind = bool(ready) and all(isinstance(replica.waiting, Unknown) for replica in ready)
        unknown = blind or isinstance(observation.lanes_waiting, Unknown)
        if unknown and decision.replicas < min(observation.desired, self._max):
            self._note(observation, "unknown never lowers", f"{observation.desired} → {decision.replicas}: {decision.reason}")
        if decision.replicas > self._max:
            self._note(observation, "caps hold", f"{decision.replicas} > {self._max}")
        if sum(term.binding for term in decision.terms) != 1:
            self._note(observation, "one term binds", str([term.name for term in decision.terms if term.binding]))
        if len(decision.memory) > 64 * 1024:
            self._note(observation, "memory is bounded", f"{len(decision.memory)} bytes")
        return decision

    def _note(self, observation: Observation, promise: str, detail: str) -> None:
        self._broken.append(Broken(observation.now_s, promise, detail))


def each_second(gateway: Gateway, now_s: float) -> list[Broken]:
    """Permits within the three budgets, none leaked, every call accounted for."""
    try:
        gateway.check()
    except AssertionError as error:
        return [Broken(now_s, "permits are conserved", str(error))]
    return []


def bill(gateways: Sequence[Gateway], store: Store, wishes: int, now_s: float) -> list[Broken]:
    """What the ledger has is what the gateways metered, each request once, whatever happened; a minute after the last trouble."""
    rows = [row.counts for row in store.usage()]
    ledger = [sum(counts) for counts in zip(*rows, strict=True)] or [0] * COUNTS
    meters = [meter for gateway in gateways for pool in gateway.desk.pools.values() for meter in pool.meters.values()]
    ended = sum(count for meter in meters for outcome, count in meter.outcomes.items() if outcome is not Outcome.MOVED)
    metered = (ended, sum(meter.prompt_tokens for meter in meters), sum(meter.output_tokens for meter in meters))
    billed = (sum(ledger[: len(How)]), ledger[PROMPT], ledger[OUTPUT])
    if billed[0] > wishes:
        return [Broken(now_s, "nothing is billed twice", f"{billed[0]} of {wishes} requests")]
    if billed == metered:
        return []
    return [Broken(now_s, "the bill is right", f"requests, prompt and output tokens: {billed} billed, {metered} metered")]


LATE_S = 3.0
"""A sweep, a hop and a held path later than it should a client may be told that it waited as long as its tier allows."""


def waited(answers: Iterable[Answer], wishes: Sequence[Wish], longest_s: Mapping[str, float]) -> list[Broken]:
    """Who was never sent to a replica was told so once its tier's longest wait (by key) was over, wherever it waited."""
    return [
        Broken(answer.ended_s, "none waits longer than its tier", f"request {answer.number}: {answer.ended_s - wish.at_s:.1f} s")
        for answer, wish in zip(answers, wishes, strict=True)
        if answer.detail in WAITED_CODES and answer.ended_s - wish.at_s > longest_s[wish.key] + LATE_S
    ]


COMPLETE_SHARE_MIN = 0.25


LOOK_S = 1.0
"""Between two looks at whether any engine serves."""


def hopeless(answers: Iterable[Answer], wishes: Sequence[Wish], served_s: Sequence[float]) -> int:
    """How many were told 503 and had no chance: no look, of which those that found a serving engine are ``served_s``, did so meanwhile."""
    count = 0
    for answer, wish in zip(answers, wishes, strict=True):
        first = bisect_left(served_s, wish.at_s - LOOK_S)
        count += answer.status == 503 and (first == len(served_s) or served_s[first] > answer.ended_s + LOOK_S)
    return count


def at_the_end(
    gateways: Sequence[Gateway], answers: Iterable[Answer], wishes: int, now_s: float, forgot: bool = False, no_chance: int = 0
) -> list[Broken]:
    """Every request was answered, honestly, and nothing of it is left inside; and work got done, whatever went wrong.

    ``forgot``: some gateway crashed, and its counts with it. ``no_chance``: so many are no work that could have been done.
    """
    answers = list(answers)
    broken = [
        Broken(answer.ended_s, "no answer lies", f"request {answer.number}: {answer.detail}")
        for answer in answers
        if answer.told is Told.LIED
    ]
    if len(answers) != wishes:
        broken.append(Broken(now_s, "every request is answered", f"{len(answers)} of {wishes}"))
    complete = sum(answer.told is Told.COMPLETE for answer in answers)
    if complete < COMPLETE_SHARE_MIN * (wishes - no_chance):
        of = f"{wishes} requests, {no_chance} of which no engine could serve," if no_chance else f"{wishes} requests"
        broken.append(Broken(now_s, "work gets done", f"only {complete} of {of} were completed"))
    counted = Counter[str]()
    for load in [load for gateway in gateways for load in gateway.snapshot().pools]:
        left = sum(lane.waiting for lane in load.lanes) + sum(replica.streams for replica in load.replicas)
        if left:
            broken.append(Broken(now_s, "nothing is left inside", f"{left} requests in pool {load.pool}"))
        for row in load.counts:
            counted["arrived"] += row.arrived
            counted["ended"] += row.completed + row.shed + row.failed + row.truncated
    # What was forwarded arrived at one gateway and ended at another: once each.
    returned = sum(
        meter.outcomes[Outcome.MOVED] for gateway in gateways for pool in gateway.desk.pools.values() for meter in pool.meters.values()
    )
    gone = sum(answer.told is Told.GONE for answer in answers)
    if not forgot and not counted["ended"] <= counted["arrived"] <= counted["ended"] + gone + returned:
        broken.append(Broken(now_s, "requests are conserved", f"{dict(counted)} and {gone} clients hung up"))
    return broken
