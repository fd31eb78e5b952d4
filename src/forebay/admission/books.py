"""The books of an admission machine: what it consists of, and all that can be asked of it without changing it."""

from collections.abc import Callable, Mapping, Sequence

from forebay.admission.candidates import Weighed
from forebay.admission.fairness import Account
from forebay.admission.looks import Position, TeamLoad
from forebay.admission.pump import Pump
from forebay.admission.tickets import Ticket
from forebay.admission.waiting import Waiting
from forebay.admission.waits import position
from forebay.admission.weighing import weighed
from forebay.domain.roster import LaneLoad, ReplicaLoad
from forebay.domain.shape import Shape
from forebay.spec.types import Tier


class Books:
    """Who waits, who runs where, and how many came and ended."""

    def __init__(
        self, pool: str, tiers: Sequence[Tier], queued_max: int, weights: Mapping[str, float], resumable: Callable[[int], int | None] | None
    ) -> None:
        if not tiers:
            raise ValueError(f"pool {pool!r} needs at least one tier")
        self.pool = pool
        self.queued_max = queued_max
        self.arrived_total = self.finished_total = self.refused_total = self.abandoned_total = self.outlived_total = 0
        """Outlived: finished requests whose output was longer than estimated at arrival."""
        self._waiting = self.queue = Waiting(tiers, weights)
        """What waits, for whoever only looks."""
        self._pump = Pump(self._waiting, resumable)
        self._replicas = self._pump.replicas
        self.wanting = self._replicas.wanting
        """Replicas whose next prefilled prompt somebody waits for: while there are any, each end may bring forward what is due next."""
        self._lanes = self._waiting.lanes
        self._lane_of = self._waiting.lane_of
        self._tickets: dict[int, Ticket] = {}

    @property
    def waiting(self) -> int:
        """Requests in all lanes."""
        return self._waiting.count

    @property
    def preempted_total(self) -> int:
        """How often a running request gave its place up."""
        return self._pump.preempted_total

    @property
    def barren_since_s(self) -> float | None:
        """Since when there has been no replica, and none to come; None: there is."""
        return self._replicas.barren_since_s

    @property
    def tight(self) -> bool:
        """On a replica there was no room for a request but by what prompts share, or by who ends when."""
        return any(replica.tight for replica in self._replicas.listed)

    def runs(self, ticket: int) -> bool:
        """Whether it holds a permit."""
        return (entry := self._tickets.get(ticket)) is not None and entry.replica is not None

    def starts(self, tier: str, shape: Shape, now_s: float) -> bool:
        """Whether a request of this tier and shape would be started at once if it came now; for who may send it elsewhere.

        A preemptible one that would be is sometimes made to wait for a better moment all the same.
        """
        lane, waiting = self._lane_of.get(tier), self._waiting
        if lane is None or waiting.ahead(lane) or (lane.preemptible and waiting.held):
            return False
        return self._pump.has_room(Ticket(0, lane, Account("", 1.0), shape, now_s), now_s)

    def foreseen_work(self, ticket: int, *, longest: bool = False) -> tuple[float, int, float]:
        """Of a dispatched request: the seconds to the end of its prefill, the tokens that takes, and the steps of its decode after it.

        ``longest``: where its answer is as long as it may be.
        """
        entry = self._running(ticket)
        tokens = entry.output_max if longest and entry.output_max else entry.expected
        return entry.prefilled_s - entry.dispatched_s, entry.uncached, tokens / entry.sequences

    @property
    def prefill_is_known(self) -> bool:
        """Whether a profile tells at which pace prompts are prefilled."""
        return all(replica.capacity.paced for replica in self._replicas.listed)

    def crowded(self, replica: str, now_s: float) -> tuple[bool, float]:
        """Whether one request more may have to wait for a place inside ``replica``, and in how many seconds prompts there are prefilled."""
        return self._replicas.crowded(replica, now_s)

    def position(self, ticket: int, now_s: float) -> Position | None:
        """Where a request stands and when it will start; None: it has ended, or never came."""
        entry = self._tickets.get(ticket)
        return None if entry is None else position(self._lanes, entry, self._replicas, now_s)

    def weighed(self, ticket: int) -> Weighed:
        """Of one that has just got its permit."""
        return weighed(self._running(ticket), self._replicas)

    def teams(self) -> list[TeamLoad]:
        """Every team that ever came, by lane."""
        return [load for lane in self._lanes for load in lane.teams()]

    def load(self, now_s: float) -> tuple[tuple[LaneLoad, ...], tuple[ReplicaLoad, ...]]:
        """What waits and what is in flight (draining replicas included), for the snapshot to the controller."""
        return tuple(lane.load(now_s) for lane in self._lanes), self._replicas.load()

    def check(self) -> None:
        """Raises AssertionError unless every ticket is in exactly one place and every sum is that of its parts."""
        self._pump.check()
        queued = {entry.id for lane in self._lanes for entry in lane.order.live()}
        running = {entry.id for entry in self._replicas.running()}
        ended = self.finished_total + self.refused_total + self.abandoned_total
        let_in = self.waiting - self._waiting.returned
        assert let_in == sum(not entry.returned for lane in self._lanes for entry in lane.order.live()) <= self.queued_max
        assert not queued & running, f"queued and running at once: {queued & running}"
        assert queued | running == set(self._tickets), f"in no place: {set(self._tickets) - queued - running}"
        assert self.arrived_total == len(self._tickets) + ended, f"{self.arrived_total} came, {ended} ended, {len(self._tickets)} are here"

    def _running(self, ticket: int) -> Ticket:
        entry = self._tickets.get(ticket)
        if entry is None or entry.replica is None:
            raise ValueError(f"ticket {ticket} holds no permit in pool {self.pool!r}")
        return entry
