"""The budgets of one replica, and the permits that take from them.

All must fit: KV tokens at their peak, sequence slots, outstanding uncached prefill tokens, and the time of a decode step. KV alone
would let a prefill-heavy workload queue up inside the engine, where it can no longer be ordered, moved or refused. The sums are
kept as permits come and go, so that most questions are answered without looking at the permits; those of KV in `memory`.
"""

from collections import deque
from collections.abc import Collection
from typing import Final

from forebay.admission.kv import outlived_tokens
from forebay.admission.memory import EXACT_MAX, Memory
from forebay.admission.outcomes import Shortage
from forebay.admission.reconcile import booked
from forebay.admission.tickets import REVIEW_TOKENS_MIN, Ticket
from forebay.admission.young import Young
from forebay.domain.roster import Capacity, ReplicaLoad, RosterReplica

RESERVE: Final = 0.06
"""Share of the slots and the KV that preemptible work leaves free while others come, so that they find it where their turn is soonest."""
BACKFILL_PREFILL: Final = 0.1
"""Share of the prefill budget that preemptible work may take then: what is outstanding is prefilled before the next prompt."""
LAG_S: Final = 0.03
"""From sending a prompt to where a replica with nothing else to prefill begins it, to start with: HTTP, tokenising, the step under way."""
LAG_S_MAX: Final = 0.25
LAG_GAIN: Final = 1 / 16
"""Of each error of a foreseen first token that the next lag takes over."""
LOADED_S: Final = 0.2
"""How much later a first token may come on a replica that is empty instead of full: its next tokens come sooner."""
NOT_KEPT: Final = 1_000_000
"""More than any lane's index."""


class Replica(Memory):
    """What one gateway has in flight on one replica."""

    def __init__(self, listed: RosterReplica, unweighed: "list[Replica]", wanting: "list[Replica]") -> None:
        """``unweighed``: where it enters itself when its rank is no longer right; ``wanting``: when it refused for want of prefill."""
        super().__init__(listed.capacity)
        self.id = listed.id
        self.url = listed.url
        self.listed = True
        """In the roster: may get new permits. One that left keeps those it has until they end."""
        self.chosen_seq = 0
        self.prefill_tokens = 0
        """Uncached prompt tokens of permits without a first token…"""
        self.horizon_s = 0.0
        """…and, while there are any, when they are foreseen to be prefilled."""
        self.lag_s = LAG_S
        """As first tokens have shown it."""
        self.rank = (0.0, 0, 0)
        """Fraction of the tightest budget in use, streams, and when it was last chosen: the lowest is chosen first. As of ``weigh``."""
        self.standing = 0.0
        """The same fraction without prefill, which passes. As of ``weigh``…"""
        self.loaded_s = 0.0
        """…and what that is worth in seconds to the first token."""
        self.kept_for: Ticket | None = None
        """Who alone of its lane and less important ones may be let in…"""
        self.kept_index = NOT_KEPT
        """…and the index of that lane."""
        self.preemptible = 0
        """Permits of preemptible requests."""
        self.courteous = False
        """Whether others than preemptible requests come, so that those leave a reserve."""
        self._unweighed = unweighed
        self._weighed = True
        self.sequences_allowed = 0
        self.prefill_wanted = False
        """Somebody was refused for want of prefill tokens: only then is it news when some are freed."""
        self.wholes: deque[Ticket] = deque()
        """Permits of answers that come whole, about in the order in which their prompts are prefilled; some may be over."""
        self.young = Young()
        """Preemptible permits that were just given while others come."""
        self._wanting = wanting
        self.pauses = self.pause = 0
        """How many frees let nobody behind the head be looked at, the last time and from now on (`pump`)."""
        self.use(listed)

    def use(self, listed: RosterReplica) -> None:
        """Take address and capacity from the roster. A smaller capacity revokes no permit."""
        if not self.listed or listed.url != self.url:
            self.doubt()  # there may be another process behind it
        self.url = listed.url
        self.listed = True
        capacity = self.capacity = listed.capacity
        # In fields of its own, as they are read for every request.
        self.sequences_max, self._kv_tokens, self._prefill_tokens = capacity.sequences, capacity.kv_tokens, capacity.prefill_tokens
        self._context_tokens, self._itl_s = capacity.context_tokens, capacity.itl_s
        per_s = capacity.prefill_tokens_per_s
        self._token_s = 1.0 / per_s if per_s > 0 else 0.0
        """To prefill one, by the roster; 0: unknown."""
        self.sequences_allowed = max(listed.capacity.sequences, self.sequences)
        self._refused = None
        self.tight = False
        if self._weighed:
            self._changed()

    def fits(self, ticket: Ticket, cached_tokens: int = 0) -> bool:
        """Whether all budgets (and the context limit) hold with ``ticket``, and the space is not kept for another.

        ``cached_tokens`` of its uncached prompt are foreseen to be cached here.
        A prompt larger than the whole prefill budget is let in where no prefill is outstanding: it has to run somewhere. So is one
        that alone makes steps longer than the ITL promise.
        """
        sequences = self.sequences + ticket.sequences
        if sequences > self.sequences_max or ticket.longest > self._context_tokens:
            return False
        lane = ticket.lane
        if lane.index >= self.kept_index and ticket is not self.kept_for:
            return False
        kv_tokens = self._kv_tokens
        prefill_tokens = self._prefill_tokens
        if lane.preemptible and self.courteous:
            if sequences > self.sequences_max - int(RESERVE * self.sequences_max):
                return False
            kv_tokens -= int(RESERVE * kv_tokens)
            prefill_tokens = int(BACKFILL_PREFILL * prefill_tokens)
        outstanding = self.prefill_tokens
        if outstanding and outstanding + ticket.uncached - cached_tokens > prefill_tokens:
            self.want_prefill()
            return False
        if self._itl_s and self.sequences and self._step_s(sequences, ticket.prompt) > self._itl_s:
            return False
        if self.worst_tokens + ticket.total <= kv_tokens:
            return True
        return self._fits_at_peak(ticket, kv_tokens)

    def want_prefill(self) -> None:
        """Somebody waits for prompts to be prefilled here: that is news from now on."""
        if not self.prefill_wanted:
            self.prefill_wanted = True
            self._wanting.append(self)

    def short_of(self, ticket: Ticket) -> Shortage:
        """Which budget is missing for ``ticket`` now, the first that ``fits`` would find; for whoever asks, so nothing is remembered."""
        capacity, lane = self.capacity, ticket.lane
        slots, kv_tokens, prefill_tokens = capacity.sequences, capacity.kv_tokens, capacity.prefill_tokens
        if lane.preemptible and self.courteous:
            slots -= int(RESERVE * slots)
            kv_tokens -= int(RESERVE * kv_tokens)
            prefill_tokens = int(BACKFILL_PREFILL * prefill_tokens)
        sequences = self.sequences + ticket.sequences
        if sequences > slots:
            return Shortage.SLOTS
        if lane.index >= self.kept_index and ticket is not self.kept_for:
            return Shortage.KEPT
        if self.prefill_tokens and self.prefill_tokens + ticket.uncached > prefill_tokens:
            return Shortage.PREFILL
        if capacity.itl_s and self.sequences and self._step_s(sequences, ticket.prompt) > capacity.itl_s:
            return Shortage.PACE
        return Shortage.TURN if self._fits_in_place_of(ticket, (), kv_tokens) else Shortage.KV

    def _step_s(self, sequences: int, more_tokens: int) -> float:
        """How long a decode step takes with so many sequences and so many more KV tokens than now: each reads what it shares, too."""
        capacity = self.capacity
        read_tokens = self.held_tokens + self.spared_tokens + more_tokens
        return capacity.step_base_s + capacity.step_per_sequence_s * sequences + capacity.step_per_kv_token_s * read_tokens

    def fits_without(self, ticket: Ticket, victims: Collection[Ticket]) -> bool:
        """Whether all budgets would hold with ``ticket`` in place of ``victims``."""
        capacity = self.capacity
        sequences = self.sequences - sum(victim.sequences for victim in victims) + ticket.sequences
        outstanding = self.prefill_tokens - sum(victim.outstanding for victim in victims)
        if sequences > capacity.sequences or ticket.longest > capacity.context_tokens:
            return False
        if outstanding and outstanding + ticket.uncached > capacity.prefill_tokens:
            return False
        more_tokens = ticket.prompt - sum(victim.prompt + victim.emitted for victim in victims)
        if capacity.itl_s and sequences > ticket.sequences and self._step_s(sequences, more_tokens) > capacity.itl_s:
            return False
        return self._fits_in_place_of(ticket, victims, capacity.kv_tokens)

    def again_s(self, ticket: Ticket) -> float:
        """How long it takes to prefill again what ``ticket``, which runs here, has in its KV; 0: unknown."""
        return (ticket.uncached + ticket.emitted) * self._token_s

    def grant(self, ticket: Ticket, now_s: float, cached_tokens: int = 0) -> None:
        """Give a permit; the caller has asked ``fits``."""
        if cached_tokens:
            ticket.spared = cached_tokens
            ticket.uncached -= cached_tokens
        ticket.replica = self
        ticket.dispatched_s = now_s
        ticket.outstanding = ticket.uncached
        self.permits[ticket.id] = ticket
        self.sequences += ticket.sequences
        self.held_tokens += ticket.prompt
        self.worst_tokens += ticket.total
        if ticket.prefix is not None:
            self._join(ticket)
            ticket.met = self.shared.met_tokens
        horizon_s = now_s + self.lag_s
        if self.prefill_tokens and self.horizon_s > horizon_s:
            horizon_s = self.horizon_s
        self.horizon_s = ticket.prefilled_s = horizon_s + ticket.uncached * self._token_s
        self.prefill_tokens += ticket.uncached
        if ticket.lane.preemptible:
            self.preemptible += 1
            if self.courteous:
                self.young.sent(ticket, now_s)
        if ticket.whole:
            # Nothing tells of the first token of an answer that comes whole.
            if self.wholes:
                self.reclaim(now_s)
            self.wholes.append(ticket)
        if self._peaks is not None:
            self._peaks.add(ticket)
        if self._weighed:
            self._changed()

    def release(self, ticket: Ticket) -> None:
        """End a permit: everything it took is free again, and the ticket is as before it ran, since it may run elsewhere."""
        if ticket.prefix is not None:
            self._part(ticket)
            ticket.met = 0
        del self.permits[ticket.id]
        ticket.replica = None
        self.sequences -= ticket.sequences
        self.held_tokens -= ticket.held_tokens()
        worst_tokens = ticket.prompt + ticket.expected
        self.worst_tokens -= worst_tokens
        # No sum of what others hold falls by more than what this one would have held in the end.
        self._missing_tokens -= worst_tokens
        if self._missing_tokens <= 0:
            self._refused = None
        if ticket.outstanding:
            self.prefill_tokens -= ticket.outstanding
            self.horizon_s -= ticket.outstanding * self._token_s
        if ticket.lane.preemptible:
            self.preemptible -= 1
            if self.young:
                self.young.gone(ticket)
        ticket.emitted = ticket.outstanding = 0
        if ticket.spared:
            ticket.uncached += ticket.spared
            ticket.spared = 0
        ticket.review_at_tokens = REVIEW_TOKENS_MIN
        ticket.expected = ticket.output
        if self._peaks is not None:
            self._peaks.remove(ticket)
            if len(self.permits) <= EXACT_MAX:
                self._peaks = None
        if self._weighed:
            self._changed()

    def reclaim(self, now_s: float) -> bool:
        """Free the prefill tokens of answers that come whole where it is foreseen that they are free by now; whether there were any."""
        wholes = self.wholes
        found = False
        while wholes:
            ticket = wholes[0]
            if ticket.replica is self and ticket.outstanding:
                if ticket.prefilled_s > now_s:
                    break
                self.prefilled(ticket)
                found = True
            wholes.popleft()
        return found

    def begun(self, ticket: Ticket, now_s: float) -> None:
        """Its first token came: what was sent before it is prefilled too, since engines take prompts in their order."""
        self.lag_s = max(0.0, min(LAG_S_MAX, self.lag_s + LAG_GAIN * (now_s - ticket.prefilled_s)))
        wholes = self.wholes
        while wholes and wholes[0].dispatched_s < ticket.dispatched_s:
            before = wholes.popleft()
            if before.replica is self and before.outstanding:
                self.prefilled(before)
        self.prefilled(ticket)
        if self.prefill_tokens:
            last = next(reversed(self.permits.values()))  # if it was sent only just before, it begins no sooner for this token
            last_s = last.dispatched_s + self.lag_s + last.outstanding * self._token_s if last.outstanding else 0.0
            self.horizon_s = max(now_s + self.prefill_tokens * self._token_s, last_s)

    def clear_in_s(self, now_s: float) -> float:
        """In how many seconds nothing is foreseen to be left to prefill; 0: nothing is, or it should be done by now."""
        return max(0.0, self.horizon_s - now_s) if self.prefill_tokens else 0.0

    def yields_in_s(self, now_s: float) -> float:
        """As `clear_in_s`, for one in whose way nothing is that has not begun and can be taken back."""
        tokens = sum([ticket.outstanding for ticket in self.young.unbegun(now_s, self.lag_s)])
        return 0.0 if tokens == self.prefill_tokens else max(0.0, self.horizon_s - tokens * self._token_s - now_s)

    def prefilled(self, ticket: Ticket) -> None:
        """The prompt is in the KV cache and waits for no prefill."""
        self.prefill_tokens -= ticket.outstanding
        ticket.outstanding = 0
        if self._weighed:
            self._changed()

    def grow(self, ticket: Ticket, tokens: int) -> None:
        """``tokens`` more came out. One that has outlived its estimate gets a new one."""
        ticket.emitted += tokens
        self.held_tokens += tokens
        if ticket.emitted > ticket.expected:
            self._expect(ticket, outlived_tokens(ticket.emitted, ticket.output_max))
        if self._peaks is not None:
            self._peaks.moved(ticket, tokens)

    def expect(self, ticket: Ticket, expected: int) -> None:
        """``ticket``, which runs here, is expected to emit so much in all."""
        if expected != ticket.expected:
            self._expect(ticket, expected)
            if self._peaks is not None:
                self._peaks.moved(ticket, 0)

    def _expect(self, ticket: Ticket, expected: int) -> None:
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
        self.standing = load
        self.loaded_s = LOADED_S * load
        if capacity.prefill_tokens:
            load += self.prefill_tokens / capacity.prefill_tokens
        self.rank = (load, len(self.permits), self.chosen_seq)

    def reported(self) -> ReplicaLoad:
        """What the controller is told; streams count requests, KV what they hold now."""
        spared = [ticket for ticket in self.permits.values() if ticket.lane.preemptible]
        least, most = booked(self.permits.values(), self.shared.beside_tokens)
        return ReplicaLoad(
            replica=self.id,
            streams=len(self.permits),
            kv_tokens=self.held_tokens,
            preemptible_streams=len(spared),
            preemptible_kv_tokens=sum(ticket.held_tokens() for ticket in spared),
            kv_tokens_least=least,
            kv_tokens_most=most,
        )


def could_ever_fit(capacity: Capacity, ticket: Ticket) -> bool:
    """Whether an empty replica of this ``capacity`` could hold ``ticket``."""
    return (
        ticket.total <= max(capacity.kv_tokens, capacity.kv_tokens_alone)
        and ticket.longest <= capacity.context_tokens
        and ticket.sequences <= capacity.sequences
    )
