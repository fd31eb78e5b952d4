"""How much KV may be booked on a replica, corrected by what its engine says that it holds.

Tokens are booked by estimate (body bytes ÷ a ratio, the profile's KV tokens), and held by the engine in blocks, with overheads of its own.
What it holds ÷ what was booked is its *ratio*; the budget is the KV tokens ÷ that ratio. What is booked is only known within bounds:
a prompt may not be prefilled yet, or share its beginning with another's; an answer that comes whole tells nothing of its growth. So the
ratio is moved, slowly, to the nearest one that would explain the reading, and not at all where the present one does. Only readings
in which tokens advanced count. Preemptions, which say that the estimates of what is still to come are short, brake on top.
"""

import math
from collections.abc import Iterable

import msgspec

from forebay.admission.tickets import Ticket
from forebay.domain.signal import Known, Signal

RATIO_MIN = 0.85
"""Engines are never booked fuller than by this, whatever they say: a wrong reading must not overfill them."""
RATIO_MAX = 2.0
RATIO_TAU_S = 60.0
"""Time constant of the ratio, in seconds of readings that count…"""
RATIO_TAU_S_START = 5.0
"""…once there are as many of them: until then it is the mean of all, with this weight for what it began with."""
GAP_S_MAX = 5.0
"""Two readings further apart than this count as if they were not: after an outage the ratio does not jump."""
BOOKED_SHARE_MIN = 0.15
"""Of the KV tokens, at least so much must be booked: a nearly empty engine says little of a full one."""
BRAKE_STEP = 0.03
"""Of the budget, taken for each reading in which the engine has preempted…"""
BRAKE_MAX = 0.3
BRAKE_TAU_S = 1200.0
"""…and given back as slowly as this."""
UNREPORTED_TOKENS = 32
"""A stream is reported in steps of so many tokens: its engine may hold as many more."""
TOLD_STEP = 0.02
"""The budget is told anew once it differs by so much from what was told: a roster is not a new one each second."""


class Booked(msgspec.Struct, frozen=True):
    """What gateways have booked on one replica: at least ``least_tokens`` should be held by its engine, at most ``most_tokens``."""

    least_tokens: float
    most_tokens: float


def booked(permits: Iterable[Ticket], beside_tokens: int = 0) -> tuple[int, int]:
    """KV tokens that the engine of these ``permits`` holds for them: at least, and at most, if all estimates are right.

    ``beside_tokens``: what several hold, counted once (`sharing`). An engine that holds more than that lets the ratio rise.
    """
    least, most = 0, beside_tokens
    for ticket in permits:
        prompt = ticket.prompt - ticket.beside
        if ticket.whole:  # nothing tells how far it is
            most += prompt + ticket.expected
        elif ticket.outstanding:
            most += prompt
        else:
            shared = ticket.spared if ticket.spared > ticket.met else ticket.met
            if shared and ticket.prefix is not None:  # and what it goes on with may be the same for a part of a block
                shared = min(ticket.prompt, shared + ticket.prefix.block_tokens)
            least += ticket.prompt + ticket.emitted - shared
            most += prompt + ticket.emitted + UNREPORTED_TOKENS * ticket.sequences
    return least, most


class Correction:
    """Of one replica. Times are world seconds; readings are those of one scrape."""

    __slots__ = ("_generated", "_preemptions", "_read_s", "_seen_s", "_told", "brake", "preemptions_total", "ratio")

    def __init__(self, ratio: float = 1.0) -> None:
        """``ratio``: what to begin with, such as the pool's other replicas have."""
        self.ratio = min(RATIO_MAX, max(RATIO_MIN, ratio)) if math.isfinite(ratio) else 1.0
        self.brake = 0.0
        """Share of the budget that is held back for preemptions."""
        self.preemptions_total = 0
        """Seen since this began: a restarted engine counts from zero, this does not."""
        self._generated = math.nan
        self._preemptions = math.nan
        self._read_s = -math.inf
        self._seen_s = RATIO_TAU_S_START
        self._told = self.share

    @property
    def share(self) -> float:
        """Of the KV tokens, what may be booked; above 1 where less is held than was booked."""
        return (1.0 - self.brake) / self.ratio

    def take(self, kv_usage: Signal, generated: Signal, preemptions: Signal, booked: Booked | None, kv_tokens: int) -> None:
        """One scrape: ``kv_usage`` as a fraction of what the engine has, the two counters as totals.

        ``booked`` None: not known, as while a gateway is silent. ``kv_tokens``: what the budget is made of, before correction.
        What is Unknown, no number, or older than the last reading changes nothing.
        """
        if not isinstance(generated, Known) or not math.isfinite(generated.value) or generated.at_s <= self._read_s:
            return
        passed_s = min(GAP_S_MAX, generated.at_s - self._read_s)
        before, self._generated, self._read_s = self._generated, generated.value, generated.at_s
        self._brake(preemptions, passed_s)
        if not generated.value > before or booked is None or not isinstance(kv_usage, Known) or not 0.0 < kv_usage.value <= 1.0:
            return
        if kv_usage.at_s != generated.at_s or not booked.most_tokens >= BOOKED_SHARE_MIN * kv_tokens:
            return
        held_tokens = kv_usage.value * kv_tokens
        lowest = held_tokens / booked.most_tokens
        highest = held_tokens / booked.least_tokens if booked.least_tokens > 0 else math.inf
        aim = min(RATIO_MAX, max(RATIO_MIN, min(highest, max(lowest, self.ratio))))
        self._seen_s = min(RATIO_TAU_S, self._seen_s + passed_s)
        self.ratio += passed_s / self._seen_s * (aim - self.ratio)

    def budget_tokens(self, kv_tokens: int) -> int:
        """KV tokens that may be booked, in steps."""
        share = self.share
        if abs(share - self._told) >= TOLD_STEP * self._told:
            self._told = share
        return max(1, round(kv_tokens * self._told))

    def _brake(self, preemptions: Signal, passed_s: float) -> None:
        self.brake *= math.exp(-passed_s / BRAKE_TAU_S)
        if not isinstance(preemptions, Known) or not math.isfinite(preemptions.value):
            return
        more = preemptions.value - self._preemptions
        self._preemptions = preemptions.value
        if more > 0:  # NaN at first, and less after a restart: neither says that it preempted
            self.preemptions_total += int(more)
            self.brake = min(BRAKE_MAX, self.brake + BRAKE_STEP)
