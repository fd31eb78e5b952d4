"""The three budgets of one replica, and the permits that take from them.

All must fit: KV tokens at their peak, sequence slots, and outstanding uncached prefill tokens. KV alone would let a
prefill-heavy workload queue up inside the engine, where it can no longer be ordered, moved or refused. The sums are
kept as permits come and go, so that most questions are answered without looking at the permits: only where adding up
worst cases does not fit is the exact peak computed, and a refusal is remembered until something is freed.
"""

from forebay.admission.kv import outlived_tokens, peak_kv_tokens
from forebay.admission.tickets import Ticket
from forebay.domain.roster import Capacity, ReplicaLoad, RosterReplica


class Replica:
    """What one gateway has in flight on one replica."""

    def __init__(self, listed: RosterReplica, unweighed: "list[Replica]") -> None:
        """``unweighed``: where it enters itself when its rank is no longer right."""
        self.id = listed.id
        self.url = listed.url
        self.listed = True
        """In the roster: may get new permits. One that left keeps those it has until they end."""
        self.permits: dict[int, Ticket] = {}
        self.sequences = 0
        self.held_tokens = 0
        """KV tokens held now, as far as tokens were reported."""
        self.worst_tokens = 0
        """Sum of what every permit will hold at its end."""
        self.prefill_tokens = 0
        """Uncached prompt tokens of permits without a first token."""
        self.chosen_seq = 0
        self.rank = (0.0, 0, 0)
        """Fraction of the tightest budget in use, streams, and when it was last chosen: the lowest is chosen first. As of ``weigh``."""
        self._unweighed = unweighed
        self._weighed = True
        self.capacity = listed.capacity
        self.sequences_allowed = 0
        self._refused: tuple[int, int, int] | None = None
        """Prompt, output and sequences of the last KV refusal: what is no smaller need not be computed again."""
        self.use(listed)

    def use(self, listed: RosterReplica) -> None:
        """Take address and capacity from the roster. A smaller capacity revokes no permit."""
        self.url = listed.url
        self.listed = True
        self.capacity = listed.capacity
        self.sequences_allowed = max(listed.capacity.sequences, self.sequences)
        self._refused = None
        if self._weighed:
            self._changed()

    def fits(self, ticket: Ticket) -> bool:
        """Whether all three budgets (and the context limit) hold with ``ticket``.

        A prompt larger than the whole prefill budget is let in where no prefill is outstanding: it has to run somewhere.
        """
        capacity = self.capacity
        if self.sequences + ticket.sequences > capacity.sequences or ticket.longest > capacity.context_tokens:
            return False
        outstanding = self.prefill_tokens
        if outstanding and outstanding + ticket.uncached > capacity.prefill_tokens:
            return False
        if self.worst_tokens + ticket.total <= capacity.kv_tokens:
            return True
        return self._fits_at_peak(ticket)

    def _fits_at_peak(self, ticket: Ticket) -> bool:
        if self.held_tokens + ticket.prompt > self.capacity.kv_tokens:
            return False
        refused = self._refused
        if refused is not None and ticket.prompt >= refused[0] and ticket.output >= refused[1] and ticket.sequences == refused[2]:
            return False
        spread = ticket.spread()
        permits = self.permits.values()
        if self.sequences == len(self.permits):
            spread += [(permit.expected - permit.emitted, permit.prompt + permit.emitted) for permit in permits]
        else:
            for permit in permits:
                spread += permit.spread()
        if peak_kv_tokens(spread) <= self.capacity.kv_tokens:
            return True
        self._refused = (ticket.prompt, ticket.output, ticket.sequences)
        return False

    def grant(self, ticket: Ticket) -> None:
        """Give a permit; the caller has asked ``fits``."""
        ticket.replica = self
        ticket.outstanding = ticket.uncached
        self.permits[ticket.id] = ticket
        self.sequences += ticket.sequences
        self.held_tokens += ticket.prompt
        self.worst_tokens += ticket.total
        self.prefill_tokens += ticket.uncached
        if self._weighed:
            self._changed()

    def release(self, ticket: Ticket) -> None:
        """End a permit: everything it took is free again, and the ticket is as before it ran, since it may run elsewhere."""
        del self.permits[ticket.id]
        ticket.replica = None
        self.sequences -= ticket.sequences
        self.held_tokens -= ticket.prompt + ticket.emitted
        self.worst_tokens -= ticket.prompt + ticket.expected
        self.prefill_tokens -= ticket.outstanding
        ticket.emitted = ticket.outstanding = 0
        ticket.expected = ticket.output
        self._refused = None
        if self._weighed:
            self._changed()

    def prefilled(self, ticket: Ticket) -> None:
        """The first token came: the prompt is in the KV cache and waits for no prefill."""
        self.prefill_tokens -= ticket.outstanding
        ticket.outstanding = 0
        if self._weighed:
            self._changed()

    def grow(self, ticket: Ticket, tokens: int) -> None:
        """``tokens`` more came out. One that has outlived its estimate gets a new one."""
        ticket.emitted += tokens
        self.held_tokens += tokens
        if ticket.emitted > ticket.expected:
            expected = outlived_tokens(ticket.emitted, ticket.output_max)
            self.worst_tokens += expected - ticket.expected
            ticket.expected = expected
            self._changed()

    def _changed(self) -> None:
        if self._weighed:
            self._weighed = False
            self._unweighed.append(self)

    def weigh(self) -> None:
        """Bring ``rank`` up to date."""
        self._weighed = True
        # The largest of three, without calling for it: this runs for every request.
        capacity = self.capacity
        load = self.worst_tokens / capacity.kv_tokens if capacity.kv_tokens else 1.0
        share = self.sequences / capacity.sequences if capacity.sequences else 1.0
        if share > load:
            load = share
        if capacity.prefill_tokens:
            share = self.prefill_tokens / capacity.prefill_tokens
            if share > load:
                load = share
        self.rank = (load, len(self.permits), self.chosen_seq)

    def reported(self) -> ReplicaLoad:
        """What the controller is told; streams count requests, KV what they hold now."""
        spared = [ticket for ticket in self.permits.values() if ticket.lane.preemptible]
        return ReplicaLoad(
            replica=self.id,
            streams=len(self.permits),
            kv_tokens=self.held_tokens,
            preemptible_streams=len(spared),
            preemptible_kv_tokens=sum(ticket.held_tokens() for ticket in spared),
        )

    def check(self) -> None:
        """Raises AssertionError unless the sums are those of the permits and no slot was given twice."""
        permits = self.permits.values()
        assert all(ticket.replica is self and ticket.queued_seq == 0 for ticket in permits), f"{self.id}: a permit is also elsewhere"
        assert all(ticket.expected >= ticket.emitted for ticket in permits), f"{self.id}: a permit has less than nothing left"
        assert self.sequences == sum(ticket.sequences for ticket in permits), f"{self.id}: slots leaked"
        assert self.held_tokens == sum(ticket.held_tokens() for ticket in permits), f"{self.id}: KV tokens leaked"
        assert self.worst_tokens == sum(ticket.prompt + ticket.expected for ticket in permits), f"{self.id}: KV estimates leaked"
        assert self.prefill_tokens == sum(ticket.outstanding for ticket in permits), f"{self.id}: prefill tokens leaked"
        assert self.sequences <= self.sequences_allowed, f"{self.id}: more sequences than slots"
        assert self.listed or permits, f"{self.id}: left the roster, has no permit, and is still kept"


def could_ever_fit(capacity: Capacity, ticket: Ticket) -> bool:
    """Whether an empty replica of this ``capacity`` could hold ``ticket``."""
    return ticket.total <= capacity.kv_tokens and ticket.longest <= capacity.context_tokens and ticket.sequences <= capacity.sequences
