"""The replicas of one pool as the last roster gave them, with those that left it and still have permits.

A roster is the whole truth about who may get new permits; permits that were given are the gateway's own truth, and
outlive the roster they were given under.

A request that is not preemptible goes where its first token is foreseen soonest; others go where there is most room, at a moment at which
enough is left clear (`reserve`).

A request whose prompt begins as one before it goes where that was sent, if that saves more prefill than waits there, and only within
`LOAD_BOUND` of the load it would go to otherwise: a beginning that everybody shares fills no replica before the others.
"""

import math
from collections.abc import Collection
from operator import attrgetter
from typing import Final

from forebay.admission.budget import Replica, could_ever_fit
from forebay.admission.outcomes import Refusal
from forebay.admission.prefixes import Prefix, PrefixIndex
from forebay.admission.prior import Served
from forebay.admission.reserve import AGAIN_S_MIN, Reserve
from forebay.admission.sums import check_sums
from forebay.admission.tickets import Ticket
from forebay.domain.roster import Capacity, Posture, ReplicaLoad, RosterPool
from forebay.domain.shape import Usage

LOAD_BOUND: Final = 0.25
"""Share of the fuller of KV and slots by which a replica may be above the least loaded and still be preferred for what it has cached."""
CROWDED: Final = 0.9
"""From this share of its KV on a replica may have no place for one more small request, since estimates err."""
_RANK: Final = attrgetter("rank")


class Cached:
    """How well it was foreseen what is cached, over the finished requests for which it was."""

    __slots__ = ("cached_tokens", "foreseen_tokens")

    def __init__(self) -> None:
        self.foreseen_tokens = 0
        self.cached_tokens = 0
        """As engines told; some never do."""


class Replicas:
    """Who may be chosen, and what is expected."""

    def __init__(self) -> None:
        self.listed: list[Replica] = []
        """In roster order; only these get new permits."""
        self.posture = Posture.OPEN
        self.ready_at_s: float | None = None
        """World time at which the next replica is expected; None if none is."""
        self.barren_since_s: float | None = float("-inf")
        """Since when there has been no replica and none expected; None while there is one."""
        self._known: dict[str, Replica] = {}
        self._capacities: frozenset[Capacity] = frozenset()
        self._everywhere = (0, 0, 0)
        """Tokens in all, tokens of one sequence, and sequences that each of them can hold while it is empty."""
        self.chosen_seq = 0
        """Counts the choices."""
        self.prefill_tokens_per_s = 0.0
        """Of the fastest replica; 0: unknown."""
        self.sequence_tokens_per_s = 0.0
        """Output tokens per second of one sequence on a full replica, the fastest; 0: unknown."""
        self.courteous = False
        """Preemptible work leaves a reserve for others."""
        self.wanting: list[Replica] = []
        """Replicas that refused somebody for want of prefill tokens since something was freed on them."""
        self.held: dict[Replica, None] = {}
        """Replicas on which preemptible work would fit, and waits for a better moment…"""
        self._held_at_s = -math.inf
        """…as of this time…"""
        self.moment_s = math.inf
        """…and while there are any, when the first of these moments is foreseen to come."""
        self.reserve = Reserve()
        self.risked: Replica | None = None
        """Where preemptible work was started last, while that may not have begun."""
        self._unweighed: list[Replica] = []
        """Replicas whose rank is not that of their permits now: where there is no choice, nobody weighs."""
        self.prefixes = PrefixIndex()
        """What was sent to the listed ones."""
        self.cached = Cached()
        self.served = Served()

    def take(self, roster: RosterPool, now_s: float) -> None:
        """Use this roster from now on. A replica that left keeps its permits until they end; one that comes back counts them."""
        listed = {replica.id: replica for replica in roster.replicas}
        for known in list(self._known.values()):
            if known.id not in listed:
                known.listed = False
                self.prefixes.drop(known.id)
                self.forget_if_idle(known)
        for replica_id, replica in listed.items():
            known_one = self._known.get(replica_id)
            if known_one is None:
                self._known[replica_id] = Replica(replica, self._unweighed, self.wanting)
            else:
                if known_one.url != replica.url:  # another process under the same name
                    self.prefixes.drop(replica_id)
                known_one.use(replica)
        self.listed = [self._known[replica_id] for replica_id in listed]
        self._capacities = frozenset(replica.capacity for replica in listed.values())
        sizes = [(one.kv_tokens, one.context_tokens, one.sequences) for one in self._capacities] or [(0, 0, 0)]
        self._everywhere = (min(one[0] for one in sizes), min(one[1] for one in sizes), min(one[2] for one in sizes))
        self.prefill_tokens_per_s = max((capacity.prefill_tokens_per_s for capacity in self._capacities), default=0.0)
        self.sequence_tokens_per_s = max(
            (capacity.decode_tokens_per_s / capacity.sequences for capacity in self._capacities if capacity.sequences), default=0.0
        )
        self.be_courteous(self.courteous)
        self.held.clear()
        self.posture = roster.posture
        expected_s = roster.next_ready_in_s
        self.ready_at_s = None if expected_s is None else now_s + expected_s
        if self.listed or expected_s is not None:
            self.barren_since_s = None
        elif self.barren_since_s is None:
            self.barren_since_s = now_s

    def be_courteous(self, courteous: bool) -> None:
        """From now on preemptible work leaves a reserve, or doesn't."""
        self.courteous = courteous
        for replica in self.listed:
            replica.courteous = courteous

    def prefill_s(self, ticket: Ticket) -> float:
        """How long its prompt takes alone on the fastest replica; 0 where that is unknown."""
        return ticket.uncached / self.prefill_tokens_per_s if self.prefill_tokens_per_s > 0 else 0.0

    def decode_s(self, ticket: Ticket) -> float:
        """How long its answer takes on a full replica; 0 where that is unknown."""
        return ticket.output / ticket.sequences / self.sequence_tokens_per_s if self.sequence_tokens_per_s > 0 else 0.0

    def last_start_s(self, ticket: Ticket, since_s: float) -> float:
        """Until when to start it for a client that reads nothing from ``since_s`` on, until its answer or the next token comes."""
        if ticket.patience_s == math.inf:
            return math.inf
        return since_s + ticket.patience_s - self.prefill_s(ticket) - (self.decode_s(ticket) if ticket.whole else 0.0)

    def by_load(self) -> list[Replica]:
        """All that may be chosen, the least loaded first."""
        unweighed = self._unweighed
        while unweighed:
            unweighed.pop().weigh()
        return sorted(self.listed, key=_RANK)

    def roomiest(self, ticket: Ticket, skipped: Collection[Replica] = ()) -> Replica | None:
        """The least loaded of those that could hold ``ticket`` if they were empty, but for ``skipped``; None: there is none."""
        for replica in self.by_load() if not ticket.only else self.of(ticket):
            if replica.id not in ticket.excluded and replica not in skipped and could_ever_fit(replica.capacity, ticket):
                return replica
        return None

    def choose(self, ticket: Ticket, candidates: Collection[Replica], now_s: float, *, by_prefix: bool = True) -> Replica | None:
        """Of ``candidates`` where it fits, the one with the soonest first token, or for preemptible work the least loaded; or None.

        The least loaded has most of its tightest budget free. Among equals: the one with the fewest streams, then the one chosen longest
        ago, so that equal replicas share. ``by_prefix``: one that has its prompt's beginning goes before, where its first token comes
        sooner there and it is not much more loaded.
        """
        if ticket.only:
            return self._there(ticket, candidates, now_s)
        if by_prefix and ticket.prefix is not None:
            return self._nearest(ticket, candidates, now_s)
        if ticket.lane.preemptible:
            return self._least_loaded(ticket, candidates, now_s)
        if len(candidates) > 1:
            return self._soonest(ticket, candidates, now_s)
        for only in candidates:
            return only if only.listed and only.id not in ticket.excluded and only.fits(ticket) else None
        return None

    def of(self, ticket: Ticket) -> list[Replica]:
        """The only one that can serve ``ticket``, if it may be chosen."""
        replica = self._known.get(ticket.only)
        return [replica] if replica is not None and replica.listed else []

    def _there(self, ticket: Ticket, candidates: Collection[Replica], now_s: float) -> Replica | None:
        """The only one that can serve it, if that is a candidate, it fits there, and this is a moment for it."""
        for replica in self.of(ticket):
            if replica in candidates and replica.id not in ticket.excluded:
                prefix, cached = ticket.prefix, 0
                if prefix is not None:
                    cached = prefix.cached_tokens(self.prefixes.depth(prefix.chain, replica.id), ticket.uncached)
                if replica.fits(ticket, cached) and self._spares(replica, ticket, now_s):
                    return replica
        return None

    def _least_loaded(self, ticket: Ticket, candidates: Collection[Replica], now_s: float) -> Replica | None:
        """Of those where it fits, and where this is a moment for it."""
        excluded = ticket.excluded
        if len(candidates) == 1:
            first: Replica | None = next(iter(candidates))
        else:
            unweighed = self._unweighed
            while unweighed:
                unweighed.pop().weigh()
            first = min(candidates, key=_RANK, default=None)
        if first is None or (first.listed and first.id not in excluded and first.fits(ticket) and self._spares(first, ticket, now_s)):
            return first
        best: Replica | None = None
        for replica in candidates:
            if best is not None and replica.rank >= best.rank:
                continue
            if replica is first or not replica.listed or replica.id in excluded:
                continue
            if replica.fits(ticket) and self._spares(replica, ticket, now_s):
                best = replica
        return best

    def _soonest(self, ticket: Ticket, candidates: Collection[Replica], now_s: float) -> Replica | None:
        """Where the wait for prompts sent before, and a little for how full it is, is least; among equals as by rank."""
        unweighed = self._unweighed
        while unweighed:
            unweighed.pop().weigh()
        first: Replica | None = None
        soonest_s = math.inf
        for replica in candidates:
            first_s = replica.loaded_s
            if replica.prefill_tokens and replica.horizon_s > now_s:
                first_s += replica.yields_in_s(now_s) if replica.young else replica.horizon_s - now_s
            if first_s < soonest_s or (first_s == soonest_s and first is not None and replica.rank < first.rank):
                first, soonest_s = replica, first_s
        excluded = ticket.excluded
        if first is None or (first.listed and first.id not in excluded and first.fits(ticket)):
            return first
        for replica in sorted(candidates, key=lambda one: (one.loaded_s + one.yields_in_s(now_s), one.rank)):
            if replica is not first and replica.listed and replica.id not in excluded and replica.fits(ticket):
                return replica
        return None

    def _spares(self, replica: Replica, ticket: Ticket, now_s: float) -> bool:
        """Whether this is a moment for ``ticket``, which fits on ``replica``. If not, prompts prefilled elsewhere are news, as is time."""
        lane = ticket.lane
        if not lane.preemptible or not self.courteous or lane.owed_tokens > 0:
            return True
        held = self.held
        if replica in held and self._held_at_s == now_s:
            return False
        moment_s = self.reserve.moment_s(replica, self.listed, self.prefill_tokens_per_s, now_s)
        if moment_s <= now_s:
            return True
        moment_s = max(moment_s, now_s + AGAIN_S_MIN)
        if not held or moment_s < self.moment_s:
            self.moment_s = moment_s
        held[replica] = None
        self._held_at_s = now_s
        for other in self.listed:
            if other.prefill_tokens:
                other.want_prefill()
        return False

    def regrets(self, now_s: float) -> Replica | None:
        """Where preemptible work was started last, if no other replica is clear any more, and something there has not begun."""
        risked = self.risked
        if risked is None:
            return None
        if not risked.listed or not risked.young.unbegun(now_s, risked.lag_s):
            self.risked = None
            return None
        return risked if self.reserve.leaves_none(risked, self.listed, self.prefill_tokens_per_s, now_s) else None

    def _nearest(self, ticket: Ticket, candidates: Collection[Replica], now_s: float) -> Replica | None:
        """Of the one without regard to prefixes and those that have some of its prompt: where least is prefilled before its first token."""
        best = self.choose(ticket, candidates, now_s, by_prefix=False)
        prefix = ticket.prefix
        if prefix is None or (best is not None and len(candidates) == 1) or not (levels := self.prefixes.levels(prefix.chain)):
            return best
        bits, uncached = self.prefixes.bits, ticket.uncached
        least: float = math.inf
        bound: float = math.inf
        if best is not None:
            bound = best.standing + LOAD_BOUND
            least = float(best.prefill_tokens + uncached - prefix.cached_tokens(_depth(levels, bits.get(best.id, 0)), uncached))
            if least <= uncached - prefix.cached_tokens(levels[0][0], uncached):
                return best  # nowhere is it less
        holders = levels[-1][1]
        for replica in candidates:
            bit = bits.get(replica.id, 0)
            if not bit & holders or replica is best or replica.standing > bound or not replica.listed or replica.id in ticket.excluded:
                continue
            cached = prefix.cached_tokens(_depth(levels, bit), uncached)
            tokens = float(replica.prefill_tokens + uncached - cached)
            better = tokens < least or (tokens == least and best is not None and replica.rank < best.rank)
            if better and replica.fits(ticket, cached) and self._spares(replica, ticket, now_s):
                best, least = replica, tokens
        return best

    def foreseen(self, prefix: Prefix, uncached_tokens: int) -> int:
        """Of so many tokens of a prompt, how many are cached on the replica that has most of them, as far as is known."""
        levels = self.prefixes.levels(prefix.chain)
        return prefix.cached_tokens(levels[0][0], uncached_tokens) if levels else 0

    def sent(self, ticket: Ticket, replica: Replica) -> int:
        """``ticket`` is given a permit there: how many tokens of its prompt are foreseen to be cached. From now on all are."""
        prefix = ticket.prefix
        if prefix is None:
            return 0
        hashes, block_tokens = prefix
        cached = prefix.cached_tokens(self.prefixes.depth(hashes, replica.id), ticket.uncached)
        self.prefixes.sent(replica.id, hashes, replica.capacity.kv_tokens // block_tokens, ticket.id)
        return cached

    def release(self, ticket: Ticket, replica: Replica) -> None:
        """Its permit there ends, and not with the end of its answer: what is not known to be prefilled is not foreseen to be cached."""
        if ticket.outstanding and ticket.prefix is not None:
            self.prefixes.unsent(replica.id, ticket.prefix.chain, ticket.id)
        replica.release(ticket)

    def prefilled_tokens(self, ticket: Ticket, usage: Usage) -> int:
        """Uncached prompt tokens of a finished request: as its engine told, or, while none of the pool has ever told, as foreseen."""
        if not usage.exact:
            return ticket.uncached
        cached_tokens = usage.cached_tokens
        if ticket.prefix is not None:
            if ticket.met and ticket.replica is not None:
                ticket.replica.told(ticket, usage)
            told = self.cached
            told.foreseen_tokens += ticket.spared
            told.cached_tokens += cached_tokens
            if not told.cached_tokens:
                cached_tokens = min(ticket.spared, usage.prompt_tokens)
        return usage.prompt_tokens - cached_tokens

    def hopeless(self, ticket: Ticket) -> Refusal | None:
        """Why no replica of this roster will ever take it, or None. An empty roster says nothing."""
        total, longest, sequences = self._everywhere
        if ticket.total <= total and ticket.longest <= longest and ticket.sequences <= sequences and not (ticket.excluded or ticket.only):
            return None
        if ticket.only:
            return self._hopeless_there(ticket)
        if not self.listed:
            return None
        for capacity in self._capacities:
            if could_ever_fit(capacity, ticket):
                break
        else:
            return Refusal.NEVER_FITS
        if ticket.excluded and not any(
            replica.id not in ticket.excluded and could_ever_fit(replica.capacity, ticket) for replica in self.listed
        ):
            return Refusal.NO_REPLICAS
        return None

    def _hopeless_there(self, ticket: Ticket) -> Refusal | None:
        for replica in self.of(ticket):
            if not could_ever_fit(replica.capacity, ticket):
                return Refusal.NEVER_FITS
            return Refusal.HOLDER_OUT if replica.id in ticket.excluded else None
        return Refusal.HOLDER_OUT

    def forget_if_idle(self, replica: Replica) -> None:
        """A replica that left the roster is dropped with its last permit."""
        if not replica.permits:
            del self._known[replica.id]
            if replica.prefill_wanted:
                self.wanting.remove(replica)

    def crowded(self, replica_id: str, now_s: float) -> tuple[bool, float]:
        """See `books.Books.crowded`."""
        replica = self._known.get(replica_id)
        if replica is None:
            return False, 0.0
        capacity = replica.capacity
        full = replica.sequences >= capacity.sequences or replica.worst_tokens >= CROWDED * capacity.kv_tokens
        return full, replica.clear_in_s(now_s)

    def running(self) -> list[Ticket]:
        """Every ticket that holds a permit."""
        return [ticket for replica in self._known.values() for ticket in replica.permits.values()]

    def load(self) -> tuple[ReplicaLoad, ...]:
        """What is in flight, on replicas that left the roster too."""
        return tuple(replica.reported() for replica in self._known.values())

    def check(self) -> None:
        """Raises AssertionError unless the sums hold and exactly the listed replicas may be chosen."""
        for replica in self._known.values():
            check_sums(replica)
        may_be_chosen = {replica.id for replica in self._known.values() if replica.listed}
        assert may_be_chosen == {replica.id for replica in self.listed}, "the roster and the replicas known differ"
        assert self.prefixes.replicas() <= may_be_chosen, "a replica that left is thought to have something cached"
        self.prefixes.check()
        assert all(self._known[replica.id] is replica for replica in self.listed), "a replica is kept twice"
        told = any(other.prefill_wanted for other in self.listed if other.prefill_tokens)
        assert not self.held or told, "preemptible work waits for prompts to be prefilled, and nobody would tell"


def _depth(levels: list[tuple[int, int]], bit: int) -> int:
    """Blocks that the replica with this bit holds."""
    for depth, bits in levels:
        if bits & bit:
            return depth
    return 0
