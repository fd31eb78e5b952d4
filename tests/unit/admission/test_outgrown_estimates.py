"""Answers turn out longer than they were estimated: what was started is known by the old estimate, and what waits by the new one."""

import pytest

from forebay.admission.effects import Dispatch, Refuse
from forebay.admission.foresight import LOOK_EVERY_S
from forebay.admission.machine import Admission
from forebay.admission.outcomes import Refusal
from forebay.admission.pace import Pace
from forebay.domain.roster import Capacity, Posture, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

TIERS = (Tier("interactive", 0, 2, 60), Tier("batch", 1, 60, 86_400, preemptible=True))
SLOTS, TAKES_S, PROMPT, LONG = 8, 40.0, 20, 2_000
ROOM = Capacity(1_000_000, SLOTS, 16_384, 1.0, 100_000.0, 8_192)


class Overnight:
    """Each request of a stretch of batch takes TAKES_S, its tokens as long as LONG. The estimate is ``told`` when it arrives."""

    def __init__(self) -> None:
        self.pool = Admission("chat", TIERS, 10_000)
        self.pool.set_roster(RosterPool("chat", (RosterReplica("a", "http://a", ROOM),), Posture.OPEN, None), 0.0)
        self.ends: list[tuple[float, int]] = []
        self.started: dict[int, float] = {}
        self.refused: list[tuple[int, Refusal]] = []
        self.tickets = 0

    def take(self, effects, now_s: float) -> None:
        for effect in effects:
            if isinstance(effect, Dispatch):
                self.started[effect.ticket] = now_s
                self.ends.append((now_s + TAKES_S * (0.9 + 0.025 * (effect.ticket % 9)), effect.ticket))
            elif isinstance(effect, Refuse):
                self.refused.append((effect.ticket, effect.why))

    def come(self, count: int, told: int, now_s: float, patience_s: float) -> list[int]:
        new = list(range(self.tickets + 1, self.tickets + count + 1))
        self.tickets += count
        for ticket in new:
            self.take(self.pool.arrive(ticket, "batch", "t", Shape(PROMPT, told, 8_000), now_s, patience_s=patience_s), now_s)
        return new

    def until(self, stop) -> float:
        now_s = 0.0
        while self.ends and not stop():
            self.ends.sort()
            now_s, ticket = self.ends.pop(0)
            self.take(self.pool.finish(ticket, Usage(PROMPT, LONG), now_s), now_s)
            self.take(self.pool.advance(now_s), now_s)
        return now_s


def learned(patience_s: float = 600.0, more: int = 60) -> tuple[Overnight, list[int], float]:
    """Sixty are told to take 256 tokens and take 2,000; as the last of them starts, ``more`` come that are told to take what these did."""
    night = Overnight()
    first = night.come(60, 256, 0.0, float("inf"))
    now_s = night.until(lambda: len(night.started) == len(first))
    return night, night.come(more, LONG, now_s, patience_s), now_s


def test_batch_that_is_served_in_time_is_not_refused_for_the_tokens_that_estimates_have_learned() -> None:
    """22 of 60 were told that they would expire: their own tokens were eight times those in which the pace of the lane was measured."""
    night, new, now_s = learned()
    assert night.refused == []
    night.until(lambda: False)
    assert (night.refused, max(night.started[ticket] for ticket in new) - now_s < 330.0) == ([], True)


def test_what_is_foretold_then_is_about_what_it_takes() -> None:
    """372 s were told where it takes 45."""
    night, new, now_s = learned()
    told = {ticket: night.pool.position(ticket, now_s).starts_in_s for ticket in (new[10], new[-10], new[-1])}
    night.until(lambda: False)
    for ticket, starts_in_s in told.items():
        assert starts_in_s == pytest.approx(night.started[ticket] - now_s, rel=0.3)


def test_who_would_really_be_too_late_is_told_so_all_the_same() -> None:
    """300 take 1,500 s on eight slots: about 120 of them start within their 600 s."""
    night, new, now_s = learned(more=300)
    assert night.refused == [], "not as they come"
    night.take(night.pool.foresee(now_s + LOOK_EVERY_S), now_s + LOOK_EVERY_S)
    assert {why for _, why in night.refused} == {Refusal.WOULD_EXPIRE}
    assert 120 < len(night.refused) < 220
    night.until(lambda: False)
    assert {why for _, why in night.refused[220:]} <= {Refusal.EXPIRED}
    assert 90 < len([ticket for ticket in new if ticket in night.started]) < 130


def test_larger_requests_that_wait_make_no_pace_faster_where_estimates_were_right() -> None:
    pace = Pace()
    assert pace.outgrown(500.0, 4_000.0) == 1.0, "nothing has ended"
    for _ in range(50):
        pace.ended(500, 400)
    assert pace.outgrown(500.0, 4_000.0) == 1.0
    for _ in range(200):
        pace.ended(500, 1_500)
    assert pace.outgrown(500.0, 4_000.0) == pytest.approx(3.0, rel=0.01), "as much as they took more"
    assert (pace.outgrown(500.0, 1_000.0), pace.outgrown(500.0, 400.0)) == (2.0, 1.0), "as far as what waits is estimated so"
