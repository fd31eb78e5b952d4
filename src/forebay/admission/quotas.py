"""What one team may have of the whole gateway, whatever it is willing to wait: requests and tokens, per minute and in flight.

Per minute they are token buckets, full at first and refilled evenly, so that a minute's worth may come at once and then a steady stream.
Tokens are taken as estimated when a request comes, and settled when its usage is known. These are limits, not fairness: a request over
one is refused though the fleet be idle.
"""

import math
from enum import StrEnum

import msgspec

from forebay.admission.outcomes import bounded
from forebay.domain.shape import Usage
from forebay.spec.types import TeamLimits

MINUTE_S = 60.0
HELD_KEPT = 0.9
"""What each finished request leaves of the mean time for which requests before it were held."""


class Cap(StrEnum):
    """Low cardinality: these are metric labels."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    REQUESTS_IN_FLIGHT = "requests_in_flight"
    TOKENS_IN_FLIGHT = "tokens_in_flight"


class OverCap(msgspec.Struct, frozen=True):
    """Which limit a request would exceed. ``retry_after_s``: world seconds; None where waiting would not help: it alone is over."""

    cap: Cap
    limit: int
    retry_after_s: float | None


class _Bucket:
    """So many units a minute."""

    __slots__ = ("_at_s", "left", "limit", "per_s")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left = float(limit)
        self.per_s = limit / MINUTE_S
        self._at_s = -math.inf

    @staticmethod
    def anew(before: "_Bucket | None", limit: int | None, now_s: float) -> "_Bucket | None":
        """One of ``limit`` that is as full as the one ``before``; full where there was none, and none without a limit."""
        made = _Bucket(limit) if limit else None
        if before is not None and made is not None:
            before.move(now_s)
            made.left = before.left * made.limit / before.limit
            made._at_s = now_s
        return made

    def move(self, now_s: float) -> None:
        if now_s > self._at_s:
            self.left = min(float(self.limit), self.left + (now_s - self._at_s) * self.per_s)
            self._at_s = now_s

    def wait_s(self, units: float) -> float:
        """Until ``units`` are there, as of the last move; 0 if they are."""
        return max(0.0, (units - self.left) / self.per_s)


class Quota:
    """One team's limits and what it has of them. Times are world seconds."""

    __slots__ = ("_held_s", "_limits", "_requests", "_tokens", "in_flight", "refused", "tokens_in_flight")

    def __init__(self, limits: TeamLimits) -> None:
        self._limits = limits
        self._requests = _Bucket(limits.requests_per_minute) if limits.requests_per_minute else None
        self._tokens = _Bucket(limits.tokens_per_minute) if limits.tokens_per_minute else None
        self._held_s = 0.0
        self.in_flight = 0
        """Requests inside the gateway, waiting or running."""
        self.tokens_in_flight = 0
        """Estimated, of those."""
        self.refused: dict[Cap, int] = dict.fromkeys(Cap, 0)

    def use(self, limits: TeamLimits, now_s: float) -> None:
        """These are the limits from now on. What is in flight counts on, and of a minute's worth as much is left as was, by proportion."""
        self._limits = limits
        self._requests = _Bucket.anew(self._requests, limits.requests_per_minute, now_s)
        self._tokens = _Bucket.anew(self._tokens, limits.tokens_per_minute, now_s)

    def take(self, tokens: int, now_s: float) -> OverCap | None:
        """One more request of so many ``tokens``; or, with nothing taken, the limit that it would exceed."""
        over = self._over(tokens, now_s)
        if over is not None:
            self.refused[over.cap] += 1
            return over
        if self._requests is not None:
            self._requests.left -= 1
        if self._tokens is not None:
            self._tokens.left -= tokens
        self.in_flight += 1
        self.tokens_in_flight += tokens
        return None

    def give_back(self, tokens: int, usage: Usage | None, held_s: float, now_s: float, *, served: bool) -> None:
        """A request for which ``tokens`` were taken is over after ``held_s``; what it did not use is there again.

        ``served``: an engine worked on it; what never started used nothing, and counts as a request all the same.
        """
        self.in_flight -= 1
        self.tokens_in_flight -= tokens
        if served:
            self._held_s = HELD_KEPT * self._held_s + (1 - HELD_KEPT) * held_s if self._held_s else held_s
        bucket = self._tokens
        if bucket is not None and (usage is not None or not served):
            bucket.move(now_s)
            used = usage.prompt_tokens + usage.output_tokens if usage is not None else 0
            bucket.left = min(float(bucket.limit), bucket.left + tokens - used)

    def headers(self, now_s: float, speed: float) -> bytes:
        """What is left of the limits per minute, in OpenAI's header lines. ``speed``: world seconds of a real one."""
        lines = []
        for name, bucket in ((b"requests", self._requests), (b"tokens", self._tokens)):
            if bucket is not None:
                bucket.move(now_s)
                reset = _duration(bucket.wait_s(bucket.limit) / speed)
                left = max(0, int(bucket.left))
                lines.append(b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\n" % (name, bucket.limit, name, left))
                lines.append(b"x-ratelimit-reset-%b: %b\r\n" % (name, reset))
        return b"".join(lines)

    def _over(self, tokens: int, now_s: float) -> OverCap | None:
        limits = self._limits
        wait_s = bounded(self._held_s / max(1, self.in_flight))
        most = limits.requests_in_flight
        if most is not None and self.in_flight >= most:
            return OverCap(Cap.REQUESTS_IN_FLIGHT, most, wait_s)
        most = limits.tokens_in_flight
        if most is not None and self.tokens_in_flight + tokens > most:
            return OverCap(Cap.TOKENS_IN_FLIGHT, most, wait_s if tokens <= most else None)
        for cap, bucket, units in (
            (Cap.REQUESTS_PER_MINUTE, self._requests, 1),
            (Cap.TOKENS_PER_MINUTE, self._tokens, tokens),
        ):
            if bucket is not None:
                bucket.move(now_s)
                if bucket.left < units:
                    return OverCap(cap, bucket.limit, bounded(bucket.wait_s(units)) if units <= bucket.limit else None)
        return None


def _duration(seconds: float) -> bytes:
    """As OpenAI writes it: ``6m0s``, ``1.5s``, ``12ms``."""
    if seconds < 1:
        return b"%dms" % math.ceil(seconds * 1000)
    minutes, rest = divmod(math.ceil(seconds * 1000), 60_000)
    text = b"%gs" % (rest / 1000)
    return b"%dm%b" % (minutes, text) if minutes else text
