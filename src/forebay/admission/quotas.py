"""What one team may have of the whole gateway, whatever it is willing to wait: requests and tokens, per minute and in flight.

Per minute they are token buckets, full at first and refilled evenly, so that a minute's worth may come at once and then a steady stream.
Tokens are taken as estimated when a request comes, and settled when its usage is known. These are limits, not fairness: a request over
one is refused though the fleet be idle. One of several gateways has a share of each limit (`shares`): its buckets are as large as that,
and a share that grows brings nothing but what comes with it, so that all of them together let in no more than one would.
"""

import math
from enum import StrEnum

import msgspec

from forebay.admission.asked import Asked
from forebay.admission.outcomes import bounded
from forebay.domain.shape import Usage
from forebay.spec.types import TeamLimits

MINUTE_S = 60.0
HELD_KEPT = 0.9
"""What each finished request leaves of the mean time for which requests before it were held."""
SHARE_MOVES_S = 3.0
"""World seconds in which a share follows what is asked for: told, taken from one gateway, told, given to another."""


class Cap(StrEnum):
    """Low cardinality: these are metric labels."""

    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    REQUESTS_IN_FLIGHT = "requests_in_flight"
    TOKENS_IN_FLIGHT = "tokens_in_flight"

    def of(self, limits: TeamLimits) -> int | None:
        """This one of ``limits``."""
        found: int | None = getattr(limits, self.value)
        return found


PER_MINUTE = (Cap.REQUESTS_PER_MINUTE, Cap.TOKENS_PER_MINUTE)


class OverCap(msgspec.Struct, frozen=True):
    """Which limit a request would exceed. ``retry_after_s``: world seconds; None where waiting would not help: it alone is over."""

    cap: Cap
    limit: int
    retry_after_s: float | None
    share: int | None = None
    """What this gateway has of the limit, where that is less."""


class Hold:
    """Until when the shares of one gateway are its own."""

    __slots__ = ("until_s",)

    def __init__(self) -> None:
        self.until_s = -math.inf


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

    def resize(self, limit: int, fill: float, now_s: float) -> float:
        """Be of ``limit`` from now on, with ``fill`` more in it; returns what there is no place for."""
        self.move(now_s)
        self.limit, self.per_s = limit, limit / MINUTE_S
        over = max(0.0, self.left + fill - limit)
        self.left += fill - over
        return over

    def move(self, now_s: float) -> None:
        if now_s > self._at_s:
            if self.per_s:
                self.left = min(float(self.limit), self.left + (now_s - self._at_s) * self.per_s)
            self._at_s = now_s

    def wait_s(self, units: float) -> float:
        """Until ``units`` are there, as of the last move; 0 if they are."""
        missing = units - self.left
        return 0.0 if missing <= 0 else missing / self.per_s if self.per_s else MINUTE_S


class Quota:
    """One team's limits and what it has of them. Times are world seconds.

    ``hold``: this is one of several gateways, and has shares for as long as that says; the first are told.
    """

    __slots__ = (
        "_asked",
        "_freed",
        "_held_s",
        "_hold",
        "_limits",
        "_most_requests",
        "_most_tokens",
        "_requests",
        "_tokens",
        "in_flight",
        "let_in",
        "let_in_tokens",
        "refused",
        "shares",
        "tokens_in_flight",
    )

    def __init__(self, limits: TeamLimits, hold: Hold | None = None) -> None:
        self._limits = limits
        self._requests = _Bucket(limits.requests_per_minute) if limits.requests_per_minute else None
        self._tokens = _Bucket(limits.tokens_per_minute) if limits.tokens_per_minute else None
        self._most_requests, self._most_tokens = limits.requests_in_flight, limits.tokens_in_flight
        self._held_s = 0.0
        self._hold: Hold | None = None
        self._asked: Asked | None = None
        self._freed: dict[Cap, float] = {}
        self.shares: dict[Cap, int] = {}
        """Of each limit, where there are several gateways."""
        self.in_flight = 0
        """Requests inside the gateway, waiting or running."""
        self.tokens_in_flight = 0
        """Estimated, of those."""
        self.let_in = self.let_in_tokens = 0
        """Since it was made, as estimated."""
        self.refused: dict[Cap, int] = dict.fromkeys(Cap, 0)
        if hold is not None:
            self.divide(hold, -math.inf)

    def use(self, limits: TeamLimits, now_s: float) -> None:
        """These are the limits from now on. What is in flight counts on, and of a minute's worth as much is left as was, by proportion.

        A share shrinks with its limit; of one that grows, more has to be given.
        """
        before, self._limits = self._limits, limits
        if self._hold is None:
            self._requests = _Bucket.anew(self._requests, limits.requests_per_minute, now_s)
            self._tokens = _Bucket.anew(self._tokens, limits.tokens_per_minute, now_s)
            self._most_requests, self._most_tokens = limits.requests_in_flight, limits.tokens_in_flight
            return
        self._requests = (self._requests or _Bucket(0)) if limits.requests_per_minute else None
        self._tokens = (self._tokens or _Bucket(0)) if limits.tokens_per_minute else None
        self._most_requests = self._most_tokens = None
        shares, self.shares = self.shares, {}
        for cap, limit in self._limited():
            share, was = shares.get(cap, 0), cap.of(before) or limit
            self.share(cap, share * limit // was if limit < was else share, 0.0, now_s)

    # -- one of several gateways ------------------------------------------------------------------------------------------

    def divide(self, hold: Hold, now_s: float) -> None:
        """There are several gateways: have nothing of each limit until shares are given, and nothing when ``hold`` is over."""
        self._hold, self._asked = hold, Asked()
        for cap, _ in self._limited():
            self.share(cap, 0, 0.0, now_s)
        self._freed.clear()

    def undivide(self, now_s: float) -> None:
        """Nobody divides limits: have all of each, anew."""
        self._hold = self._asked = self._requests = self._tokens = None
        self.shares.clear()
        self.use(self._limits, now_s)

    def share(self, cap: Cap, units: int, fill: float, now_s: float) -> None:
        """So many ``units`` of a limit are this gateway's, and ``fill`` of a minute's worth are there besides."""
        limit = cap.of(self._limits)
        if limit is None or self._hold is None:
            return
        units = self.shares[cap] = min(units, limit)
        if cap is Cap.REQUESTS_IN_FLIGHT:
            self._most_requests = units
        elif cap is Cap.TOKENS_IN_FLIGHT:
            self._most_tokens = units
        else:
            bucket = self._requests if cap is Cap.REQUESTS_PER_MINUTE else self._tokens
            assert bucket is not None
            self._freed[cap] = self._freed.get(cap, 0.0) + bucket.resize(units, fill, now_s)

    def told(self, now_s: float) -> list[tuple[str, int, int, int, int, int, float]]:
        """By limit: limit, share, in flight, wanted, the largest request, and what was freed since this was last asked."""
        asked = self._asked
        if asked is None:
            return []
        per_minute, in_flight, largest = asked.lately(now_s, (self._limits.requests_per_minute or 0, self._limits.tokens_per_minute or 0))
        rows = []
        for cap, limit in self._limited():
            tokens = cap in (Cap.TOKENS_PER_MINUTE, Cap.TOKENS_IN_FLIGHT)
            used = 0 if cap in PER_MINUTE else self.tokens_in_flight if tokens else self.in_flight
            wants = (per_minute if cap in PER_MINUTE else in_flight)[tokens]
            rows.append((cap.value, limit, self.shares.get(cap, 0), used, wants, largest[tokens], self._freed.pop(cap, 0.0)))
        return rows

    # -- requests ---------------------------------------------------------------------------------------------------------

    def take(self, tokens: int, now_s: float) -> OverCap | None:
        """One more request of so many ``tokens``; or, with nothing taken, the limit that it would exceed."""
        over = self._over(tokens, now_s)
        if self._asked is not None:
            self._asked.one_more(tokens, self.in_flight, self.tokens_in_flight, let_in=over is None)
        if over is not None:
            self.refused[over.cap] += 1
            return over
        if self._requests is not None:
            self._requests.left -= 1
        if self._tokens is not None:
            self._tokens.left -= tokens
        self.in_flight += 1
        self.tokens_in_flight += tokens
        self.let_in += 1
        self.let_in_tokens += tokens
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
        """What is left of the limits per minute, or of this gateway's shares of them, in OpenAI's header lines.

        ``speed``: world seconds of a real one.
        """
        lines = []
        for name, bucket in ((b"requests", self._requests), (b"tokens", self._tokens)):
            if bucket is not None:
                bucket.move(now_s)
                reset = _duration(bucket.wait_s(bucket.limit) / speed)
                left = 0 if self._is_over(now_s) else max(0, int(bucket.left))
                lines.append(b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\n" % (name, bucket.limit, name, left))
                lines.append(b"x-ratelimit-reset-%b: %b\r\n" % (name, reset))
        return b"".join(lines)

    def shared(self, now_s: float) -> bool:
        """Whether this gateway has shares of the limits that are its own just now."""
        return self._hold is not None and now_s < self._hold.until_s

    def _is_over(self, now_s: float) -> bool:
        """Whether its shares are its own no more."""
        return self._hold is not None and now_s >= self._hold.until_s

    def _limited(self) -> list[tuple[Cap, int]]:
        return [(cap, limit) for cap in Cap if (limit := cap.of(self._limits)) is not None]

    def _over(self, tokens: int, now_s: float) -> OverCap | None:
        if self._is_over(now_s):
            cap, limit = self._limited()[0]
            return OverCap(cap, limit, SHARE_MOVES_S, 0)
        wait_s = self._held_s / max(1, self.in_flight)
        most = self._most_requests
        if most is not None and self.in_flight >= most:
            return self._told_over(Cap.REQUESTS_IN_FLIGHT, most, 1, wait_s)
        most = self._most_tokens
        if most is not None and self.tokens_in_flight + tokens > most:
            return self._told_over(Cap.TOKENS_IN_FLIGHT, most, tokens, wait_s)
        for cap, bucket, units in (
            (Cap.REQUESTS_PER_MINUTE, self._requests, 1),
            (Cap.TOKENS_PER_MINUTE, self._tokens, tokens),
        ):
            if bucket is not None:
                bucket.move(now_s)
                if bucket.left < units:
                    return self._told_over(cap, bucket.limit, units, bucket.wait_s(units))
        return None

    def _told_over(self, cap: Cap, here: int, units: int, wait_s: float) -> OverCap:
        """``here``: as much of the limit as this gateway has."""
        limit = cap.of(self._limits) or here
        if units > limit:
            return OverCap(cap, limit, None)
        return OverCap(cap, limit, bounded(wait_s if units <= here else max(wait_s, SHARE_MOVES_S)), here if here < limit else None)


def _duration(seconds: float) -> bytes:
    """As OpenAI writes it: ``6m0s``, ``1.5s``, ``12ms``."""
    if seconds < 1:
        return b"%dms" % math.ceil(seconds * 1000)
    minutes, rest = divmod(math.ceil(seconds * 1000), 60_000)
    text = b"%gs" % (rest / 1000)
    return b"%dm%b" % (minutes, text) if minutes else text
