"""Admission to somebody else's engines: no queue and no permits of ours, only a number of streams, a budget, and patience.

It speaks as `machine.Admission` does, so that a request which moves there is like any other. What can't be sent at once
is refused at once: whoever spills has waited already. After failures the place is left alone for a growing while.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from forebay.admission.budget import Replica
from forebay.admission.candidates import UNWEIGHED, Weighed
from forebay.admission.effects import Dispatch, Effect, Refuse
from forebay.admission.looks import Position, TeamLoad
from forebay.admission.outcomes import Refusal
from forebay.admission.overflow import Budget
from forebay.admission.prefixes import Prefix
from forebay.admission.replicas import Cached
from forebay.admission.waiting import Waiting
from forebay.domain.roster import LaneLoad, ReplicaLoad, RosterPool
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Spill

HOLD_OFF_S = 5.0
HOLD_OFF_MAX_S = 300.0
RETRY_AFTER_S = 10.0
MILLION = 1e6
OUTPUT_UNBOUNDED = 2**30
"""A bound on the output as large as this is none: neither the client nor the model's context gives one."""


def _nothing() -> None:
    """Nobody keeps what is spent."""


class SpillAdmission:
    """One place that a pool spills to. Times are world seconds and never go backwards."""

    waiting = 0
    """Nothing ever waits…"""
    queue = Waiting((), {})
    """…in this…"""
    wanting: Sequence[Replica] = ()
    """…and nobody is wanted to be ready for it."""

    def __init__(self, spill: Spill) -> None:
        self.spill = spill
        self.priced = spill.prompt_usd_per_mtok + spill.output_usd_per_mtok > 0
        self.budget = Budget(spill.usd_per_hour if self.priced else math.inf)
        self.cached = Cached()
        """Nobody foresees what other people's engines have cached."""
        self.sent_total = self.failed_total = self.refused_total = 0
        self._reserved: dict[int, tuple[float, Shape]] = {}
        self._paid: set[int] = set()
        self._failures = 0
        self._held_until_s = -math.inf
        self.changed: Callable[[], None] = _nothing
        """Called when something was reserved or spent, so that it can be kept."""

    def room(self, shape: Shape, now_s: float) -> bool:
        """Whether a request of this shape would be sent now."""
        return (
            len(self._reserved) < self.spill.streams_max
            and now_s >= self._held_until_s
            and self.budget.used_usd(now_s) + self.usd(shape.prompt_tokens, _most(shape)) <= self.budget.usd_per_hour
        )

    def usd(self, prompt_tokens: int, output_tokens: int) -> float:
        """What so many tokens cost there."""
        return (prompt_tokens * self.spill.prompt_usd_per_mtok + output_tokens * self.spill.output_usd_per_mtok) / MILLION

    def arrive(
        self,
        ticket: int,
        tier: str,
        team: str,
        shape: Shape,
        now_s: float,
        longest_wait_s: float | None = None,
        ttft_s: float | None = None,
        patience_s: float = math.inf,
        whole: bool = False,
        prefix: Prefix | None = None,
        excluded: tuple[str, ...] = (),
        only: str = "",
    ) -> list[Effect]:
        """Sent, or refused. Raises ValueError for a ticket in use."""
        del tier, team, longest_wait_s, ttft_s, patience_s, whole, prefix, excluded, only
        if ticket in self._reserved:
            raise ValueError(f"ticket {ticket} has not ended yet; tickets are given once")
        if not self.room(shape, now_s):
            self.refused_total += 1
            return [Refuse(ticket, Refusal.SHED, RETRY_AFTER_S)]
        reserved_usd = self.usd(shape.prompt_tokens, _most(shape))
        self.budget.reserve(reserved_usd, now_s)
        self._reserved[ticket] = (reserved_usd, shape)
        self.sent_total += 1
        self.changed()
        return [Dispatch(ticket, self.spill.name, self.spill.url)]

    def first_token(self, ticket: int, now_s: float) -> list[Effect]:
        """It answers: whatever failed before is forgotten."""
        del ticket, now_s
        self._failures = 0
        return []

    def emitted(self, ticket: int, tokens: int) -> None:
        """Counts for nothing here."""

    def finish(self, ticket: int, usage: Usage | None, now_s: float) -> list[Effect]:
        """It has ended. Without ``usage`` it is taken to have cost what was reserved; with it, whatever failed before is forgotten."""
        self._settle(ticket, usage, now_s)
        if usage is not None and usage.exact:
            self._failures = 0
        return []

    def abandon(self, ticket: int, now_s: float) -> list[Effect]:
        """The client went away; the place may charge for all of it."""
        if ticket in self._reserved:
            self._settle(ticket, None, now_s)
        return []

    def answered(self, ticket: int) -> None:
        """Changes nothing: nobody takes its place."""

    def runs(self, ticket: int) -> bool:
        """Whether it is there."""
        return ticket in self._reserved

    def set_roster(self, roster: RosterPool, now_s: float) -> list[Effect]:
        """Nobody has a roster of other people's engines."""
        del roster, now_s
        return []

    def load(self, now_s: float) -> tuple[tuple[LaneLoad, ...], tuple[ReplicaLoad, ...]]:
        """What is there, as of one replica; the controller is not told."""
        del now_s
        return (), (ReplicaLoad(self.spill.name, self.streams, 0, 0, 0),)

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Nobody waits, so nothing is weighed."""

    def weighed(self, ticket: int) -> Weighed:
        """There is one place, and nothing of it is known."""
        del ticket
        return UNWEIGHED

    def teams(self) -> list[TeamLoad]:
        """None: nobody waits, so nobody is given anything before others."""
        return []

    def position(self, ticket: int, now_s: float) -> Position | None:
        """None: nothing waits."""
        del ticket, now_s
        return None

    def retry(self, ticket: int, now_s: float, more_prompt_tokens: int = 0, *, reached: bool = True) -> list[Effect]:
        """It failed before it answered: there is no second try here."""
        del more_prompt_tokens, reached
        self._settle(ticket, None if ticket in self._paid else _FREE, now_s)
        self.refused_total += 1
        return [Refuse(ticket, Refusal.NO_REPLICAS, RETRY_AFTER_S)]

    def may_cost(self, ticket: int) -> None:
        """It was sent, and nobody knows what became of it: it counts as paid for, even if it is given up."""
        self._paid.add(ticket)

    def failed(self, now_s: float) -> None:
        """It failed a request: before its answer, within it, or by none in time."""
        self.failed_total += 1
        if now_s >= self._held_until_s:  # what was sent before the last failure was known tells nothing new
            self._failures += 1
        self._held_until_s = max(self._held_until_s, now_s + min(HOLD_OFF_MAX_S, HOLD_OFF_S * 2.0 ** (self._failures - 1)))

    def advance(self, now_s: float) -> list[Effect]:
        """Nothing waits, so nothing is due."""
        del now_s
        return []

    def next_deadline_s(self) -> float | None:
        """None: nothing waits."""
        return None

    def quiet_until_s(self) -> float:
        """For ever: nothing waits."""
        return math.inf

    @property
    def streams(self) -> int:
        """Requests there now."""
        return len(self._reserved)

    def check(self) -> None:
        """Raises AssertionError if more is there than may be."""
        assert len(self._reserved) <= self.spill.streams_max, "more streams than allowed"

    def _settle(self, ticket: int, usage: Usage | None, now_s: float) -> None:
        reserved_usd, _ = self._reserved.pop(ticket)
        self._paid.discard(ticket)
        cost_usd = reserved_usd if usage is None else self.usd(usage.prompt_tokens, usage.output_tokens)
        self.budget.settle(reserved_usd, cost_usd, now_s)
        self.changed()


_FREE = Usage(0, 0)


def _most(shape: Shape) -> int:
    """Output tokens that are paid for at most: the client's bound, where it is one that can be reserved for."""
    return shape.output_tokens_max if 0 < shape.output_tokens_max < OUTPUT_UNBOUNDED else shape.output_tokens
