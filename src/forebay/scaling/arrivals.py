"""Demand and its ramp out of a noisy arrival rate: what the counts prove, not what they happen to read.

At 100 requests a minute the count of one minute strays by ten, so that ``ceil(demand ÷ capacity)`` of the bare reading
would ask for a third replica all day. The counts of several windows are therefore read as what they are, samples of a
Poisson process: each window *proves* a lower bound of the rate, short windows prove steep rises soon, long ones small
rises surely. The trade-off is delay: a ramp of 30/min/min at 100/min is proven after about two minutes. It falls back as
soon as shorter windows show less; what holds capacity after a peak is the calm before a scale-in, not this.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec

from forebay.scaling import columns
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.memory import BUCKET_S, BUCKETS_MAX, Bucket

READING_S = 30.0
"""Seconds that one reading of the arrival rate stands for."""
READING_MAX = 1e9
_BUCKETS_READ = math.ceil(READING_S / BUCKET_S) + 1
"""That one reading may reach into."""
WINDOWS_S = (60.0, 120.0, 240.0, 480.0, 960.0)
WINDOW_COVERED_MIN = 0.5
"""A window counts once readings are known for this fraction of it."""
LOAD_WINDOW_S = 240.0
DOUBT_REPLICAS_MAX = 0.9
"""Of what the longest window shows, chance may explain away less than one replica: a whole one's worth of demand is real."""
RISING_DOUBT = 0.7
"""While a ramp is proven, this part of the doubt is left to the level: that the rate stands still is ruled out already."""
SIZE_VARIANCE = 1.0
"""Squared coefficient of variation of tokens per request: token counts are noisier than request counts by 1 + this."""
_SIZE_SIGMAS = math.sqrt(1 + SIZE_VARIANCE)
RAMP_WINDOWS_S = (300.0, 600.0)
RAMP_COVERED_MIN = 0.8
RAMP_REQUESTS_MIN = 25.0
"""With fewer requests in a window no slope means anything."""


class Demand(msgspec.Struct, frozen=True):
    """Demand in replicas (a ratio, not rounded), and the numbers behind it."""

    proven: float
    """What the counts prove: floors are made of this."""
    load: float
    """What the counts show over LOAD_WINDOW_S, chance included: what fewer replicas would have to hold."""
    rate_per_s: float
    """Requests per second over the window that decided."""
    window_s: float
    unit: str
    """What limits: ``requests``, ``prompt tokens`` or ``output tokens``."""


class _Window(msgspec.Struct, frozen=True, gc=False):
    width_s: float
    seconds: float
    requests: float
    token_seconds: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0

    @property
    def rate_per_s(self) -> float:
        return self.requests / self.seconds if self.seconds > 0 else 0.0


class Sums(msgspec.Struct, frozen=True, gc=False):
    """Integrals over a window."""

    seconds: float
    """In which the arrival rate was known."""
    requests: float


def recorded(
    buckets: Sequence[Bucket],
    now_s: float,
    elapsed_s: float,
    requests_per_s: float | None,
    tokens_per_s: tuple[float, float] | None,
    ready: int = 0,
) -> tuple[Bucket, ...]:
    """``buckets`` with the present reading added for the time since the last one (at most READING_S); None: not known.

    ``tokens_per_s``: prompt and output tokens. The sums are integrals over time, so looking more often changes nothing.
    """
    horizon_s = now_s - WINDOWS_S[-1] - BUCKET_S
    buckets, found = columns.in_order(buckets)
    first, until = bisect_right(found.start_s, horizon_s), bisect_right(found.start_s, now_s)
    # Only the newest may still grow: it is the first of the tail.
    tail, kept = list(buckets[max(first, until - 1) : until]), max(first, until - 1)
    if requests_per_s is not None:
        requests_per_s = min(requests_per_s, READING_MAX)
        at_s = now_s - (min(elapsed_s, READING_S) if tail else READING_S)
        for _ in range(_BUCKETS_READ):
            if at_s >= now_s:
                break
            if not tail or at_s >= tail[-1].start_s + BUCKET_S:
                tail.append(Bucket(start_s=at_s))
            until_s = min(now_s, tail[-1].start_s + BUCKET_S)
            tail[-1] = _added(tail[-1], until_s - at_s, requests_per_s, tokens_per_s, ready)
            at_s = until_s
    first += max(0, kept - first + len(tail) - BUCKETS_MAX)
    newest = (*buckets[first:kept], *tail)
    columns.continued(newest, found, first, kept)
    return newest


def demand(buckets: Sequence[Bucket], now_s: float, capacity: PoolCapacity, sigmas: float, claims_from_s: float = 0.0) -> Demand | None:
    """Present demand in replicas; None where no reading or no capacity is known.

    Windows shorter than ``claims_from_s`` claim nothing of their own (the longest may always): a forecast judges them.

    Each window's lower bound comes from the square root of its count n, whose standard deviation is 1/2 at any rate
    (Anscombe's transform): ``(√n − sigmas/2)²``. No window may claim more than a shorter one shows on average.
    """
    if capacity.rate_per_s is None and capacity.prompt_tokens_per_s is None and capacity.output_tokens_per_s is None:
        return None
    windows = _windows(buckets, now_s, bool(capacity.prompt_tokens_per_s or capacity.output_tokens_per_s))
    usable = [window for window in windows if window.seconds > 0 and window.seconds >= window.width_s * WINDOW_COVERED_MIN - 1e-6]
    if not usable:
        usable = [window for window in windows[-1:] if window.seconds > 0]
    if not usable:
        return None
    last = usable[-1]
    most, chosen, limit = 0.0, last, "requests"
    shorter_show, load = math.inf, None
    for window in usable:
        shown, unit, proven = _judged(window, capacity, sigmas)
        if window is last:
            proven = max(proven, shown - DOUBT_REPLICAS_MAX if sigmas > 0 else shown)
        proven = shorter_show if shorter_show < proven else proven
        if proven > most and (window.width_s >= claims_from_s or window is last):
            most, chosen, limit = proven, window, unit
        shorter_show = shown if shown < shorter_show else shorter_show
        if window.width_s <= LOAD_WINDOW_S:
            load = shown
    return Demand(most, max(most, load if load is not None else shorter_show), chosen.rate_per_s, chosen.width_s, limit)


def present_ramp_per_s2(buckets: Sequence[Bucket], now_s: float, sigmas: float) -> float:
    """The rise of the request rate that the last minutes prove, in requests per second per second; never below 0.

    The slope of a least-squares line less ``sigmas`` of its own standard deviation ``√(rate ÷ Σ seconds·(t − mean t)²)``,
    and no steeper than either half of the window alone: a step up is over once it is made, and is no ramp.
    """
    run = columns.Run.of(columns.columns(buckets), now_s, now_s - max(RAMP_WINDOWS_S) - BUCKET_S / 2)
    return max([_proven_ramp(run, now_s, width_s, sigmas) for width_s in RAMP_WINDOWS_S])


def summed(buckets: Sequence[Bucket], now_s: float, width_s: float) -> Sums:
    """Over the buckets (oldest first) of the last ``width_s``, to half a bucket."""
    found = columns.columns(buckets)
    first = found.since(now_s - width_s)
    return Sums(sum(found.seconds[first:]), sum(found.requests[first:]))


def served(buckets: Sequence[Bucket], now_s: float, widths_s: Sequence[float]) -> list[tuple[float, float]]:
    """Requests and replica-seconds over each of several widths, rising, in one pass from the newest bucket back."""
    found = columns.columns(buckets)
    sums, requests, held, until = [], 0.0, 0.0, len(buckets)
    for width_s in widths_s:
        first = found.since(now_s - width_s)
        requests += sum(found.requests[first:until])
        held += sum(found.replica_seconds[first:until])
        until = first
        sums.append((requests, held))
    return sums


def _added(bucket: Bucket, seconds: float, requests_per_s: float, tokens_per_s: tuple[float, float] | None, ready: int) -> Bucket:
    known_s, told_s, prompt, output = bucket.seconds + seconds, bucket.token_seconds, 0.0, 0.0
    if tokens_per_s is not None:
        # The same number for both where they are alike: to compare a number with itself costs next to nothing (`shapes.observed`).
        told_s = known_s if told_s == bucket.seconds else told_s + seconds
        prompt, output = tokens_per_s
    return Bucket(
        bucket.start_s,
        known_s,
        bucket.requests + requests_per_s * seconds,
        told_s,
        bucket.prompt_tokens + min(prompt, READING_MAX) * seconds,
        bucket.output_tokens + min(output, READING_MAX) * seconds,
        bucket.replica_seconds + ready * seconds,
    )


def _windows(buckets: Sequence[Bucket], now_s: float, with_tokens: bool) -> list[_Window]:
    """The sums over each of WINDOWS_S: the buckets that start in it, and of the one it begins in, the part inside.

    Tokens are summed ``with_tokens`` only: of the shapes that come, capacity mostly knows a rate of requests alone.
    """
    found = columns.columns(buckets)
    started = bisect_left(found.start_s, now_s)
    if started < len(buckets):
        return _windows(buckets[:started], now_s, with_tokens)
    starts_s, each_s, came, told, prompts, outputs, _ = found
    windows, until = [], started
    seconds = requests = told_s = prompt = output = 0.0
    for width_s in WINDOWS_S:
        edge_s = now_s - width_s
        first = bisect_left(starts_s, edge_s, 0, until)
        if first < until:
            seconds += sum(each_s[first:until])
            requests += sum(came[first:until])
            if with_tokens:
                told_s += sum(told[first:until])
                prompt += sum(prompts[first:until])
                output += sum(outputs[first:until])
            until = first
        part, cut = 0.0, first - 1
        if first:
            end_s = min(starts_s[cut] + BUCKET_S, now_s)
            part = (end_s - edge_s) / (end_s - starts_s[cut])
        if not part > 0:
            window = _Window(width_s, seconds, requests, told_s, prompt, output)
        elif with_tokens:
            tokens = (told_s + part * told[cut], prompt + part * prompts[cut], output + part * outputs[cut])
            window = _Window(width_s, seconds + part * each_s[cut], requests + part * came[cut], *tokens)
        else:
            window = _Window(width_s, seconds + part * each_s[cut], requests + part * came[cut])
        windows.append(window)
    return windows


def _judged(window: _Window, capacity: PoolCapacity, sigmas: float) -> tuple[float, str, float]:
    """What the window shows, what limits it, and what it proves."""
    each_per_s, requests, told_s = capacity.rate_per_s, window.requests, window.token_seconds
    root = math.sqrt(requests) if requests > 0 else 0.0
    ratio = window.rate_per_s / each_per_s if each_per_s else 0.0
    proven = ratio * _certain(root, sigmas)
    prompt_per_s, output_per_s = capacity.prompt_tokens_per_s, capacity.output_tokens_per_s
    if not told_s > 0 or not (prompt_per_s or output_per_s):
        return ratio, "requests", max(0.0, proven)
    prompt = window.prompt_tokens / told_s / prompt_per_s if prompt_per_s else -1.0
    output = window.output_tokens / told_s / output_per_s if output_per_s else -1.0
    most, unit = (prompt, "prompt tokens") if prompt >= output else (output, "output tokens")
    of_tokens = most * _certain(root, sigmas * _SIZE_SIGMAS)
    proven = proven if proven > of_tokens else of_tokens
    if each_per_s and ratio >= most:
        return ratio, "requests", proven
    return most, unit, proven


def _certain(root: float, sigmas: float) -> float:
    """The fraction of a Poisson count, whose square root is ``root``, that ``sigmas`` standard deviations leave standing."""
    standing = 1 - sigmas / 2 / root if root > 0 else 0.0
    return standing**2 if standing > 0 else 0.0


def _proven_ramp(run: columns.Run, now_s: float, width_s: float, sigmas: float) -> float:
    starts_s, last = run.start_s, len(run.start_s)
    first = bisect_left(starts_s, now_s - width_s - BUCKET_S / 2)
    slope, spread, rate_per_s = run.climbs(first, last, RAMP_COVERED_MIN * width_s, RAMP_REQUESTS_MIN)
    proven = slope - sigmas * math.sqrt(rate_per_s / spread) if slope > 0 else 0.0
    if proven <= 0:
        return 0.0
    half = bisect_left(starts_s, now_s - width_s / 2, first)
    early = run.climbs(first, half)[0]
    return max(0.0, min(proven, early, run.climbs(half, last)[0])) if early > 0 else 0.0
