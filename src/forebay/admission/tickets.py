"""One request inside admission, from its arrival to its end: the only mutable record about it."""

from typing import TYPE_CHECKING

from forebay.domain.shape import Shape

if TYPE_CHECKING:
    from forebay.admission.budget import Replica
    from forebay.admission.lanes import Lane

RETRIES_MAX = 8
"""Replicas remembered as tried; after so many the request is given up."""


class Ticket:
    """Queued (``queued_seq`` > 0), dispatched (``replica`` is set) or ended (neither)."""

    __slots__ = (
        "arrived_s",
        "deadline_s",
        "dispatched_s",
        "emitted",
        "excluded",
        "expected",
        "id",
        "lane",
        "longest",
        "output",
        "output_max",
        "outstanding",
        "prompt",
        "queued_s",
        "queued_seq",
        "replica",
        "resumed",
        "sequences",
        "team",
        "total",
        "uncached",
    )

    def __init__(self, ticket: int, lane: "Lane", team: str, shape: Shape, now_s: float, longest_wait_s: float | None = None) -> None:
        self.id = ticket
        self.lane = lane
        self.team = team
        prompt = self.prompt = shape.prompt_tokens
        output = self.output = self.expected = shape.output_tokens
        """Output tokens estimated at arrival; ``expected`` is re-estimated while it runs, and never less than ``emitted``."""
        self.output_max = shape.output_tokens_max
        self.total = prompt + output
        cached = shape.cached_tokens
        self.uncached = prompt - cached if cached < prompt else 0
        sequences = self.sequences = shape.sequences
        self.longest = prompt + -(-output // sequences)
        """Tokens of one of its sequences at its end: the context limit is on these."""
        self.arrived_s = self.queued_s = self.dispatched_s = now_s
        self.deadline_s = now_s + (lane.longest_wait_s if longest_wait_s is None else longest_wait_s)
        self.queued_seq = self.emitted = self.resumed = 0
        self.replica: Replica | None = None
        self.excluded: tuple[str, ...] = ()
        self.outstanding = 0
        """Prefill tokens it still occupies: its uncached prompt until the first token."""

    def resume(self, tokens: int) -> None:
        """``tokens`` of its output are out, and are prompt to the replica that goes on with it."""
        self.resumed += tokens
        self.prompt += tokens
        self.uncached += tokens
        self.output = self.expected = max(1, self.output - tokens)
        if self.output_max:
            self.output_max = max(1, self.output_max - tokens)
        self.total = self.longest = self.prompt + self.output

    def held_tokens(self) -> int:
        """KV tokens it holds now."""
        return self.prompt + self.emitted

    def spread(self) -> list[tuple[int, int]]:
        """``(left, cur)`` of each of its sequences; the prompt's KV is shared and counted once, and the sums are exact."""
        left = self.expected - self.emitted
        count = self.sequences
        if count == 1:
            return [(left, self.prompt + self.emitted)]
        each = self.emitted // count
        first = self.prompt + self.emitted - each * (count - 1)
        return [(left // count, first)] + [((left + extra) // count, each) for extra in range(1, count)]
