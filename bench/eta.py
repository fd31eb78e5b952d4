"""How good the times are that those who wait are told: estimated ÷ real wait, over overloads of a simulated pool. Usage:

    .venv/bin/python bench/eta.py [--seeds 0,1,2] [--only NAME] [--json PATH]

The unmodified admission machine and estimator; requests hold a slot for a prefill and a token time that grows with what runs beside them.
Each second everybody who waits is asked where it stands, as `GET /forebay/v1/requests/{id}` does; what was said is held against when it
started. A refusal's Retry-After is held against when as much of its lane had gone as was before it, within the same bounds. Ratios are
of waits of a second and more. Lines: how often nothing was known, how many started and were refused, and the ratio's p10, p50, p90.
Two trees are compared by running it with ``PYTHONPATH`` set to each.
"""

import argparse
import heapq
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from forebay.admission.effects import Dispatch, Effect, Requeue
from forebay.admission.estimate import Estimator
from forebay.admission.machine import Admission
from forebay.admission.outcomes import Refusal, bounded
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Usage
from forebay.spec.types import Tier

TIERS = (
    Tier("interactive", rank=0, ttft_s=2, longest_wait_s=60),
    Tier("standard", rank=1, ttft_s=20, longest_wait_s=300, min_share=0.1),
    Tier("batch", rank=2, ttft_s=60, longest_wait_s=7200, preemptible=True, min_share=0.05),
)
MODEL = "m"
SLOTS = 16
TOKEN_S = 0.02
"""Of an engine that is alone with one request; three times as long on a full one."""
PREFILL_PER_S = 8000.0
CONTEXT_TOKENS = 16_384
REAL_S_MIN = 1.0
LOOK_EVERY_S = 1.0

Come = tuple[float, str, str, int, int]
"""When, tier, team, prompt tokens, output tokens."""
Change = tuple[float, int, float | None]
"""From when on so many replicas are listed, and in how long another is expected."""


class Case(NamedTuple):
    """One story."""

    comes: Callable[[random.Random], Iterator[Come]]
    changes: tuple[Change, ...] = ((0.0, 2, None),)
    paced: bool = True
    queued_max: int = 10_000
    looks_until_s: float = 10_000.0
    """Those who wait are asked no later than this: what was said of a load that goes on is held against one that does."""


def poisson(
    chance: random.Random, per_s: float, since_s: float, until_s: float, tier: str = "interactive", mean: int = 200, teams: int = 3
) -> Iterator[Come]:
    """Requests at ``per_s``, of answers around ``mean`` tokens."""
    at_s = since_s
    while (at_s := at_s + chance.expovariate(per_s)) < until_s:
        yield at_s, tier, f"team-{chance.randrange(teams)}", chance.randint(200, 1500), max(1, round(chance.expovariate(1 / mean)))


def per_s(replicas: int, mean: int = 200) -> float:
    """What so many full replicas finish a second."""
    return replicas * SLOTS / (mean * TOKEN_S * 3)


def _of(*parts: Iterator[Come]) -> Iterator[Come]:
    return iter(sorted(come for part in parts for come in part))


CASES: dict[str, Case] = {
    "overload": Case(lambda c: poisson(c, 1.3 * per_s(2), 0, 300), looks_until_s=180),
    "overload, no profile": Case(lambda c: poisson(c, 1.3 * per_s(2), 0, 300), paced=False, looks_until_s=180),
    "overload that ends": Case(lambda c: poisson(c, 1.3 * per_s(2), 0, 90)),
    "burst, fresh": Case(lambda c: poisson(c, 100.0, 0, 1.0)),
    "burst, fresh, no profile": Case(lambda c: poisson(c, 100.0, 0, 1.0), paced=False),
    "burst, fresh, short answers": Case(lambda c: poisson(c, 200.0, 0, 1.0, mean=16)),
    "burst, fresh, short, no profile": Case(lambda c: poisson(c, 200.0, 0, 1.0, mean=16), paced=False),
    "cold start of 40 s": Case(lambda c: poisson(c, 0.7 * per_s(2), 0, 120), ((0.0, 0, 40.0), (40.0, 2, None)), paced=False),
    "cold start, short answers": Case(lambda c: poisson(c, 3.0, 0, 90, mean=16), ((0.0, 0, 40.0), (40.0, 1, None)), paced=False),
    "all replicas gone for 30 s": Case(
        lambda c: poisson(c, 0.8 * per_s(2), 0, 150), ((0.0, 2, None), (60.0, 0, 30.0), (90.0, 2, None)), paced=False
    ),
    "one replica, then four": Case(lambda c: poisson(c, 1.3 * per_s(2), 0, 120), ((0.0, 1, None), (60.0, 4, None))),
    "one replica, then two, as foreseen": Case(
        lambda c: poisson(c, 2 * per_s(1), 0, 300, "standard"), ((0.0, 1, 60.0), (60.0, 2, None)), looks_until_s=120
    ),
    "four replicas, then one": Case(lambda c: poisson(c, 1.1 * per_s(2), 0, 240), ((0.0, 4, None), (60.0, 1, None)), looks_until_s=120),
    "a burst, calm, another on four times as many": Case(
        lambda c: _of(poisson(c, 60.0, 0, 1.0), poisson(c, 1.0, 60, 150), poisson(c, 200.0, 150, 151.0)), ((0.0, 1, None), (60.0, 4, None))
    ),
    "long answers, calm, short ones": Case(
        lambda c: _of(poisson(c, 60.0, 0, 1.0, mean=600), poisson(c, 200.0, 150, 151.0, mean=20)), paced=False
    ),
    "standard behind interactive": Case(
        lambda c: _of(poisson(c, 0.6 * per_s(2), 0, 500), poisson(c, 0.8 * per_s(2), 0, 500, "standard")), looks_until_s=200
    ),
    "batch burst behind interactive": Case(
        lambda c: _of(poisson(c, 0.5 * per_s(2), 0, 800), poisson(c, 300.0, 10, 11, "batch")), queued_max=1000
    ),
    "full queue": Case(lambda c: poisson(c, 2.0 * per_s(2), 0, 240, "standard"), queued_max=60, looks_until_s=120),
}  # fmt: skip


class Story:
    """One case played: what was said, and what came of it."""

    def __init__(self, case: Case, seed: int) -> None:
        self.pool = Admission("p", TIERS, case.queued_max)
        self.estimator = Estimator()
        self.case, self.now_s = case, 0.0
        self.capacity = Capacity(10**7, SLOTS, 10**6, PREFILL_PER_S, SLOTS / (3 * TOKEN_S), CONTEXT_TOKENS, paced=case.paced)
        self.of: dict[int, Come] = {}
        self.running: dict[int, str] = {}
        self.runs: dict[int, int] = {}
        """Which start of each that runs is the present one."""
        self.said: dict[int, list[tuple[float, float | None]]] = {}
        self.ratios: dict[str, list[float]] = {}
        self.unknown: dict[str, int] = {}
        self.asked: dict[str, int] = {}
        self.gone: dict[str, float] = {tier.name: 0.0 for tier in TIERS}
        self.told: list[tuple[str, float, float, float]] = []
        """Of refusals: lane, when, what of the lane must have gone until then, and the wait that was told."""
        self.told_ratios: list[float] = []
        self.started_count = self.refused_count = 0
        self.agenda: list[tuple[float, int, str, object]] = []
        self.number = self.arriving = 0
        for change in case.changes:
            self.later(change[0], "roster", change)
        for come in case.comes(random.Random(seed)):
            self.later(come[0], "come", come)
        end_s = max(at_s for at_s, *_ in self.agenda)
        for number in range(1, int(end_s / LOOK_EVERY_S) + 200):
            self.later(number * LOOK_EVERY_S + 0.0001, "look", None)
        self.play()

    def later(self, at_s: float, kind: str, what: object) -> None:
        self.number += 1
        heapq.heappush(self.agenda, (at_s, self.number, kind, what))

    def play(self) -> None:
        pool = self.pool
        while self.agenda:
            at_s, _, kind, what = heapq.heappop(self.agenda)
            while (due_s := pool.next_deadline_s()) is not None and due_s <= at_s:
                self.now_s = max(self.now_s, due_s)
                self.take(pool.advance(self.now_s))
            self.now_s = at_s
            if kind == "roster":
                assert isinstance(what, tuple)
                listed = tuple(RosterReplica(f"r{n}", f"http://r{n}", self.capacity) for n in range(what[1]))
                self.take(pool.set_roster(RosterPool("p", listed, next_ready_in_s=what[2]), at_s))
            elif kind == "come":
                self.come(what)  # type: ignore[arg-type]
            elif kind == "first":
                ticket, run = what  # type: ignore[misc]
                if self.runs.get(ticket) == run:
                    self.take(pool.first_token(ticket, at_s))
            elif kind == "end":
                self.end(*what)  # type: ignore[misc]
            else:
                self.look()

    def come(self, come: Come) -> None:
        _, tier, team, prompt, _ = come
        ticket = len(self.of) + 1
        self.of[ticket] = come
        shape = self.estimator.shape(team, MODEL, 4 * prompt, None, 1, CONTEXT_TOKENS)
        self.arriving = ticket
        self.take(self.pool.arrive(ticket, tier, team, shape, self.now_s))
        self.arriving = 0

    def end(self, ticket: int, run: int) -> None:
        if self.runs.get(ticket) != run:
            return  # it gave its place up, and was or will be started again
        del self.runs[ticket]
        _, _, team, prompt, output = self.of[ticket]
        del self.running[ticket]
        usage = Usage(prompt, output)
        self.estimator.learn(team, MODEL, 4 * prompt, usage)
        self.take(self.pool.finish(ticket, usage, self.now_s))

    def look(self) -> None:
        for lane in self.pool._waiting.lanes if self.now_s <= self.case.looks_until_s else ():
            for entry in lane.order.live():
                at = self.pool.position(entry.id, self.now_s)
                assert at is not None
                self.said.setdefault(entry.id, []).append((self.now_s, at.starts_in_s))
        self.take(self.pool.foresee(self.now_s))
        for told in list(self.told):
            lane, at_s, gone, wait_s = told
            if self.gone[lane] >= gone:
                self.told.remove(told)
                if self.now_s - at_s >= REAL_S_MIN:
                    self.told_ratios.append(wait_s / bounded(self.now_s - at_s))

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            come = self.of[effect.ticket]
            tier = come[1]
            if isinstance(effect, Dispatch):
                self.gone[tier] += effect.ticket != self.arriving
                self.started_count += 1
                self.started(effect, come)
            elif isinstance(effect, Requeue):
                del self.running[effect.ticket], self.runs[effect.ticket]
                self.gone[tier] -= 1
                self.started_count -= 1
            else:
                self.refused_count += 1
                self.gone[tier] += effect.ticket != self.arriving
                if effect.why in {Refusal.WOULD_EXPIRE, Refusal.EXPIRED, Refusal.QUEUE_FULL} and effect.retry_after_s is not None:
                    ahead = self.pool._lane_of[tier].waiting
                    self.told.append((tier, self.now_s, self.gone[tier] + ahead, effect.retry_after_s))

    def started(self, effect: Dispatch, come: Come) -> None:
        ticket, tier = effect.ticket, come[1]
        for at_s, starts_in_s in self.said.pop(ticket, ()):
            real_s = self.now_s - at_s
            if real_s < REAL_S_MIN:
                continue
            self.asked[tier] = self.asked.get(tier, 0) + 1
            if starts_in_s is None:
                self.unknown[tier] = self.unknown.get(tier, 0) + 1
            else:
                self.ratios.setdefault(tier, []).append(starts_in_s / real_s)
        beside = sum(replica == effect.replica_id for replica in self.running.values())
        self.running[ticket] = effect.replica_id
        token_s = TOKEN_S * (1 + 2 * beside / SLOTS)
        first_s = self.now_s + come[3] / PREFILL_PER_S
        run = self.runs[ticket] = self.number
        self.later(first_s, "first", (ticket, run))
        self.later(first_s + come[4] * token_s, "end", (ticket, run))


def quantiles(ratios: list[float]) -> dict[str, float]:
    """p10, p50 and p90."""
    ordered = sorted(ratios)
    return {f"p{each}": round(ordered[min(len(ordered) - 1, len(ordered) * each // 100)], 2) for each in (10, 50, 90)} if ordered else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    everything: list[float] = []
    told_all: list[float] = []
    for name, case in CASES.items():
        if options.only and options.only not in name:
            continue
        stories = [Story(case, int(seed)) for seed in options.seeds.split(",")]
        for tier in (tier.name for tier in TIERS):
            ratios = [ratio for story in stories for ratio in story.ratios.get(tier, ())]
            asked = sum(story.asked.get(tier, 0) for story in stories)
            if asked:
                everything += ratios
                unknown = sum(story.unknown.get(tier, 0) for story in stories)
                row = quantiles(ratios)
                found[f"{name} · {tier}"] = {"asked": asked, "unknown": unknown} | row
                print(f"{name:45} {tier:12} asked {asked:6} unknown {unknown:5}  " + "  ".join(f"{k} {v:7.2f}" for k, v in row.items()))
        counts = {"started": sum(story.started_count for story in stories), "refused": sum(story.refused_count for story in stories)}
        found[name] = counts
        print(f"{name:45} " + "  ".join(f"{kind} {count:6}" for kind, count in counts.items()))
        told = [ratio for story in stories for ratio in story.told_ratios]
        told_all += told
        if told:
            row = quantiles(told)
            found[f"{name} · Retry-After"] = {"told": len(told)} | row
            print(f"{name:45} {'Retry-After':12} told  {len(told):6} {'':14}  " + "  ".join(f"{k} {v:7.2f}" for k, v in row.items()))
    for name, ratios in (("all that waited", everything), ("all Retry-After", told_all)):
        print(f"{name:45} {'':12}       {len(ratios):6} {'':14}  " + "  ".join(f"{k} {v:7.2f}" for k, v in quantiles(ratios).items()))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
