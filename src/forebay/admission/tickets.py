"""One request inside admission, from its arrival to its end: the only mutable record about it."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from forebay.domain.shape import Shape

if TYPE_CHECKING:
    from forebay.admission.budget import Replica
    from forebay.admission.fairness import Account
    from forebay.admission.lanes import Lane
    from forebay.admission.prefixes import Prefix

RETRIES_MAX: Final = 8
"""Replicas remembered as tried; after so many the request is given up."""
REVIEW_TOKENS_MIN: Final = 64
"""Emitted before the expected output is looked at again, and between two such looks (or half of what was emitted)."""


class Ticket:
    """Queued (``queued_seq`` > 0), dispatched (``replica`` is set) or ended (neither)."""

    __slots__ = (
        "account",
        "answered",
        "arrived_s",
        "beside",
        "charged_tokens",
        "cost",
        "deadline_s",
        "dispatched_s",
        "emitted",
        "excluded",
        "expected",
        "id",
        "lane",
        "late_at_s",
        "later",
        "longest",
        "met",
        "only",
        "output",
        "output_max",
        "outstanding",
        "patience_s",
        "preempted",
        "prefilled_s",
        "prefix",
        "prompt",
        "queued_s",
        "queued_seq",
        "replica",
        "resumed",
        "returned",
        "review_at_tokens",
        "sequences",
        "shared",
        "skips",
        "sooner",
        "spared",
        "total",
        "tried_seq",
        "uncached",
        "whole",
    )

    late_at_s: float
    """From then on its TTFT can't be met; of one that has waited."""
    account: "Account"
    """Its team, in this lane."""
    deadline_s: float
    """It is refused if it has not been started by then."""
    only: str
    """The one replica that can serve it; empty: any may."""
    prefilled_s: float
    """When its prompt is foreseen to be prefilled; of one that has been started."""
    prefix: "Prefix | None"
    """What of its prompt may be cached; None: nobody looks."""
    queued_s: float
    """Since when it waits; of one that has waited."""
    whole: bool
    """Its first token is not told."""

    def __init__(
        self,
        ticket: int,
        lane: "Lane",
        account: "Account",
        shape: Shape,
        now_s: float,
        deadline_s: float = math.inf,
        patience_s: float = math.inf,
        whole: bool = False,
        prefix: "Prefix | None" = None,
        excluded: tuple[str, ...] = (),
        only: str = "",
    ) -> None:
        self.id = ticket
        self.lane = lane
        self.account = account
        prompt = shape.prompt_tokens
        output = self.output = self.expected = shape.output_tokens
        """Output tokens estimated at arrival; ``expected`` is re-estimated while it runs, and never less than ``emitted``."""
        self.output_max = shape.output_tokens_max
        cached = shape.cached_tokens
        self.uncached = prompt - cached if cached < prompt else 0
        self.cost = self.uncached + 2 * output
        """Virtual tokens its team will be charged, as estimated (`fairness.OUTPUT_COST`)."""
        sequences = self.sequences = shape.sequences
        prompts = shape.prompts
        self.longest = (prompt if prompts == 1 else -(-prompt // prompts)) + -(-output // sequences)
        """Tokens of one of its sequences at its end: the context limit is on these."""
        prompt = self.prompt = prompt - shape.passing_tokens
        self.total = prompt + output
        self.arrived_s = self.dispatched_s = now_s
        self.deadline_s = deadline_s
        self.review_at_tokens = REVIEW_TOKENS_MIN
        """Once it has emitted so much, its expected output is looked at again."""
        self.queued_seq = self.emitted = self.resumed = self.charged_tokens = 0
        self.replica: Replica | None = None
        self.sooner: Ticket | None = None
        """Who expires before it in its lane, while it waits, and who after it (`deadlines`)."""
        self.later: Ticket | None = None
        self.prefix = prefix
        self.spared = 0
        """Prompt tokens foreseen to be cached where it runs; ``uncached`` is without them until its permit ends."""
        self.beside = self.met = 0
        """Of its prompt, what is counted beside the permits of its replica since others hold it too (`sharing`), and what others held
        when it was sent, whether it is counted so or not."""
        self.excluded = excluded
        self.only = only
        self.outstanding = 0
        """Prefill tokens it still occupies: its uncached prompt until the first token."""
        self.whole = whole
        self.answered = self.returned = self.shared = False
        """Something of its answer is with the client. It had been started before it last began to wait.
        It runs on what its lane was owed."""
        self.patience_s = patience_s
        """How long its client reads nothing: before the first byte, and later."""
        self.preempted = self.skips = 0
        """How often it gave its place up, and how often others were let past it."""
        self.tried_seq = -1
        """It fits nowhere as things were at this change; -1: it was not looked at."""

    def review(self, outlook: Callable[[str, int], int | None]) -> None:
        """It runs, and has emitted enough to tell more of it than was known when it came."""
        emitted = self.emitted
        self.review_at_tokens = emitted + max(REVIEW_TOKENS_MIN, emitted // 2)
        each = outlook(self.account.team, emitted // self.sequences)
        if each is None or self.replica is None:
            return
        expected = each * self.sequences
        if self.output_max and expected > self.output_max:
            expected = self.output_max
        self.replica.expect(self, max(expected, emitted))

    def resume(self, tokens: int) -> None:
        """``tokens`` of its output are out, and are prompt to the replica that goes on with it."""
        self.resumed += tokens
        self.prompt += tokens
        self.uncached += tokens
        before = self.output
        self.output = self.expected = max(1, before - tokens)
        if self.output_max:
            self.output_max = max(1, self.output_max - tokens)
        self.total = self.prompt + self.output
        self.longest += tokens + self.output - before

    def held_tokens(self) -> int:
        """KV tokens it holds now of its own."""
        return self.prompt - self.beside + self.emitted

    def spread(self) -> list[tuple[int, int]]:
        """``(left, cur)`` of each of its sequences; the prompt's KV is shared and counted once, and the sums are exact."""
        left = self.expected - self.emitted
        count = self.sequences
        if count == 1:
            return [(left, self.prompt - self.beside + self.emitted)]
        each = self.emitted // count
        first = self.prompt - self.beside + self.emitted - each * (count - 1)
        return [(left // count, first)] + [((left + extra) // count, each) for extra in range(1, count)]
