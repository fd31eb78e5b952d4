"""Continuous batching with chunked prefill and paged KV, one step at a time: a machine without clock or I/O.

A step is composed when it starts: every decoding sequence gives one token, then the rest of the step's token budget goes
to prompts in order of arrival. What it brought is known when it ends. Sequences run in order of admission, and since
prompts are prefilled in that order too, the running ones are always "those that decode", then "those that prefill".

Rules, as vLLM's V1 scheduler has them: decodes come first in the budget; a waiting sequence is admitted while there is
a slot, budget, and room for its whole prompt; a decode that needs a block when none is free preempts the newest running
sequence, which loses its KV and goes to the front of the line, to prefill its prompt and what it had emitted again. So a step
that preempted admits nobody: the first in line wants one block more than its going left. One trade-off: a prompt's
blocks are taken all at once at admission, not chunk by chunk.

A call at the very instant a step ends comes after that step. Seconds of HTTP and tokenising (``front_end_s``) are not
in here: whoever serves requests adds them before ``submit``.
"""

from collections import OrderedDict
from collections.abc import Hashable

import msgspec

from forebay.domain.errors import ForebayError
from forebay.domain.profile import Profile
from forebay.engine.spread import Places, factors_of
from forebay.engine.steptime import step_s


class TooLong(ForebayError, ValueError):
    """The sequence could never fit, even alone in an empty engine."""


class WaitingFull(ForebayError):
    """The engine's waiting line is at its bound."""


class Token(msgspec.Struct, frozen=True, gc=False):
    """``sequence`` has one more token; ``first`` at its very first (never again after a preemption)."""

    sequence: Hashable
    at_s: float
    first: bool


class Finished(msgspec.Struct, frozen=True, gc=False):
    """``sequence`` has all its tokens, and its KV is free."""

    sequence: Hashable
    at_s: float


class Preempted(msgspec.Struct, frozen=True, gc=False):
    """``sequence`` lost its KV and waits again, at the front; tokens that it gave stay given."""

    sequence: Hashable
    at_s: float


Effect = Token | Finished | Preempted


class _Sequence:
    """``kv`` tokens are cached and ``room`` tokens of blocks held; until ``kv`` reaches ``target`` it prefills."""

    __slots__ = ("emitted", "gone", "kv", "name", "output", "prompt", "room", "target")

    def __init__(self, name: Hashable, prompt: int, output: int) -> None:
        self.name = name
        self.prompt = prompt
        self.output = output
        self.emitted = 0
        self.kv = 0
        self.room = 0
        self.target = prompt
        self.gone = False


class Engine:
    """One replica's engine, just started. ``max_waiting`` bounds what ``submit`` lets wait; preempted sequences come on top of it.

    ``stream``: 64 random bits, from which it draws how far each step is from the law where the profile has a spread.
    """

    def __init__(self, profile: Profile, max_waiting: int | None = None, stream: int = 0) -> None:
        if profile.prefill_chunk_tokens < profile.sequences_max:
            raise ValueError(
                f"profile {profile.name}: a step's {profile.prefill_chunk_tokens} tokens can't hold {profile.sequences_max} decodes"
            )
        self.profile = profile
        self.max_waiting = max_waiting
        self.slowdown = 1.0
        """Multiplies the time of every step composed from now on (a fault to be played)."""
        self.preemptions_total = 0
        self.generated_tokens_total = 0
        self.prompt_tokens_total = 0
        """Counted once per sequence, with its first token."""
        self.passes_total = 0
        """Steps begun, the one under way included: the first ones are those of the profile's warm-up."""
        self._factors = factors_of(profile.spread)
        self._places = Places(stream)
        self._block = profile.block_tokens
        self._blocks_all = profile.kv_tokens // profile.block_tokens
        self._blocks_free = self._blocks_all
        self._waiting: OrderedDict[Hashable, _Sequence] = OrderedDict()
        self._prefilling: dict[Hashable, _Sequence] = {}
        self._decoding: dict[Hashable, _Sequence] = {}
        self._decoding_kv = 0
        self._chunks: list[tuple[_Sequence, int]] = []
        self._ends_s: float | None = None
        self._last_end_s = float("-inf")
        self._effects: list[Effect] = []

    def __contains__(self, sequence: Hashable) -> bool:
        return sequence in self._decoding or sequence in self._prefilling or sequence in self._waiting

    @property
    def waiting(self) -> int:
        """Sequences without a slot, preempted ones included."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences that hold KV: prefilling and decoding."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def kv_usage(self) -> float:
        """Fraction 0..1 of blocks taken."""
        return 1.0 - self._blocks_free / self._blocks_all

    @property
    def kv_tokens_used(self) -> int:
        """Tokens in the cache (the last block of a sequence is rarely full, so less than the blocks hold)."""
        return self._decoding_kv + sum(sequence.kv for sequence in self._prefilling.values())

    def submit(self, sequence: Hashable, prompt_tokens: int, output_tokens: int, now_s: float) -> None:
        """Take ``sequence`` in; an idle engine starts a step with it at once.

        Raises TooLong (it could never fit), WaitingFull, or ValueError (no tokens, or a name already here).
        """
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError(f"a sequence has at least one token each of prompt and output, not {prompt_tokens} and {output_tokens}")
        self._refuse_too_long(prompt_tokens, output_tokens)
        self._run(now_s)
        if sequence in self:
            raise ValueError(f"sequence {sequence!r} is already in the engine")
        if self.max_waiting is not None and self._ends_s is not None and len(self._waiting) >= self.max_waiting:
            raise WaitingFull(f"{len(self._waiting)} sequences wait, and {self.max_waiting} may")
        self._waiting[sequence] = _Sequence(sequence, prompt_tokens, output_tokens)
        if self._ends_s is None:
            self._compose(max(now_s, self._last_end_s), [])

    def abort(self, sequence: Hashable, now_s: float) -> bool:
        """Forget ``sequence`` in any state and free its blocks at once; False if it isn't here (any more).

        A step under way goes on for as long as it was to take. No effect returned after this call names ``sequence``.
        """
        self._run(now_s)
        if self._effects:
            self._effects = [effect for effect in self._effects if effect.sequence != sequence]
        found = self._waiting.pop(sequence, None)
        if found is None:
            found = self._leave(sequence)
        if found is None:
            return False
        found.gone = True
        return True

    def next_deadline_s(self) -> float | None:
        """When ``advance`` will have something to do: the end of the step under way; None while idle."""
        return self._effects[0].at_s if self._effects else self._ends_s

    def advance(self, now_s: float) -> list[Effect]:
        """Run every step that ends by ``now_s``; what they brought, in order of time."""
        self._run(now_s)
        effects, self._effects = self._effects, []
        return effects

    def _refuse_too_long(self, prompt_tokens: int, output_tokens: int) -> None:
        profile = self.profile
        if prompt_tokens + output_tokens > profile.context_tokens:
            raise TooLong(
                f"{prompt_tokens} prompt and {output_tokens} output tokens exceed the context of {profile.context_tokens}; shorten either"
            )
        # The last token emitted is never cached.
        if prompt_tokens + output_tokens - 1 > self._blocks_all * self._block:
            raise TooLong(
                f"{prompt_tokens} prompt and {output_tokens} output tokens exceed the {profile.kv_tokens} tokens of KV; shorten either"
            )

    def _run(self, now_s: float) -> None:
        while self._ends_s is not None and self._ends_s <= now_s:
            end_s = self._ends_s
            self._last_end_s = end_s
            hungry = self._complete(end_s)
            self._compose(end_s, hungry)

    def _complete(self, end_s: float) -> list[_Sequence]:
        """Give the step's tokens; returns the decoding sequences whose next token needs one more block."""
        hungry: list[_Sequence] = []
        finished: list[_Sequence] = []
        add = self._effects.append
        for sequence in self._decoding.values():
            sequence.kv = kv = sequence.kv + 1
            sequence.emitted = emitted = sequence.emitted + 1
            add(Token(sequence.name, end_s, False))
            if emitted == sequence.output:
                add(Finished(sequence.name, end_s))
                finished.append(sequence)
            elif kv == sequence.room:
                hungry.append(sequence)
        self._decoding_kv += len(self._decoding)
        self.generated_tokens_total += len(self._decoding)
        for sequence in finished:
            self._leave(sequence.name)
        for sequence, tokens in self._chunks:
            if not sequence.gone:
                self._prefilled(sequence, tokens, end_s, hungry)
        return hungry

    def _prefilled(self, sequence: _Sequence, tokens: int, end_s: float, hungry: list[_Sequence]) -> None:
        sequence.kv += tokens
        if sequence.kv < sequence.target:
            return
        first = sequence.emitted == 0
        if first:
            self.prompt_tokens_total += sequence.prompt
        sequence.emitted += 1
        self.generated_tokens_total += 1
        self._effects.append(Token(sequence.name, end_s, first))
        if sequence.emitted == sequence.output:
            self._effects.append(Finished(sequence.name, end_s))
            self._leave(sequence.name)
            return
        del self._prefilling[sequence.name]
        self._decoding[sequence.name] = sequence
        self._decoding_kv += sequence.kv
        if sequence.kv == sequence.room:
            hungry.append(sequence)

    def _compose(self, start_s: float, hungry: list[_Sequence]) -> None:
        """Decide what the step from ``start_s`` on does, and how long it takes."""
        self._grow(start_s, hungry)
        budget = left = self.profile.prefill_chunk_tokens - len(self._decoding)
        self._chunks = chunks = []
        for sequence in self._prefilling.values():
            if not left:
                break
            tokens = min(sequence.target - sequence.kv, left)
            chunks.append((sequence, tokens))
            left -= tokens
        if self._waiting:
            left = self._admit(left)
        if self._decoding or chunks:
            self._ends_s = start_s + self._step_s(budget - left) * self._pace() * self.slowdown
            self.passes_total += 1
        else:
            self._ends_s = None

    def _pace(self) -> float:
        """How many times as long as in a warm engine the step being composed takes."""
        warm_up = self.profile.warm_up
        return warm_up.factor if self.passes_total < warm_up.passes else 1.0

    def _step_s(self, prefill_tokens: int) -> float:
        """What the step takes; prompts cost what the law says, the rest scatters."""
        law, decoding, kv_tokens = self.profile.law, len(self._decoding), self._decoding_kv
        if not self._factors:
            return step_s(law, decoding, kv_tokens, prefill_tokens)
        return step_s(law, decoding, kv_tokens, 0) * self._factors[self._places.next()] + law.per_prefill_token_s * prefill_tokens

    def _admit(self, left: int) -> int:
        """Move waiting sequences into the step while slots, budget ``left`` and blocks last; returns the budget left."""
        slots = self.profile.sequences_max - self.running
        while self._waiting and left and slots:
            sequence = next(iter(self._waiting.values()))
            blocks = -(-sequence.target // self._block)
            if blocks > self._blocks_free:
                break
            del self._waiting[sequence.name]
            self._blocks_free -= blocks
            sequence.room = blocks * self._block
            self._prefilling[sequence.name] = sequence
            tokens = min(sequence.target, left)
            self._chunks.append((sequence, tokens))
            left -= tokens
            slots -= 1
        return left

    def _grow(self, now_s: float, hungry: list[_Sequence]) -> None:
        """Give each hungry sequence a block, oldest first, at the cost of the newest ones."""
        for sequence in hungry:
            while sequence.room and not self._blocks_free:
                self._preempt(next(reversed(self._prefilling or self._decoding)), now_s)
            if sequence.room:
                self._blocks_free -= 1
                sequence.room += self._block

    def _preempt(self, name: Hashable, now_s: float) -> None:
        victim = self._leave(name)
        assert victim is not None
        victim.kv = 0
        victim.room = 0
        victim.target = victim.prompt + victim.emitted
        self._waiting[name] = victim
        self._waiting.move_to_end(name, last=False)
        self.preemptions_total += 1
        self._effects.append(Preempted(name, now_s))

    def _leave(self, name: Hashable) -> _Sequence | None:
        """Take a running sequence out and free its blocks."""
        sequence = self._decoding.pop(name, None)
        if sequence is not None:
            self._decoding_kv -= sequence.kv
        else:
            sequence = self._prefilling.pop(name, None)
        if sequence is not None:
            self._blocks_free += sequence.room // self._block
        return sequence

    def check(self) -> None:
        """Assert the invariants: blocks conserved, nobody in two places, limits held, nothing waits on an idle engine."""
        running = [*self._decoding.values(), *self._prefilling.values()]
        names = [*self._decoding, *self._prefilling, *self._waiting]
        assert len(set(names)) == len(names), "a sequence is in two places"
        assert self._blocks_free >= 0, "more blocks taken than there are"
        assert self._blocks_free + sum(s.room for s in running) // self._block == self._blocks_all, "blocks leak"
        assert len(running) <= self.profile.sequences_max, "more sequences than slots"
        assert self._decoding_kv == sum(s.kv for s in self._decoding.values()), "KV tokens miscounted"
        for sequence in running:
            assert 0 <= sequence.emitted < sequence.output, "a running sequence has given all its tokens"
            assert sequence.room % self._block == 0, "a part of a block is held"
            assert sequence.kv <= sequence.room, "KV outside its blocks"
            assert not sequence.gone, "an aborted sequence runs"
        for sequence in self._decoding.values():
            assert sequence.kv == sequence.prompt + sequence.emitted - 1, "a decoding sequence's KV does not match its tokens"
            assert self._ends_s is None or sequence.kv < sequence.room, "a decode under way has no room for its token"
        for sequence in self._waiting.values():
            assert sequence.room == 0, "a waiting sequence holds blocks"
        assert self._ends_s is not None or not names, "an idle engine has work"
