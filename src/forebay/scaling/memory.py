"""What the policy remembers between two decisions, as bytes that travel in the values.

Memory comes back from a store, from another release or from a damaged disk, so reading it is total: what can't be
believed is forgotten. To forget is safe: every calm and every wait starts anew, and nothing is scaled in meanwhile.
"""

import math
import sys
from typing import Annotated

import msgspec

from forebay.demand.forecast import ForecastMemory
from forebay.domain.scaling import MEMORY_BYTES_MAX

VERSION = 2
BUCKET_S = 10.0
BUCKETS_MAX = 96
"""16 minutes of arrivals."""
UNKNOWN_IDS_MAX = 256
ID_CHARACTERS_MAX = 64
EXPECTED_MAX = 80
USES_MAX = 64
PEAKS_MAX = 24
"""Slices of a window whose extremes are kept."""
CLOCK_STEP_S = 60.0
"""The wall clock may run ahead of the world clock by this much between two looks before a restart is assumed."""

FLOAT_MAX = sys.float_info.max

# What is read is held to these while it is decoded, which also keeps NaN out: a look has a fraction of a millisecond.
Finite = Annotated[float, msgspec.Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e100)]
Above0 = Annotated[float, msgspec.Meta(gt=0, le=FLOAT_MAX)]
ReplicaId = Annotated[str, msgspec.Meta(max_length=ID_CHARACTERS_MAX)]
InBucket = Annotated[float, msgspec.Meta(ge=0, le=BUCKET_S * 1.001)]


class Bucket(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Arrivals of up to BUCKET_S seconds from ``start_s``, as integrals of the readings over the time they were known."""

    start_s: Finite
    seconds: InBucket = 0.0
    requests: Amount = 0.0
    token_seconds: InBucket = 0.0
    """Seconds in which both token rates were known."""
    prompt_tokens: Amount = 0.0
    output_tokens: Amount = 0.0
    replica_seconds: Amount = 0.0
    """Seconds of ready replicas."""


class Held(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A condition and the world time since which it has held; ``blind``: at the last look it could not be told."""

    since_s: Finite | None = None
    blind: bool = False

    def for_s(self, now_s: float) -> float:
        """Seconds it has held; 0 where it does not."""
        return 0.0 if self.since_s is None else now_s - self.since_s


NOT_HELD = Held()


class Expected(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Requests per second that were expected of the minute that ends at ``due_s``."""

    due_s: Finite
    per_s: Finite
    noted: bytes = b""
    """What the drift's regressions learn from, once it has come (`scaling.drift`)."""


class Learnt(msgspec.Struct, frozen=True, array_like=True):
    """What the outlook has learned (`scaling.outlook`)."""

    minute_s: Finite | None = None
    """When it last learned; None: never."""
    known_s: Finite = 0.0
    """Seconds of history that are known."""
    growth: Above0 = 1.0
    """Expected demand at the horizon ÷ demand now."""
    growth_peak: Above0 = 1.0
    """The same for the highest up to the horizon."""
    blind_per_s: Finite | None = None
    """The forecast without the present level; None: it can't say."""
    method: str = ""
    spread: bytes = b""
    """Histogram of what came beside what was expected (`scaling.spread`)."""
    drift: bytes = b""
    """Regressions of drift and swing (`scaling.drift`)."""
    swing: Above0 = 0.12
    """The spread of the logarithm of came ÷ expected now."""
    fair: bytes = b""
    """What would miss at which price (`scaling.fair`)."""
    fair_price: Above0 = 1.0
    """What the default price of a miss is multiplied with, so that the allowed share is expected to miss."""
    headroom_start: Above0 = 1.0
    headroom_keep: Above0 = 1.0
    """Multiples of the expected demand (`scaling.economics`)."""
    expected: Annotated[tuple[Expected, ...], msgspec.Meta(max_length=EXPECTED_MAX)] = ()
    forecast: ForecastMemory | None = None


class Peak(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The largest (or smallest) of a number of replicas over the time from ``start_s`` on."""

    start_s: Finite
    replicas: int


Peaks = Annotated[tuple[Peak, ...], msgspec.Meta(max_length=PEAKS_MAX + 2)]


class Memory(msgspec.Struct, frozen=True, array_like=True):
    """All times are world seconds; None: the condition does not hold."""

    version: int = VERSION
    now_s: Finite | None = None
    """When the last decision was made."""
    wall_s: Finite = 0.0
    waiting: Held = Held()
    """Too much waits per replica."""
    calm: Held = Held()
    breach: Held = Held()
    """The SLO is missed."""
    exhausted_since_s: Finite | None = None
    unknown_since_s: Annotated[dict[ReplicaId, Finite], msgspec.Meta(max_length=UNKNOWN_IDS_MAX)] = {}
    """By replica id; ``""`` is what the gateways tell."""
    ready: int = 0
    ready_rose_s: Finite | None = None
    """When a replica last became ready: what it relieves shows only after a while."""
    stepped_s: Finite | None = None
    """When the last step of a scale-in was made."""
    rose_s: Finite | None = None
    """When more were last asked for; None: the last change was to fewer."""
    buckets: Annotated[tuple[Bucket, ...], msgspec.Meta(max_length=BUCKETS_MAX)] = ()
    learnt: Learnt = Learnt()
    keeps: Peaks = ()
    """How many replicas were worth keeping in the last minutes."""
    lows: Peaks = ()
    """The fewest that were wanted in the last hour: changes are measured from there."""
    sustained: Above0 = 1.0
    """What replicas really sustain ÷ what the profile says."""
    price: Above0 = 1.0
    """What the fair price of a miss has been multiplied with, for what really missed."""
    usual_per_s: Finite = 0.0
    """Mean arrival rate of about a day; 0: not known."""
    asked_since_s: Finite | None = None
    """Since when more is wanted than may be had without approval."""
    uses: Annotated[tuple[Amount, ...], msgspec.Meta(max_length=USES_MAX)] = ()
    """Weight and misses by use of the profile's capacity (`scaling.irreducible`)."""
    irreducible: Amount = 0.0
    """Share of requests that miss at any load."""


_DECODER = msgspec.msgpack.Decoder(Memory)
_ENCODER = msgspec.msgpack.Encoder()


def load(data: bytes) -> Memory:
    """The memory in ``data``, or an empty one where it is absent, too large, of another version, or ill."""
    if not data or len(data) > MEMORY_BYTES_MAX:
        return Memory()
    try:
        memory = _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return Memory()
    return memory if memory.version == VERSION else Memory()


def dump(memory: Memory) -> bytes:
    """At most MEMORY_BYTES_MAX bytes: every part of a Memory is bounded."""
    return _ENCODER.encode(memory)


def proved(memory: Memory) -> Memory:
    """What reading ``memory`` back would give, where all but the numbers that are learned was read or written within its bounds."""
    learnt, forecast = memory.learnt, memory.learnt.forecast
    learnt = msgspec.structs.replace(
        learnt,
        spread=b"",
        drift=b"",
        fair=b"",
        expected=learnt.expected[-1:],
        forecast=None if forecast is None else msgspec.structs.replace(forecast, state=b""),
    )
    numbers = msgspec.structs.replace(memory, buckets=(), keeps=(), lows=(), learnt=learnt)
    return Memory() if load(dump(numbers)).now_s is None else memory


def shifted(memory: Memory, by_s: float) -> Memory:
    """The same memory with every time moved by ``by_s``: the world clock was set anew under it."""

    def move(at_s: float | None) -> float | None:
        return None if at_s is None else at_s + by_s

    return msgspec.structs.replace(
        memory,
        now_s=move(memory.now_s),
        waiting=Held(move(memory.waiting.since_s), memory.waiting.blind),
        calm=Held(move(memory.calm.since_s), memory.calm.blind),
        breach=Held(move(memory.breach.since_s), memory.breach.blind),
        exhausted_since_s=move(memory.exhausted_since_s),
        unknown_since_s={key: at_s + by_s for key, at_s in memory.unknown_since_s.items()},
        ready_rose_s=move(memory.ready_rose_s),
        stepped_s=move(memory.stepped_s),
        rose_s=move(memory.rose_s),
        buckets=tuple(msgspec.structs.replace(bucket, start_s=bucket.start_s + by_s) for bucket in memory.buckets),
        learnt=msgspec.structs.replace(
            memory.learnt,
            minute_s=move(memory.learnt.minute_s),
            expected=tuple(msgspec.structs.replace(each, due_s=each.due_s + by_s) for each in memory.learnt.expected),
        ),
        keeps=tuple(Peak(peak.start_s + by_s, peak.replicas) for peak in memory.keeps),
        lows=tuple(Peak(low.start_s + by_s, low.replicas) for low in memory.lows),
        asked_since_s=move(memory.asked_since_s),
    )


def rebased(memory: Memory, now_s: float, wall_s: float) -> Memory:
    """``memory`` on the clock that ``now_s`` is of.

    A restarted process may count world seconds from zero again. That shows as time running backwards, or as a wall
    clock that went much further than the world clock; the wall clock then says how long ago the last decision was.
    """
    if memory.now_s is None:
        return memory
    elapsed_s = now_s - memory.now_s
    wall_elapsed_s = wall_s - memory.wall_s
    if elapsed_s >= 0 and not wall_elapsed_s > elapsed_s + CLOCK_STEP_S:
        return memory
    away_s = max(0.0, wall_elapsed_s) if math.isfinite(wall_elapsed_s) else 0.0
    return shifted(memory, now_s - away_s - memory.now_s)


def held(before: Held, holds: bool | None, now_s: float, elapsed_s: float, unseen_s: float) -> Held:
    """A condition after one more look, at which it ``holds`` or not (None: that can't be told).

    ``elapsed_s`` since the last look, ``unseen_s`` of it unobserved. Time in which nobody could tell is no evidence: it
    is not counted, and does not start the wait anew either. Time between two looks belongs to the earlier one, so
    hysteresis depends on seconds and never on the number of calls.
    """
    if holds is False:
        return NOT_HELD
    if before.since_s is None:
        return Held(now_s if holds else None, holds is None)
    paused_s = elapsed_s if before.blind else unseen_s
    return Held(min(now_s, before.since_s + paused_s), holds is None)


def peaks(before: tuple[Peak, ...], now_s: float, replicas: int, keep_s: float, most: bool) -> tuple[Peak, ...]:
    """``before`` with ``replicas`` seen now: the largest (``most``) or smallest of each of PEAKS_MAX slices of ``keep_s``."""
    slice_s = max(keep_s / PEAKS_MAX, 1e-3)
    since_s, first, until = now_s - keep_s - slice_s, 0, len(before)
    while first < until and before[first].start_s <= since_s:
        first += 1
    while first < until and before[until - 1].start_s > now_s:
        until -= 1
    kept = before[first:until]
    if kept and now_s < kept[-1].start_s + slice_s:
        last = kept[-1]
        if last.replicas < replicas if most else last.replicas > replicas:
            kept = (*kept[:-1], Peak(last.start_s, replicas))
    else:
        kept = (*kept, Peak(now_s, replicas))
    return kept[-PEAKS_MAX - 2 :]
