"""What running requests of one replica hold together: beginnings of prompts that the engine keeps in its KV memory once.

A permit's prompt is a chain of blocks (`prefixes`). Blocks that one permit alone holds are its own, and go when it ends. Those of several
are held until the last of them ends, so they stand beside all, once: a block takes the mean of what its holders' estimates say.
All of it follows from who runs and from how far the engine is believed, and not from the order in which they came: to join and to
leave changes nothing, so a question is asked by joining.

Whether an engine shares is taken from what it tells: of each answered request, how much of what running ones held of its prompt, when
it was sent, was found cached. One that tells nothing (no prefix cache, or no word of it) is believed in nothing, and each prompt
counts in full, as where bytes only look the same (other tools). Where it shares in part, each further holder of a
block takes the rest of it anew. It is told when a request ends, so an engine that shares no more is overfilled until those end that
were sent by then; it preempts, and the budget is corrected by that and by what it holds (`reconcile`).

The second request may be sent before the first one's prompt is computed. vLLM enters a block into its table as it schedules
the tokens, and the next in line is scheduled only with what the first one's chunk leaves of a step, so it finds all of them. An engine
that is slower to know its blocks finds less just where requests overlap, and is believed that much less.
"""

from collections.abc import Mapping
from typing import Final

from forebay.admission.prefixes import Chain
from forebay.admission.tickets import Ticket
from forebay.domain.shape import Usage

WHOLE: Final = 64
"""How far an engine is believed goes in so many steps…"""
NEAR: Final = 3
"""…and all is counted anew only where it goes by so many up, or by one down."""
BELIEVED_MIN: Final = 16
"""An engine that is to be believed less is believed in nothing."""
FOUND_MOST: Final = 0.75
"""A request that found as much of what others held shares with them, and what it did not find is an error of the estimates…"""
MISSED: Final = 4.0
"""…and where it found less, what it missed counts so many times: such requests come in clumps, and which ones is known afterwards."""
TOLD_MIN: Final = 16
"""Answered requests that must have told before anything is believed."""
TOLD_MAX: Final = (32, 8)
"""Of the last so many requests, about, less is believed of what those found and these: trust comes slowly and goes fast."""


class Told:
    """How much of what running requests held of a prompt an engine found cached, over the last ones that were answered."""

    __slots__ = ("_met_tokens", "_missed_tokens", "_requests", "_seen")

    def __init__(self) -> None:
        self._seen = 0
        self._requests = [0.0, 0.0]
        self._met_tokens = [0.0, 0.0]
        self._missed_tokens = [0.0, 0.0]

    def take(self, ticket: Ticket, usage: Usage) -> None:
        """``ticket``, of whose prompt running ones held something when it was sent, was answered; ``usage`` is as its engine told."""
        met = min(ticket.met * usage.prompt_tokens / ticket.prompt, float(usage.prompt_tokens))
        if ticket.resumed or ticket.sequences > 1 or met <= 0:
            return  # engines don't agree on what they tell of these
        missed = max(0.0, met - usage.cached_tokens)
        if missed > (1.0 - FOUND_MOST) * met:
            missed *= MISSED
        self._seen += 1
        for window, requests_max in enumerate(TOLD_MAX):
            kept = 1.0 if self._requests[window] < requests_max else 0.5
            self._requests[window] = self._requests[window] * kept + 1
            self._met_tokens[window] = self._met_tokens[window] * kept + met
            self._missed_tokens[window] = self._missed_tokens[window] * kept + missed

    def steps(self, now: int) -> int:
        """How far it is to be believed, of `WHOLE`; ``now``: what it is as yet, which stays where it is nearly that."""
        if self._seen < TOLD_MIN:
            return now
        missed = max([self._missed_tokens[window] / self._met_tokens[window] for window in range(len(TOLD_MAX))])
        exactly = WHOLE * (1.0 - missed)
        if now - 1 < exactly < min(WHOLE, now + NEAR):
            return now
        return int(exactly) if exactly >= BELIEVED_MIN else 0


class Run:
    """Blocks one after the other that the same permits hold."""

    __slots__ = ("block_tokens", "chain", "end", "holders", "ids", "start")

    def __init__(self, chain: Chain, start: int, end: int) -> None:
        self.chain = chain
        """Of one that held them first: they are its blocks from ``start`` to ``end``."""
        self.start = start
        self.end = end
        self.holders = self.ids = self.block_tokens = 0
        """How many hold them, their tickets in one number (of a single one it is that), and the sum of what they take one block for."""

    def beside(self, believed: int) -> int:
        """KV tokens that these stand for beside the permits that share them."""
        holders = self.holders
        if holders < 2:
            return 0
        # One copy, and of each further one what the engine is not believed to share, of the mean block.
        copies = WHOLE + (WHOLE - believed) * (holders - 1)
        return (self.end - self.start) * -(-self.block_tokens * copies // (WHOLE * holders))


class Shared:
    """Of one replica. It is bounded by its permits: each has no more than `prefixes.BLOCKS_MAX` blocks."""

    __slots__ = ("_runs", "believed", "beside_tokens", "met_tokens", "moved")

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        """By the hash of their first block."""
        self.believed = 0
        """How far the engine is believed to share, of `WHOLE`; 0: all count in full. Changed only while nobody holds anything."""
        self.beside_tokens = 0
        """KV tokens of what several permits hold, beside what each holds of its own."""
        self.met_tokens = 0
        """Of the prompt that joined last, what others held, whether or not it is believed that it is shared…"""
        self.moved: Ticket | None = None
        """…and whose own part changed, as it held alone what is shared now, or the other way round."""

    def join(self, ticket: Ticket, permits: Mapping[int, Ticket]) -> int:
        """``ticket`` runs beside ``permits``, or is asked about: the KV tokens that all take beyond its whole prompt; none or less."""
        self.moved = None
        prefix = ticket.prefix
        assert prefix is not None
        chain, runs, each = prefix.chain, self._runs, prefix.block_tokens
        depth = held_blocks(ticket)
        more = at = met = 0
        while at < depth:
            run = runs.get(chain[at])
            if run is None:
                run = runs[chain[at]] = Run(chain, at, depth)
            elif run.start != at:
                break  # two hashes are the same by chance
            else:
                same = _agreed(run, chain, depth)
                if same < run.end:
                    self._split(run, same)
                met = same
            more += self._count(run, ticket, each, permits, 1)
            at = run.end
        self.met_tokens = met * each
        return more

    def leave(self, ticket: Ticket, permits: Mapping[int, Ticket]) -> int:
        """``ticket`` holds nothing any more: the KV tokens that all take beyond what is left without its whole prompt; none or more."""
        self.moved = None
        prefix = ticket.prefix
        assert prefix is not None
        chain, runs, each = prefix.chain, self._runs, prefix.block_tokens
        depth = held_blocks(ticket)
        more = at = 0
        while at < depth:
            run = runs.get(chain[at])
            if run is None or run.start != at:
                break
            more += self._count(run, ticket, each, permits, -1)
            if not run.holders:
                del runs[chain[at]]
            at = run.end
        return more

    def _count(self, run: Run, ticket: Ticket, each: int, permits: Mapping[int, Ticket], by: int) -> int:
        """``ticket`` comes to (1) or goes from (-1) those that hold ``run``: what its tokens and those of all change by together."""
        believed = self.believed
        alone = run.holders == 1
        if not believed or run.holders + by == 0 or run.holders == 0:
            run.holders += by
            run.ids ^= ticket.id
            run.block_tokens += by * each
            return 0
        blocks = run.end - run.start
        before, first = run.beside(believed), run.ids
        run.holders += by
        run.ids ^= ticket.id
        run.block_tokens += by * each
        beside, own = run.beside(believed) - before, by * blocks * each
        self.beside_tokens += beside
        ticket.beside += own
        if alone or run.holders == 1:
            other = self.moved = permits[first if alone else run.ids]
            others = by * blocks * (run.block_tokens - each if alone else run.block_tokens)
            other.beside += others
            own += others
        return beside - own

    def _split(self, run: Run, end: int) -> None:
        """From block ``end`` on these are a run of their own, as not all that hold the ones before go on with them."""
        rest = self._runs[run.chain[end]] = Run(run.chain, end, run.end)
        rest.holders, rest.ids, rest.block_tokens = run.holders, run.ids, run.block_tokens
        run.end = end

    def check(self, permits: Mapping[int, Ticket]) -> None:
        """Raises AssertionError unless this is exactly what ``permits`` hold, block by block."""
        holders: dict[int, list[Ticket]] = {}
        for ticket in permits.values():
            if ticket.prefix is not None:
                for value in ticket.prefix.chain[: held_blocks(ticket)]:
                    holders.setdefault(value, []).append(ticket)
        counted = {value: run for run in self._runs.values() for value in run.chain[run.start : run.end]}
        assert set(counted) == set(holders), "blocks are held by nobody, or forgotten"
        beside, of_each = 0, dict.fromkeys(permits, 0)
        for value, tickets in holders.items():
            run = counted[value]
            assert run.holders == len(tickets), "a block has other holders than were counted"
            if self.believed and len(tickets) > 1:
                tokens = [ticket.prefix.block_tokens for ticket in tickets if ticket.prefix is not None]
                beside += -(-sum(tokens) * (WHOLE + (WHOLE - self.believed) * (len(tokens) - 1)) // (WHOLE * len(tokens)))
                for ticket, each in zip(tickets, tokens, strict=True):
                    of_each[ticket.id] += each
        assert beside == self.beside_tokens, f"{beside} tokens are shared, {self.beside_tokens} counted"
        assert of_each == {ticket.id: ticket.beside for ticket in permits.values()}, "a permit's own part is another"


def held_blocks(ticket: Ticket) -> int:
    """How many blocks of its chain ``ticket`` is taken to hold: a last token of its prompt is always its own."""
    prefix = ticket.prefix
    if prefix is None:
        return 0
    return max(0, min(len(prefix.chain), (ticket.prompt - 1) // prefix.block_tokens))


def _agreed(run: Run, chain: Chain, depth: int) -> int:
    """Up to which block ``chain``, which begins as ``run`` does, goes on so; each hash stands for all blocks before it."""
    theirs = run.chain
    high = min(run.end, depth)
    if chain[high - 1] == theirs[high - 1]:
        return high
    low = run.start + 1
    while high - low > 1:
        middle = (low + high) // 2
        if chain[middle - 1] == theirs[middle - 1]:
            low = middle
        else:
            high = middle
    return low
