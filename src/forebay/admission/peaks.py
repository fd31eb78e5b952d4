"""The KV peak of a replica, kept while permits come, grow and go, so that an arrival costs no sort of all of them.

Exactly, the peak is `kv.peak_kv_tokens`. Here sequences are held in buckets of `WIDTH` tokens by the step at which each will end, so
that a bucket counts as if all in it ended at its end: never less than the exact peak, and at most ``WIDTH`` tokens for each sequence
more. Engines give KV out in blocks of about that size (vLLM: 16), so the difference is not lost.

Steps are counted from reports: each step is one token of every sequence that reports. A sequence that reports as the others do stays
where it is, since what it has left sinks as its tokens grow, ``end·k + Σ(cur − step)`` being the same after each common step; only
those that differ from the others are moved. One that should have ended by now and has not (nothing tells of the length of an answer
that is no stream) is taken to hold what it has for as long as any other runs.
"""

from typing import Final

from forebay.admission.tickets import Ticket

WIDTH: Final = 32
_SHIFT: Final = 5
assert 1 << _SHIFT == WIDTH


class Peaks:
    """Buckets of the sequences of one replica."""

    __slots__ = ("_buckets", "_part", "_places", "_reporting", "_step")

    def __init__(self) -> None:
        self._buckets: dict[int, list[int]] = {}
        """Bucket → how many sequences end in it, and the sum of their tokens less the step each was counted at."""
        self._places: dict[int, tuple[int, int, int]] = {}
        """Ticket → bucket, sequences, and its part of that sum."""
        self._step = 0
        self._part = 0
        self._reporting: set[int] = set()

    def add(self, ticket: Ticket) -> None:
        """It runs from now on."""
        self._put(ticket)

    def remove(self, ticket: Ticket) -> None:
        """It runs no more."""
        self._take(ticket.id)
        self._reporting.discard(ticket.id)

    def moved(self, ticket: Ticket, tokens: int) -> None:
        """``tokens`` more of it were reported, and it may be expected to go on for longer; its fields say so already."""
        reporting = self._reporting
        reporting.add(ticket.id)
        steps, self._part = divmod(self._part + tokens, len(reporting))
        self._step += steps
        self._take(ticket.id)
        self._put(ticket)

    def again(self, ticket: Ticket) -> None:
        """What it holds of its own is another part; nothing was reported of it."""
        self._take(ticket.id)
        self._put(ticket)

    def with_one_more(self, ticket: Ticket) -> int:
        """The largest sum of KV tokens that all and ``ticket``, which does not run yet, reach together, rounded up by buckets."""
        own = (ticket.output + ticket.sequences - 1) // ticket.sequences + self._step
        own_bucket = own - 1 >> _SHIFT
        own_count, own_tokens = ticket.sequences, ticket.prompt - ticket.beside - ticket.sequences * self._step
        peak = held = count = 0
        buckets = self._buckets
        order = sorted(buckets)
        # Overdue: within a bucket's width the count of steps may only have run ahead of the reports.
        while order and (order[0] + 2 << _SHIFT) < self._step:
            sequences, tokens = buckets[order[0]]
            held += (order.pop(0) + 1 << _SHIFT) * sequences + tokens
        for bucket in reversed(order):
            if bucket <= own_bucket and own_count:
                count += own_count
                held += own_tokens
                own_count = 0
                peak = max(peak, own * count + held)
            sequences, tokens = buckets[bucket]
            count += sequences
            held += tokens
            reached = max(bucket + 1 << _SHIFT, self._step) * count + held
            if reached > peak:
                peak = reached
        if own_count:
            peak = max(peak, own * (count + own_count) + held + own_tokens)
        return peak

    def _put(self, ticket: Ticket) -> None:
        count = ticket.sequences
        left = ticket.expected - ticket.emitted
        if count > 1:
            left = -(-left // count)
        bucket = left + self._step - 1 >> _SHIFT
        part = ticket.prompt - ticket.beside + ticket.emitted - count * self._step
        self._places[ticket.id] = (bucket, count, part)
        sums = self._buckets.get(bucket)
        if sums is None:
            self._buckets[bucket] = [count, part]
        else:
            sums[0] += count
            sums[1] += part

    def _take(self, ticket: int) -> None:
        bucket, count, part = self._places.pop(ticket)
        sums = self._buckets[bucket]
        if sums[0] == count:
            del self._buckets[bucket]
        else:
            sums[0] -= count
            sums[1] -= part
