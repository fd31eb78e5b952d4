"""The lines that requests wait in, beside plain ones that look at everybody each time: the same is next, expires first and is oldest."""

import hypothesis.strategies as st
from hypothesis import given

from forebay.admission.deadlines import Deadlines
from forebay.admission.fairness import LATE_EVERY, Account
from forebay.admission.lanes import Lane
from forebay.admission.tickets import Ticket
from forebay.domain.shape import Shape
from forebay.spec.types import Tier

STEPS = st.lists(st.tuples(st.sampled_from(["join", "join", "start", "start", "leave", "wait"]), st.integers(0, 12)), max_size=150)


class PlainLine:
    """What one team has in line: on time by when it will be late, and every so often one that is late already."""

    def __init__(self) -> None:
        self.waiting: list[Ticket] = []
        self.since_late = 0

    def head(self, now_s: float) -> Ticket:
        ordered = sorted(self.waiting, key=lambda ticket: (ticket.late_at_s, ticket.queued_seq))
        late = [ticket for ticket in ordered if ticket.late_at_s < now_s]
        on_time = ordered[len(late) :]
        return late[0] if late and (not on_time or self.since_late >= LATE_EVERY - 1) else on_time[0]

    def start(self, ticket: Ticket, now_s: float) -> None:
        others_late = any(one.late_at_s < now_s for one in self.waiting)
        self.since_late = 0 if ticket.late_at_s < now_s or not others_late else self.since_late + 1
        self.waiting.remove(ticket)
        self.since_late *= bool(self.waiting)


def queued(seq: int, late_at_s: float, deadline_s: float, account: Account) -> Ticket:
    ticket = Ticket(seq, Lane(Tier("only", 0, 1.0, 30.0), 0, {}), account, Shape(10, 10), 0.0)
    ticket.queued_seq, ticket.late_at_s, ticket.deadline_s = seq, late_at_s, deadline_s
    return ticket


@given(STEPS)
def test_who_goes_next_of_a_team_is_whom_a_look_at_all_of_them_finds(steps: list[tuple[str, int]]) -> None:
    account, plain, now_s = Account("t", 1.0), PlainLine(), 0.0
    for seq, (what, size) in enumerate(steps, 1):
        if what == "wait":
            now_s += size
        elif what == "join":
            ticket = queued(seq, now_s + size, now_s, account)
            account.add(ticket)
            plain.waiting.append(ticket)
        elif plain.waiting:
            started = what == "start"
            ticket = account.head(now_s) if started else plain.waiting[size % len(plain.waiting)]
            if started:
                assert ticket is plain.head(now_s)
                plain.start(ticket, now_s)
            else:
                plain.waiting.remove(ticket)
                plain.since_late *= bool(plain.waiting)
            ticket.queued_seq = 0
            account.remove(ticket, now_s, started=started)
        if plain.waiting:
            assert account.head(now_s) is plain.head(now_s)
        assert sorted(map(id, account.live())) == sorted(map(id, plain.waiting))


@given(STEPS)
def test_who_expires_first_and_who_is_oldest(steps: list[tuple[str, int]]) -> None:
    deadlines, waiting, account, now_s = Deadlines(), dict[int, Ticket](), Account("t", 1.0), 0.0
    for seq, (what, size) in enumerate(steps, 1):
        if what == "wait":
            now_s += size
        elif what == "join":
            waiting[seq] = queued(seq, now_s, now_s + size, account)
            deadlines.add(waiting[seq])
        elif waiting:
            gone = list(waiting)[size % len(waiting) if what == "leave" else 0]
            deadlines.remove(waiting.pop(gone))
        assert deadlines.first() is min(waiting.values(), key=lambda one: (one.deadline_s, one.queued_seq), default=None)
        assert deadlines.oldest() is (waiting[min(waiting)] if waiting else None)
        assert {ticket.id for ticket in deadlines.live()} == set(waiting)


def test_one_that_came_on_time_is_not_taken_for_late_because_of_one_that_left() -> None:
    account = Account("t", 1.0)
    tickets = [queued(seq, late_at_s, 30.0, account) for seq, late_at_s in ((1, 1.0), (2, 5.0), (3, 6.0))]
    for ticket in tickets:
        account.add(ticket)
    for gone, started in ((tickets[1], False), (tickets[0], True)):
        gone.queued_seq = 0
        account.remove(gone, 0.0, started=started)
        assert account.head(0.5) is tickets[0 if gone is tickets[1] else 2]
    sooner = queued(4, 4.0, 30.0, account)
    account.add(sooner)
    assert account.head(0.6) is sooner
