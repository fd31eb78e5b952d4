"""Who of one lane goes next: among teams by a virtual token counter, within a team by deadline with the late behind.

Each team has a counter of what it was given: uncached prompt tokens when a request starts, `OUTPUT_COST` for each output token
as it is reported, divided by its weight, settled when the usage is known. The team with the smallest counter goes next. A team that
begins to wait starts at ``max(its own, the smallest of those that wait)``, or, where nobody waits, at that of whoever started last:
so neither idleness nor debt is banked by pausing (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

The bound. Over any time in which two teams both wait in a lane, what they were given per weight differs by at most
``2·(P + Q·O) ÷ w``: P the longest uncached prompt, Q `OUTPUT_COST`, O the output tokens that one team's requests in flight **on the
whole fleet** have still to emit when it is chosen last (one gateway owns the queue, so they are all counted here), w the smaller
weight. Two errors add to it: what is in flight is counted as estimated (prompt tokens by the estimate's error and by what was wrongly
foreseen to be cached, until the usage settles it) and as reported (up to a quantum of output per stream is not yet). A request let past
a head that does not fit charges its team a prompt out of turn, at most `pump.SKIPS_MAX` times for one head.

Within a team the first is the one whose TTFT needs it soonest. One that can no longer meet it goes behind those that can, since one
burst would make everybody late otherwise; every `LATE_EVERY`-th start is of a late one while there are any, and its tier's longest wait
ends what can't be served.
"""

import heapq
import math
from bisect import insort
from collections.abc import Mapping
from typing import Final

from forebay.admission.tickets import Ticket

OUTPUT_COST: Final = 2
"""Virtual tokens of one output token: it takes a step of its own, prompts are taken in bulk."""
LATE_EVERY = 8
_ON_TIME_MAX = LATE_EVERY - 1
DEAD_MIN = 64
"""So many dead entries are never worth a sweep."""

_Entry = tuple[float, int, Ticket]
"""When it is late, its queueing number, the ticket. Dead once the ticket's own number is another."""


class Account:
    """One team in one lane: what it was given, and its line in the order of when each will be late."""

    __slots__ = ("_first", "_line", "_since_late", "_split", "counter", "given_tokens", "keyed", "per_weight", "team", "tokens", "waiting")

    def __init__(self, team: str, weight: float) -> None:
        self.team = team
        self.per_weight = 1 / weight
        self.counter = 0.0
        self.given_tokens = 0
        """Virtual tokens, without lifts and weight: what it really was given."""
        self.waiting = 0
        self.tokens = 0
        """Virtual tokens of those that wait."""
        self.keyed = 0.0
        """The counter by which the order knows it."""
        self._line: list[_Entry] = []
        self._first = 0
        """Place of the first that may be alive."""
        self._split = 0
        """Those before it are late."""
        self._since_late = 0

    def add(self, ticket: Ticket) -> None:
        """It waits, by when it will be late."""
        entry = (ticket.late_at_s, ticket.queued_seq, ticket)
        line = self._line
        if not line or entry > line[-1]:
            line.append(entry)
        else:
            if self._split and entry < line[self._split - 1]:
                self._split += 1  # it is late already
            insort(line, entry, lo=self._first)
        self.waiting += 1
        self.tokens += ticket.cost

    def remove(self, ticket: Ticket, now_s: float, *, started: bool) -> None:
        """It waits no more; its ``queued_seq`` is 0 already."""
        self.waiting -= 1
        self.tokens -= ticket.cost
        line, split = self._line, self._split
        if not self.waiting:
            line.clear()
            self._first = self._split = self._since_late = 0
            return
        if split < len(line) and line[split][2] is ticket:  # who goes next is that one, nearly always
            del line[split]
        if started:
            self._since_late = 0 if ticket.late_at_s < now_s or self._first == split else self._since_late + 1
        dead = len(line) - self.waiting
        if dead > DEAD_MIN and dead > self.waiting:
            self._sweep()

    def head(self, now_s: float) -> Ticket:
        """Who goes next; somebody waits."""
        line, split, first = self._line, self._split, self._first
        end = len(line)
        while split < end:
            late_at_s, seq, on_time = line[split]
            if on_time.queued_seq != seq:
                end = self._drop(split)
            elif late_at_s >= now_s:
                break
            else:
                split += 1
        self._split = split
        if first < split:
            _, seq, late = line[first]
            if late.queued_seq != seq:
                late = self._late() or on_time
            if split == end or self._since_late >= _ON_TIME_MAX:
                return late
        return on_time

    def _late(self) -> Ticket | None:
        """The first that is late, after one that is dead; None: nobody is."""
        line, split, first = self._line, self._split, self._first
        while first < split and line[first][2].queued_seq != line[first][1]:
            first += 1
        late = line[first][2] if first < split else None
        if first > DEAD_MIN:  # nothing that ended is kept for long by the line it stood in
            del line[:first]
            self._split, first = split - first, 0
        self._first = first
        return late

    def _drop(self, place: int) -> int:
        """The dead ones there and right after it are gone: they were not late, and stand in nobody's way. How many entries are left."""
        line = self._line
        after = place + 1
        while after < len(line) and line[after][2].queued_seq != line[after][1]:
            after += 1
        del line[place:after]
        return len(line)

    def behind(self, head: Ticket, most: int) -> list[Ticket]:
        """Up to ``most`` of those after ``head``, on time before late."""
        found: list[Ticket] = []
        line = self._line
        for places in (range(self._split, len(line)), range(self._first, self._split)):
            for place in places:
                if len(found) >= most or place - places.start > most + DEAD_MIN:
                    break
                _, seq, ticket = line[place]
                if ticket.queued_seq == seq and ticket is not head:
                    found.append(ticket)
        return found

    def hindmost(self) -> Ticket:
        """Who has longest to go until it is late: the first to be displaced."""
        line = self._line
        while line[-1][2].queued_seq != line[-1][1]:
            line.pop()
        self._split = min(self._split, len(line))
        return line[-1][2]

    def load(self, more_tokens: int = 0) -> float:
        """Virtual tokens that wait, and so many more, per weight."""
        return (self.tokens + more_tokens) * self.per_weight

    def before(self, ticket: Ticket) -> tuple[int, int]:
        """Virtual tokens and requests of its own team that start before ``ticket``, which waits: O(n)."""
        tokens = requests = 0
        for place, (_, seq, other) in enumerate(self._line):
            if other.queued_seq == seq and other is not ticket:
                late, other_late = self._is_late(ticket), place < self._split
                earlier = (other.late_at_s, seq) < (ticket.late_at_s, ticket.queued_seq)
                if other_late < late or (other_late == late and earlier):
                    tokens += other.cost
                    requests += 1
        return tokens, requests

    def standing(self, ticket: Ticket, now_s: float) -> tuple[int, int]:
        """Virtual tokens of its team on time and late: of its own kind those before ``ticket``, which waits; of the other, all. O(n)."""
        on_time = late = 0
        key, is_late = (ticket.late_at_s, ticket.queued_seq), ticket.late_at_s < now_s
        for late_at_s, seq, other in self._line:
            if other.queued_seq == seq:
                other_late = late_at_s < now_s
                if other_late != is_late or (late_at_s, seq) < key:
                    if other_late:
                        late += other.cost
                    else:
                        on_time += other.cost
        return on_time, late

    def _is_late(self, ticket: Ticket) -> bool:
        split = self._split
        return split > 0 and (ticket.late_at_s, ticket.queued_seq) <= self._line[split - 1][:2]

    def live(self) -> list[Ticket]:
        """All that wait, by when they are late."""
        return [ticket for _, seq, ticket in self._line if ticket.queued_seq == seq]

    def in_order(self, most: int) -> tuple[list[Ticket], list[Ticket]]:
        """Up to ``most`` of those that are on time, and of those that are late, each as they start."""
        line, split = self._line, self._split
        on_time = [ticket for _, seq, ticket in line[split : split + most] if ticket.queued_seq == seq]
        return on_time, [ticket for _, seq, ticket in line[self._first : min(split, self._first + most)] if ticket.queued_seq == seq]

    def _sweep(self) -> None:
        line = self._line
        self._split = sum(ticket.queued_seq == seq for _, seq, ticket in line[: self._split])
        self._line = [entry for entry in line if entry[2].queued_seq == entry[1]]
        self._first = 0


class FairOrder:
    """The teams of one lane."""

    __slots__ = ("_heap", "_pushes", "_returned", "_weights", "accounts", "last")

    def __init__(self, weights: dict[str, float]) -> None:
        """``weights``: of each team; 1 for others. Teams come from the spec, so their number is bounded by it."""
        self.accounts: dict[str, Account] = {}
        self._weights = weights
        self._heap: list[tuple[float, int, Account]] = []
        """(counter, push number, team); a counter that has grown since is found out at the top."""
        self._pushes = 0
        self.last: Account | None = None
        """Whose request left the lane last."""
        self._returned: list[Ticket] = []
        """Those that had been started and came back, the last one first to go: their team was charged for them already."""

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """What teams are given counts by these weights from now on."""
        self._weights = dict(weights)
        for account in self.accounts.values():
            account.per_weight = 1 / self._weights.get(account.team, 1.0)

    def account(self, team: str) -> Account:
        """Of ``team``, made if need be."""
        account = self.accounts.get(team)
        if account is None:
            account = self.accounts[team] = Account(team, self._weights.get(team, 1.0))
        return account

    def add(self, ticket: Ticket) -> None:
        """A new arrival waits."""
        account = ticket.account
        if not account.waiting:
            self._lift(account)
            self._push(account)
        account.add(ticket)

    def put_back(self, ticket: Ticket) -> None:
        """One that was started and came back goes first."""
        self._returned.append(ticket)

    def remove(self, ticket: Ticket, now_s: float, *, started: bool) -> None:
        """It waits no more."""
        returned = self._returned
        if returned and ticket in returned:
            returned.remove(ticket)
            return
        account = ticket.account
        account.remove(ticket, now_s, started=started)
        if started:
            self.last = account

    def starts(self, account: Account) -> None:
        """A request of this team starts without having waited: as if it had waited for no time."""
        last = self.last
        if last is not account:
            self._lift(account)
            self.last = account

    def charge(self, ticket: Ticket, tokens: int) -> None:
        """What ``ticket`` was given is ``tokens`` virtual tokens by now: its team is charged the difference to what it was before."""
        more = tokens - ticket.charged_tokens
        ticket.charged_tokens = tokens
        account = ticket.account
        account.given_tokens += more
        account.counter += more * account.per_weight
        if more < 0 and account.waiting:
            self._push(account)

    def head(self, now_s: float) -> Ticket:
        """Who goes next; somebody waits."""
        if self._returned:
            return self._returned[-1]
        heap = self._heap
        key, _, smallest = heap[0]
        if len(heap) > 1 and (key != smallest.counter or key != smallest.keyed or not smallest.waiting):
            found = self._smallest()
            assert found is not None
            smallest = found
        return smallest.head(now_s)

    def behind(self, head: Ticket, now_s: float, most: int, *, deep: bool = False) -> list[Ticket]:
        """Up to ``most`` of those after ``head``: those that came back, the first of each other team, then more of the first team's.

        ``deep``: then more of the others', too.
        """
        found = [ticket for ticket in reversed(self._returned) if ticket is not head][:most]
        if len(found) < most and self._heap:
            waiting = [(account.counter, account.team, account) for account in self.accounts.values() if account.waiting]
            teams = heapq.nsmallest(most, waiting)
            found += [first for _, _, account in teams if (first := account.head(now_s)) is not head][: most - len(found)]
            for _, _, account in teams if deep else teams[:1]:
                if len(found) < most:
                    found += account.behind(account.head(now_s), most - len(found))
        return found

    def hindmost(self) -> Ticket:
        """The first to be displaced: of the team with most waiting for its weight, who has longest to go. Those that came back go last."""
        most = max(
            (account for account in self.accounts.values() if account.waiting),
            key=Account.load,
            default=None,
        )
        return self._returned[0] if most is None else most.hindmost()

    def live(self) -> list[Ticket]:
        """All that wait (for checks)."""
        return self._returned[::-1] + [ticket for account in self.accounts.values() for ticket in account.live()]

    def check(self) -> None:
        """Raises AssertionError unless every team that waits can be found, and its sums are those of its line."""
        known = {id(account) for key, _, account in self._heap if key == account.keyed}
        for account in self.accounts.values():
            live = account.live()
            assert account.waiting == len(live), f"{account.team}: {account.waiting} wait, {len(live)} are in line"
            assert account.tokens == sum(ticket.cost for ticket in live), f"{account.team}: virtual tokens leaked"
            assert not live or id(account) in known, f"{account.team}: waits and is not known to"
            assert account.keyed <= account.counter or not live, f"{account.team}: known by more than it was given"
        assert all(ticket.queued_seq and ticket.returned for ticket in self._returned), "one that came back is elsewhere"

    def ahead(self, account: Account, own_tokens: int) -> tuple[float, float]:
        """Virtual tokens and requests that start before a team's request which has ``own_tokens`` of its team before it.

        Those, what came back, and of each other team what it gets until the counters meet.
        """
        level = account.counter
        if not account.waiting:
            level = max(level, min((one.counter for one in self.accounts.values() if one.waiting), default=level))
        level += own_tokens * account.per_weight
        tokens = float(own_tokens) + sum(ticket.cost for ticket in self._returned)
        requests = float(len(self._returned))
        for other in self.accounts.values():
            if other is not account and other.waiting and other.counter < level:
                before = min(float(other.tokens), (level - other.counter) / other.per_weight)
                tokens += before
                requests += math.ceil(other.waiting * before / other.tokens) if other.tokens else 0
        return tokens, requests

    def before(self, ticket: Ticket) -> tuple[float, float]:
        """Virtual tokens and requests of this lane that start before ``ticket``, which waits."""
        if ticket.returned:
            first = self._returned[self._returned.index(ticket) + 1 :]
            return sum(one.cost for one in first), len(first)
        own_tokens, own_requests = ticket.account.before(ticket)
        tokens, requests = self.ahead(ticket.account, own_tokens)
        return tokens, requests + own_requests

    def _lift(self, account: Account) -> None:
        """Up to the smallest counter of those that wait, or to that of whoever left last."""
        smallest = self._smallest() if self._heap else None
        least = smallest or self.last
        if least is not None and account.counter < least.counter:
            account.counter = least.counter

    def _push(self, account: Account) -> None:
        heap = self._heap
        if len(heap) == 1 and heap[0][2] is account:
            heap.clear()  # alone it is found by any counter, and need not be known by two
        if len(heap) > 2 * len(self.accounts) + DEAD_MIN:
            heap = self._heap = []
            for one in self.accounts.values():
                if one.waiting and one is not account:
                    one.keyed = one.counter
                    heap.append((one.counter, self._pushes, one))
                    self._pushes += 1
            heapq.heapify(heap)
        account.keyed = account.counter
        self._pushes += 1
        heapq.heappush(heap, (account.counter, self._pushes, account))

    def _smallest(self) -> Account | None:
        """The team that waits with the smallest counter; None if no team does."""
        heap = self._heap
        while heap:
            key, _, account = heap[0]
            if key != account.keyed or not account.waiting:
                heapq.heappop(heap)
            elif key == account.counter:
                return account
            else:
                account.keyed = account.counter
                self._pushes += 1
                heapq.heapreplace(heap, (account.counter, self._pushes, account))
        return None
