"""What the gateway counts: plain integers in the hot path, turned into Prometheus families (`families`) only when somebody asks.

Labels are pool, tier, team and outcome, all declared in the spec or in an enum here, so their number is bounded by it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from forebay.admission.outcomes import Refusal
from forebay.domain.roster import CORRECTED_BUCKET_S, CORRECTED_BUCKETS_MAX, Corrected, TierCounts
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

BUCKETS_S: Final[Sequence[float]] = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Outcome(StrEnum):
    """How a request ended, from the client's side."""

    COMPLETED = "completed"
    REFUSED_BY_ENGINE = "refused_by_engine"
    """The engine answered 4xx: the request is wrong, the service is not."""
    SHED = "shed"
    FAILED = "failed"
    TRUNCATED = "truncated"
    """Broken off after its first content; the client was told so."""
    CLIENT_GONE = "client_gone"
    CLIENT_SLOW = "client_slow"
    """It read nothing for too long, and was dropped."""
    MOVED = "moved"
    """Not an end: it left this pool for another, or for other people's engines, and is counted there."""


_COMPLETED: Final = Outcome.COMPLETED  # in a name of its own: a member is looked up by a function call


class Histogram:
    """Counts by bucket; seconds are the world's."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus's view of the buckets."""
        total = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows


ANSWERS_FOR_A_MEAN: Final = 20
_BUCKET_S: Final = CORRECTED_BUCKET_S
_BUCKETS_MAX: Final = CORRECTED_BUCKETS_MAX


class TierMeter:
    """Counters of one (pool, tier) since the gateway started."""

    __slots__ = (
        "arrived",
        "arrived_output_tokens",
        "arrived_prompt_tokens",
        "completed_output_tokens",
        "continued",
        "corrected",
        "itl_met",
        "itl_missed",
        "itl_s",
        "limited_output_tokens",
        "limited_prompt_tokens",
        "outcomes",
        "output_tokens",
        "pool",
        "prompt_tokens",
        "queue_wait",
        "requeued",
        "response_bytes",
        "retries",
        "shed",
        "tier",
        "ttft",
        "ttft_met",
        "ttft_missed",
    )

    def __init__(self, pool: str, tier: Tier, itl_s: float) -> None:
        """``itl_s``: the pool's promise on the mean inter-token time of one answer."""
        self.pool = pool
        self.tier = tier
        self.itl_s = itl_s
        self.arrived = 0
        self.arrived_prompt_tokens = 0
        self.arrived_output_tokens = 0
        self.corrected: dict[int, list[int]] = {}
        """Prompt and output tokens of what has ended, less the estimates, by the number of the span in which it came."""
        self.limited_prompt_tokens = 0
        self.limited_output_tokens = 0
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.shed: dict[Refusal, int] = dict.fromkeys(Refusal, 0)
        self.retries = 0
        self.continued = 0
        self.requeued = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.completed_output_tokens = 0
        self.response_bytes = 0
        self.ttft_met = 0
        self.ttft_missed = 0
        self.itl_met = 0
        self.itl_missed = 0
        self.ttft = Histogram()
        self.queue_wait = Histogram()

    def arrive(self, shape: Shape) -> int:
        """A request came; the output tokens that it counts for until it has ended."""
        self.arrived += 1
        self.arrived_prompt_tokens += shape.prompt_tokens
        expected = self._expected_output_tokens(shape)
        self.arrived_output_tokens += expected
        return expected

    def settled(self, usage: Usage, prompt_tokens: int, output_tokens: int, came_unix_s: float) -> None:
        """What one took that counted for so many tokens when it came."""
        number = int(came_unix_s) // _BUCKET_S
        sums = self.corrected.get(number)
        if sums is None:
            if len(self.corrected) >= _BUCKETS_MAX:
                oldest = min(self.corrected)
                if number < oldest:
                    return
                del self.corrected[oldest]
            sums = self.corrected[number] = [0, 0]
        sums[0] += usage.prompt_tokens - prompt_tokens
        sums[1] += usage.output_tokens - output_tokens

    def over_limit(self, shape: Shape) -> None:
        """What came last is refused at a limit of its team, whatever the fleet could do: it stays counted as asked, and is no demand."""
        self.shed[Refusal.OVER_LIMIT] += 1
        self.limited_prompt_tokens += shape.prompt_tokens
        self.limited_output_tokens += self._expected_output_tokens(shape)

    def _expected_output_tokens(self, shape: Shape) -> int:
        """Demand is a mean: the estimate, a high quantile, serves until there are answers to take one from."""
        answered = self.outcomes[_COMPLETED]
        return shape.output_tokens if answered < ANSWERS_FOR_A_MEAN else self.output_tokens // answered

    def ended(self, outcome: Outcome, usage: Usage | None) -> None:
        """A request is over, or over here."""
        self.outcomes[outcome] += 1
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.output_tokens += usage.output_tokens

    def first_content(self, ttft_s: float, promise_s: float | None) -> None:
        """A stream's first content came; within ``promise_s`` the promise was met. None: it was counted as missed before."""
        self.ttft.observe(ttft_s)
        if promise_s is None:
            return
        if ttft_s <= promise_s:
            self.ttft_met += 1
        else:
            self.ttft_missed += 1

    def stream_completed(self, seconds: float, tokens: int) -> None:
        """The ``tokens`` of a sequence took ``seconds`` from the first content to the last."""
        if tokens <= 1 or seconds <= self.itl_s * (tokens - 1):
            self.itl_met += 1
        else:
            self.itl_missed += 1

    def counts(self) -> TierCounts:
        """For the controller. Clients that left are neither completed nor failed, and what limits of teams refused is left out."""
        outcomes, limited = self.outcomes, self.shed[Refusal.OVER_LIMIT]
        return TierCounts(
            tier=self.tier.name,
            preemptible=self.tier.preemptible,
            arrived=self.arrived - limited,
            arrived_prompt_tokens=self.arrived_prompt_tokens - self.limited_prompt_tokens,
            arrived_output_tokens=self.arrived_output_tokens - self.limited_output_tokens,
            completed=outcomes[Outcome.COMPLETED] + outcomes[Outcome.REFUSED_BY_ENGINE],
            shed=outcomes[Outcome.SHED] - limited,
            failed=outcomes[Outcome.FAILED],
            truncated=outcomes[Outcome.TRUNCATED],
            ttft_met=self.ttft_met,
            ttft_missed=self.ttft_missed,
            completed_output_tokens=self.completed_output_tokens,
            itl_met=self.itl_met,
            itl_missed=self.itl_missed,
            corrected=tuple([Corrected(number * _BUCKET_S, *sums) for number, sums in self.corrected.items()]),
        )
