"""Drives one ``engine.batch.Engine`` by the world's clock: one timer, submissions, aborts, and what they add to the stats.

A request reaches the engine ``front_end_s`` after it arrived, and a token is handed on when its step ends. However late
a timer fires, events are taken in order of their own times, so a busy machine delays bytes but changes no number.
The engine tells how many wait, not who: since it admits in order and puts the preempted back in front, a mirror of that
line tells when each sequence left it.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Protocol

from forebay.domain.profile import Profile
from forebay.emulator.stats import RequestTimes, Stats
from forebay.engine.batch import Engine, Finished, Preempted, Token
from forebay.ports import Clock, TimerHandle


class Listener(Protocol):
    """Whoever a sequence's tokens are for."""

    def flush(self) -> None:
        """The tick is over: send what its sequences have produced."""
        ...


class Sequence:
    """One choice of one request inside the engine. ``produced`` counts its tokens, ``sent`` those that left the server."""

    __slots__ = ("counted", "done", "listener", "marked", "output_tokens", "produced", "reason", "sent", "times")

    def __init__(self, listener: Listener, times: RequestTimes, output_tokens: int, reason: str) -> None:
        self.listener = listener
        self.times = times
        self.output_tokens = output_tokens
        self.reason = reason
        """Why it will finish, ``stop`` or ``length``; ``abort`` once it was aborted."""
        self.produced = 0
        self.sent = 0
        self.done = False
        self.counted = False
        """Whether its end is in the stats."""
        self.marked = False


class Core:
    """The engine behind one port. ``advanced`` sequences are flushed once per tick, however many steps it took in."""

    def __init__(self, profile: Profile, clock: Clock, stats: Stats, stream: int = 0) -> None:
        """``stream``: 64 random bits, which step times are drawn from where the profile has a spread."""
        self.engine = Engine(profile, stream=stream)
        self.stats = stats
        self._front_end_s = profile.front_end_s
        self._clock = clock
        self._shift_s = 0.0
        """World time minus engine time: the length of all hangs so far."""
        self._hung_at_s: float | None = None
        self._arriving: deque[tuple[float, Sequence]] = deque()
        self._waiting: OrderedDict[Sequence, None] = OrderedDict()
        self._timer: TimerHandle | None = None
        self._timer_at_s = 0.0
        self._begun: list[Sequence] = []
        self._dirty: list[Sequence] = []
        self.after_tick: Callable[[], None] | None = None
        """Called after tokens were handed on."""

    @property
    def queued(self) -> int:
        """Requests that are here and not finished: on their way in, waiting and running."""
        return len(self._arriving) + self.engine.waiting + self.engine.running

    @property
    def hung(self) -> bool:
        """Whether steps have stopped."""
        return self._hung_at_s is not None

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Let ``sequences`` in, ``front_end_s`` from now."""
        due_s = self._clock.now_s() + self._front_end_s
        self._arriving.extend((due_s, sequence) for sequence in sequences)
        self._arm()

    def abort(self, sequences: Iterable[Sequence]) -> None:
        """Forget ``sequences``; their KV is free when this returns."""
        self.pump()
        now_s = self._engine_now_s()
        gone = {sequence for sequence in sequences if not sequence.done}
        if self._arriving:
            self._arriving = deque(item for item in self._arriving if item[1] not in gone)
        for sequence in gone:
            sequence.done = True
            sequence.reason = "abort"
            self._waiting.pop(sequence, None)
            self.engine.abort(sequence, now_s)
        self._arm()

    def hang(self, hung: bool) -> None:
        """Stop stepping, or go on from where it stopped."""
        now_s = self._clock.now_s()
        if hung and self._hung_at_s is None:
            self.pump()
            self.refresh()
            self._hung_at_s = now_s
        elif not hung and self._hung_at_s is not None:
            self._shift_s += now_s - self._hung_at_s
            self._hung_at_s = None
            # What arrived meanwhile gets in now, not in the past.
            self._arriving = deque((max(due_s, now_s), sequence) for due_s, sequence in self._arriving)
        self._arm()

    def slow(self, factor: float) -> None:
        """Steps take ``factor`` times as long from the next one on."""
        self.engine.slowdown = factor

    def refresh(self) -> None:
        """Bring the gauges up to date; a wedged engine's stay as they were."""
        if self._hung_at_s is None:
            self.stats.running.value = self.engine.running
            self.stats.waiting.value = self.engine.waiting
            self.stats.kv_usage.value = self.engine.kv_usage

    def close(self) -> None:
        """No timer fires after this."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _engine_now_s(self) -> float:
        return (self._clock.now_s() if self._hung_at_s is None else self._hung_at_s) - self._shift_s

    def _next_s(self) -> float | None:
        """World time of the next event; None while idle or hung (arrivals of a hung engine wait as its line does)."""
        if self._hung_at_s is not None:
            return None
        deadline_s = self.engine.next_deadline_s()
        step_s = None if deadline_s is None else deadline_s + self._shift_s
        if self._arriving and (step_s is None or self._arriving[0][0] < step_s):
            return self._arriving[0][0]
        return step_s

    def _arm(self) -> None:
        at_s = self._next_s()
        if self._timer is not None:
            if at_s == self._timer_at_s:
                return
            self._timer.cancel()
            self._timer = None
        if at_s is not None:
            self._timer_at_s = at_s
            self._timer = self._clock.call_at(at_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.pump(self._timer_at_s)

    def pump(self, at_least_s: float = 0.0) -> None:
        """Take every event up to now in order, then let each request that got tokens send them.

        A timer's own time has come when it fires, even where the loop's clock is coarser and still behind it.
        """
        now_s = max(self._clock.now_s(), at_least_s)
        while (at_s := self._next_s()) is not None and at_s <= now_s:
            deadline_s = self.engine.next_deadline_s()
            if deadline_s is not None and deadline_s + self._shift_s <= at_s:
                self._step(deadline_s)
            else:
                self._let_in(at_s)
        self._arm()
        self._flush()

    def _let_in(self, at_s: float) -> None:
        _, sequence = self._arriving.popleft()
        times = sequence.times
        times.queued_s = at_s
        self._waiting[sequence] = None
        self.engine.submit(sequence, times.prompt_tokens, sequence.output_tokens, at_s - self._shift_s)
        self._note_admitted(at_s)

    def _note_admitted(self, at_s: float) -> None:
        while len(self._waiting) > self.engine.waiting:
            sequence, _ = self._waiting.popitem(last=False)
            if sequence.times.scheduled_s is None:
                sequence.times.scheduled_s = at_s

    def _step(self, deadline_s: float) -> None:
        """One engine step has ended: count what it brought."""
        stats = self.stats
        at_s = deadline_s + self._shift_s
        tokens = prompts = gaps = 0
        gap_s = 0.0
        for effect in self.engine.advance(deadline_s):
            sequence = effect.sequence
            assert isinstance(sequence, Sequence)
            if type(effect) is Token:
                tokens += 1
                times = sequence.times
                if effect.first:
                    prompts += times.prompt_tokens
                    stats.first_token(times, at_s)
                else:
                    # Sequences of one batch mostly share the gap to their last token: count them together.
                    gap = at_s - times.last_s
                    if gap != gap_s and gaps:
                        stats.itl_s.observe(gap_s, gaps)
                        gaps = 0
                    gap_s = gap
                    gaps += 1
                    times.last_s = at_s
                sequence.produced += 1
                if not sequence.marked:
                    sequence.marked = True
                    (self._begun if effect.first else self._dirty).append(sequence)
            elif type(effect) is Finished:
                sequence.done = True
            elif type(effect) is Preempted:
                sequence.times.preemptions += 1
                stats.preemptions.value += 1
                self._waiting[sequence] = None
                self._waiting.move_to_end(sequence, last=False)
        if gaps:
            stats.itl_s.observe(gap_s, gaps)
        stats.generation_tokens.value += tokens
        stats.step_tokens.observe(tokens + prompts)
        self._note_admitted(at_s)

    def _flush(self) -> None:
        # First tokens leave first: each write takes real time, and behind fifty others it would be some milliseconds of every TTFT.
        dirty, self._begun, self._dirty = [*self._begun, *self._dirty], [], []
        for sequence in dirty:
            sequence.marked = False
        # A dict keeps the order and drops the repeats of a request with several choices.
        for listener in dict.fromkeys(sequence.listener for sequence in dirty):
            listener.flush()
        if dirty and self.after_tick is not None:
            self.after_tick()
