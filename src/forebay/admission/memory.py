"""The KV memory of one replica, as its permits take from it: what they hold, what they will, and whether one more fits.

Sums are kept as permits come, grow and go; only where adding up worst cases doesn't fit is the peak computed, and a refusal is
remembered until something is freed. What several prompts begin with is counted once where the engine is known to hold it
once (`sharing`): the peak is of what each holds of its own, and what they share stands beside it until its last holder ends.
"""

from collections.abc import Collection
from typing import Final

from forebay.admission.kv import peak_kv_tokens
from forebay.admission.peaks import Peaks
from forebay.admission.sharing import Shared, Told
from forebay.admission.tickets import Ticket
from forebay.domain.roster import Capacity
from forebay.domain.shape import Usage

EXACT_MAX: Final = 24
"""Up to so many permits the peak is computed exactly, from all of them; from buckets beyond."""


class Memory:
    """Of one replica."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.permits: dict[int, Ticket] = {}
        self.sequences = 0
        self.held_tokens = 0
        """KV tokens held now, as far as tokens were reported."""
        self.worst_tokens = 0
        """Sum of what every permit will hold at its end."""
        self.spared_tokens = 0
        """By so much both are less than if no prompt shared anything."""
        self.tight = False
        """Adding up worst cases did not fit since the last roster: what prompts share matters."""
        self.shared = Shared()
        self._told = Told()
        self._peaks: Peaks | None = None
        self._refused: tuple[int, int, int, bool] | None = None
        """Prompt, output, sequences of the last refusal, and whether with a reserve: what is no smaller need not be computed again…"""
        self._missing_tokens = 0
        """…before so many tokens have been freed."""

    def told(self, ticket: Ticket, usage: Usage) -> None:
        """Its engine says what it found cached of ``ticket``, which runs here beside others and has been answered."""
        self._told.take(ticket, usage)
        self.believe(self._told.steps(self.shared.believed))

    def doubt(self) -> None:
        """It may be another process, or another engine, than the one that told."""
        self._told = Told()
        self.believe(0)

    def believe(self, steps: int) -> None:
        """The engine shares so much, of `sharing.WHOLE`: where that is new, all that runs is counted anew."""
        shared = self.shared
        if steps == shared.believed:
            return
        prefixed = [permit for permit in self.permits.values() if permit.prefix is not None]
        for permit in prefixed:
            self._part(permit)
        shared.believed = steps
        for permit in prefixed:
            self._join(permit)
        self._peaks = None
        self._refused = None

    def _join(self, ticket: Ticket) -> None:
        """It shares with others here from now on what it may; its whole prompt is in the sums, or is to be."""
        shared = self.shared
        more = shared.join(ticket, self.permits)
        if more:
            self._shift(more)

    def _part(self, ticket: Ticket) -> None:
        """It shares nothing any more: its whole prompt is its own."""
        shared = self.shared
        more = shared.leave(ticket, self.permits)
        if more:
            self._shift(more)

    def _shift(self, more: int) -> None:
        self.spared_tokens -= more
        self.held_tokens += more
        self.worst_tokens += more
        moved = self.shared.moved
        if moved is not None and self._peaks is not None:
            self._peaks.again(moved)

    def _fits_at_peak(self, ticket: Ticket, kv_tokens: int) -> bool:
        """Whether ``ticket`` fits, for whom there is no room by worst cases."""
        self.tight = True
        if ticket.prefix is None or not self.shared.believed:
            return self._fits_exactly(ticket, kv_tokens)
        self._join(ticket)
        try:
            return self.worst_tokens + ticket.total <= kv_tokens or self._fits_exactly(ticket, kv_tokens)
        finally:
            self._part(ticket)

    def _fits_exactly(self, ticket: Ticket, kv_tokens: int) -> bool:
        if not self.permits and ticket.total <= self.capacity.kv_tokens_alone:
            return True  # it has to run somewhere
        if self.held_tokens + ticket.prompt > kv_tokens:
            return False
        refused = self._refused
        reserved = kv_tokens < self.capacity.kv_tokens
        if refused is not None:
            prompt, output, sequences, with_reserve = refused
            own = ticket.prompt - ticket.beside
            if own >= prompt and ticket.output >= output and ticket.sequences == sequences and reserved >= with_reserve:
                return False
        if len(self.permits) > EXACT_MAX:
            peaks = self._peaks
            if peaks is None:
                peaks = self._peaks = Peaks()
                for permit in self.permits.values():
                    peaks.add(permit)
            peak_tokens = peaks.with_one_more(ticket)
        else:
            peak_tokens = peak_kv_tokens(self._spread(ticket, ()))
        peak_tokens += self.shared.beside_tokens
        if peak_tokens <= kv_tokens:
            return True
        if not ticket.beside:  # of another, what is shared may be more
            self._refused = (ticket.prompt, ticket.output, ticket.sequences, reserved)
            self._missing_tokens = peak_tokens - kv_tokens
        return False

    def _fits_in_place_of(self, ticket: Ticket, victims: Collection[Ticket], kv_tokens: int) -> bool:
        """Whether ``ticket``, which may run elsewhere, would fit without ``victims`` now, and at the peak; nothing is remembered."""
        believed = self.shared.believed
        prefixed = [victim for victim in victims if victim.prefix is not None] if believed else []
        elsewhere = ticket.beside
        for victim in prefixed:
            self._part(victim)
        if believed and ticket.prefix is not None:
            ticket.beside = 0
            self._join(ticket)
        try:
            more = ticket.prompt - sum([victim.held_tokens() for victim in victims])
            if self.held_tokens + more > kv_tokens:
                return False
            freed = sum([victim.prompt + victim.expected for victim in victims])
            if self.worst_tokens - freed + ticket.total <= kv_tokens:
                return True
            return peak_kv_tokens(self._spread(ticket, victims)) + self.shared.beside_tokens <= kv_tokens
        finally:
            if believed and ticket.prefix is not None:
                self._part(ticket)
                ticket.beside = elsewhere
            for victim in prefixed:
                self._join(victim)

    def _spread(self, ticket: Ticket, without: Collection[Ticket]) -> list[tuple[int, int]]:
        """``(left, cur)`` of all sequences with ``ticket``'s, but for those of ``without``: of what each holds of its own."""
        spread = ticket.spread()
        permits = self.permits.values()
        if not without and self.sequences == len(self.permits):
            spread += [(permit.expected - permit.emitted, permit.prompt - permit.beside + permit.emitted) for permit in permits]
        else:
            for permit in permits:
                if permit not in without:
                    spread += permit.spread()
        return spread
