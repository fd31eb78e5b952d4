"""Who expires next, in whatever order they came and left."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.deadlines import STALE_MIN, Deadlines
from forebay.admission.lanes import Lane
from forebay.admission.tickets import Ticket
from forebay.domain.shape import Shape
from forebay.spec.types import DEFAULT_TIERS

LANE = Lane(DEFAULT_TIERS[0], 0, {})


def waits(seq: int, deadline_s: float) -> Ticket:
    """One that waits until then."""
    ticket = Ticket(seq, LANE, LANE.order.account("t"), Shape(1, 1), 0.0, deadline_s)
    ticket.queued_seq = seq
    return ticket


@given(st.lists(st.one_of(st.integers(0, 9).map(float), st.integers(0, 40)), max_size=80))
def test_first_is_the_earliest_deadline_that_waits(steps: list[Any]) -> None:
    deadlines, waiting, seq = Deadlines(), {}, 0
    for step in steps:
        if isinstance(step, float):
            seq += 1
            waiting[seq] = waits(seq, step)
            deadlines.add(waiting[seq])
        elif waiting:
            gone = sorted(waiting)[step % len(waiting)]
            deadlines.remove(waiting.pop(gone))
        expected = min(waiting.values(), key=lambda one: (one.deadline_s, one.queued_seq), default=None)
        assert deadlines.first() is expected
        assert {id(one) for one in deadlines.live()} == {id(one) for one in waiting.values()}


def test_what_left_behind_one_that_stays_does_not_pile_up() -> None:
    deadlines = Deadlines()
    deadlines.add(waits(1, 0.0))
    for seq in range(2, 20 * STALE_MIN):
        gone = waits(seq, float(seq % 7))
        deadlines.add(gone)
        deadlines.remove(gone)
    assert len(deadlines.live()) + len(deadlines._heap) <= 2 * STALE_MIN + 2


def test_who_left_knows_no_neighbour_any_more() -> None:
    """Else whatever left would keep all that came after it."""
    deadlines, tickets = Deadlines(), [waits(seq, float(seq)) for seq in range(1, 6)]
    for ticket in tickets:
        deadlines.add(ticket)
    for gone in (2, 0, 4, 1, 3):
        deadlines.remove(tickets[gone])
        assert tickets[gone].sooner is None
        assert tickets[gone].later is None
    assert deadlines.first() is None
    assert deadlines.oldest() is None
