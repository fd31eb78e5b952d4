"""The batching machine against a plain judge that recomputes everything from lists at every step, and hand-worked cases."""

import math

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.domain.errors import ForebayError
from forebay.domain.profile import ColdStart, Profile, StepLaw, WarmUp
from forebay.engine.batch import Effect, Engine, Finished, Token, TooLong, WaitingFull
from forebay.engine.catalogue import PROFILES

WHOLE = StepLaw(base_s=1.0, per_sequence_s=0.0, per_kv_token_s=0.0, per_prefill_token_s=0.0)


def tiny(law: StepLaw = WHOLE, sequences: int = 4, kv_tokens: int = 64, block: int = 4, chunk: int = 8, context: int = 64) -> Profile:
    return Profile(
        name="tiny",
        model="m",
        hardware="h",
        gpus=1,
        law=law,
        sequences_max=sequences,
        kv_tokens=kv_tokens,
        block_tokens=block,
        prefill_chunk_tokens=chunk,
        kv_bytes_per_token=1,
        context_tokens=context,
        cold_start=ColdStart(provision_s=1, weights_bytes=1, weights_bandwidth_bytes_per_s=1, init_s=1),
    )


class Job:
    def __init__(self, name: int, prompt: int, output: int) -> None:
        self.name, self.prompt, self.output = name, prompt, output
        self.emitted = self.kv = self.blocks = self.chunk = 0
        self.decoding = False

    def to_compute(self) -> int:
        """What the cache lacks: one token for a decode, the rest of the prompt (and of what was emitted) otherwise."""
        return self.prompt + self.emitted - self.kv


class Judge:
    """Slow and plain: one running list in order of admission, free blocks counted anew each time."""

    def __init__(self, profile: Profile) -> None:
        self.p = profile
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.ends: float | None = None
        self.last = -math.inf
        self.out: list[tuple[object, ...]] = []
        self.preemptions = self.generated = self.prompts = 0

    def free(self) -> int:
        return self.p.kv_tokens // self.p.block_tokens - sum(job.blocks for job in self.running)

    def submit(self, name: int, prompt: int, output: int, now: float) -> None:
        self.run(now)
        self.waiting.append(Job(name, prompt, output))
        if self.ends is None:
            self.start(max(now, self.last))

    def abort(self, name: int, now: float) -> bool:
        self.run(now)
        self.out = [effect for effect in self.out if effect[1] != name]
        before = len(self.waiting) + len(self.running)
        self.waiting = [job for job in self.waiting if job.name != name]
        self.running = [job for job in self.running if job.name != name]
        return len(self.waiting) + len(self.running) < before

    def run(self, now: float) -> None:
        while self.ends is not None and self.ends <= now:
            self.last = self.ends
            self.finish(self.ends)
            self.start(self.last)

    def finish(self, at: float) -> None:
        for job in list(self.running):
            if not job.chunk:
                continue
            job.kv += job.chunk
            job.chunk = 0
            if job.to_compute():
                continue
            if not job.emitted:
                self.prompts += job.prompt
            job.emitted += 1
            job.decoding = True
            self.generated += 1
            self.out.append(("token", job.name, at, job.emitted == 1))
            if job.emitted == job.output:
                self.out.append(("finished", job.name, at))
                self.running.remove(job)

    def start(self, at: float) -> None:
        budget = self.p.prefill_chunk_tokens
        preempted = False
        position = 0
        while position < len(self.running):
            job = self.running[position]
            position += 1
            want = math.ceil((job.kv + 1) / self.p.block_tokens) if job.decoding else job.blocks
            while job in self.running and job.blocks < want:
                if self.free():
                    job.blocks += 1
                    continue
                preempted = True
                victim = self.running.pop()
                victim.kv = victim.blocks = 0
                victim.decoding = False
                self.waiting.insert(0, victim)
                self.preemptions += 1
                self.out.append(("preempted", victim.name, at))
        for job in self.running:
            job.chunk = min(job.to_compute(), budget)
            budget -= job.chunk
        while self.waiting and not preempted and budget and len(self.running) < self.p.sequences_max:
            job = self.waiting[0]
            need = math.ceil((job.prompt + job.emitted) / self.p.block_tokens)
            if need > self.free():
                break
            self.running.append(self.waiting.pop(0))
            job.blocks = need
            job.chunk = min(job.to_compute(), budget)
            budget -= job.chunk
        decodes = [job for job in self.running if job.decoding]
        prefill = sum(job.chunk for job in self.running) - len(decodes)
        law = self.p.law
        seconds = (
            law.base_s
            + law.per_sequence_s * len(decodes)
            + law.per_kv_token_s * sum(job.kv for job in decodes)
            + law.per_prefill_token_s * prefill
        )
        self.ends = at + seconds if self.running else None

    def usage(self) -> float:
        return 1 - self.free() / (self.p.kv_tokens // self.p.block_tokens)


def plain(effects: list[Effect]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for effect in effects:
        if isinstance(effect, Token):
            rows.append(("token", effect.sequence, effect.at_s, effect.first))
        else:
            rows.append(("finished" if isinstance(effect, Finished) else "preempted", effect.sequence, effect.at_s))
    return rows


LAWS = (WHOLE, StepLaw(base_s=0.5, per_sequence_s=0.25, per_kv_token_s=0.03125, per_prefill_token_s=0.125))
"""Powers of two, so that times are exact and ties are real."""


class Batching(RuleBasedStateMachine):
    """Submissions, aborts and advances in any order, at tied, early and late times: event by event as the judge says."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.names = 0
        self.asked: dict[int, int] = {}
        self.given: dict[int, int] = {}
        self.engine: Engine | None = None
        self.judge: Judge | None = None

    @precondition(lambda self: self.engine is None)
    @rule(
        law=st.sampled_from(LAWS),
        sequences=st.integers(1, 5),
        blocks=st.integers(2, 12),
        block=st.sampled_from([1, 2, 4]),
        chunk=st.integers(5, 9),
    )
    def build(self, law: StepLaw, sequences: int, blocks: int, block: int, chunk: int) -> None:
        profile = tiny(law, sequences=sequences, kv_tokens=blocks * block, block=block, chunk=chunk)
        self.engine, self.judge = Engine(profile), Judge(profile)

    def later(self, kind: str) -> float:
        assert self.judge is not None
        if kind == "at the end of the step" and self.judge.ends is not None:
            self.now = max(self.now, self.judge.ends)
        elif kind == "a little":
            self.now += 0.375
        elif kind == "much":
            self.now += 17.0
        return self.now

    when = st.sampled_from(["now", "a little", "at the end of the step", "at the end of the step", "much"])

    @precondition(lambda self: self.engine is not None)
    @rule(prompt=st.integers(1, 20), output=st.integers(1, 12), kind=when)
    def submit(self, prompt: int, output: int, kind: str) -> None:
        assert self.engine is not None
        assert self.judge is not None
        now = self.later(kind)
        name = self.names = self.names + 1
        if prompt + output - 1 > self.judge.p.kv_tokens // self.judge.p.block_tokens * self.judge.p.block_tokens:
            with pytest.raises(TooLong):
                self.engine.submit(name, prompt, output, now)
            return
        self.asked[name] = output
        self.engine.submit(name, prompt, output, now)
        self.judge.submit(name, prompt, output, now)

    @precondition(lambda self: self.names > 0)
    @rule(pick=st.integers(0, 4), kind=when)
    def abort(self, pick: int, kind: str) -> None:
        assert self.engine is not None
        assert self.judge is not None
        now = self.later(kind)
        name = max(1, self.names - pick)
        assert self.engine.abort(name, now) == self.judge.abort(name, now)
        assert name not in self.engine

    @precondition(lambda self: self.engine is not None)
    @rule(kind=when)
    def advance(self, kind: str) -> None:
        assert self.engine is not None
        assert self.judge is not None
        now = self.later(kind)
        self.judge.run(now)
        effects = plain(self.engine.advance(now))
        assert effects == self.judge.out
        self.judge.out = []
        times = [effect[2] for effect in effects]
        assert times == sorted(times)  # type: ignore[type-var]
        for effect in effects:
            if effect[0] == "token":
                name = effect[1]
                assert isinstance(name, int)
                self.given[name] = self.given.get(name, 0) + 1
                assert self.given[name] <= self.asked[name]

    @invariant()
    def agree(self) -> None:
        if self.engine is None or self.judge is None:
            return
        engine, judge = self.engine, self.judge
        engine.check()
        assert engine.waiting == len(judge.waiting)
        assert engine.running == len(judge.running)
        assert engine.kv_usage == pytest.approx(judge.usage())
        assert engine.kv_tokens_used == sum(job.kv for job in judge.running)
        assert engine.preemptions_total == judge.preemptions
        assert engine.generated_tokens_total == judge.generated
        assert engine.prompt_tokens_total == judge.prompts
        assert engine.next_deadline_s() == (judge.out[0][2] if judge.out else judge.ends)


TestBatching = Batching.TestCase
TestBatching.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def run_out(engine: Engine, until_s: float = math.inf) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    while (deadline := engine.next_deadline_s()) is not None and deadline <= until_s:
        rows += plain(engine.advance(deadline))
    return rows


def test_first_token_comes_with_the_step_that_completes_the_prompt() -> None:
    engine = Engine(tiny())
    engine.submit("a", prompt_tokens=20, output_tokens=2, now_s=10.0)  # 8 tokens a step: 3 steps
    assert run_out(engine) == [("token", "a", 13.0, True), ("token", "a", 14.0, False), ("finished", "a", 14.0)]
    assert (engine.running, engine.waiting, engine.kv_usage) == (0, 0, 0.0)
    assert engine.next_deadline_s() is None


def test_decodes_take_their_share_of_the_step_first() -> None:
    engine = Engine(tiny())
    engine.submit("a", 8, 10, 0.0)
    engine.submit("b", 14, 1, 0.5)  # 7 tokens a step are left beside a's decode: 2 steps
    rows = run_out(engine)
    assert ("token", "b", 3.0, True) in rows
    assert [row[2] for row in rows if row[1] == "a" and row[0] == "token"] == [float(n) for n in range(1, 11)]


def test_step_time_counts_the_kv_that_is_read() -> None:
    law = StepLaw(base_s=1.0, per_sequence_s=0.5, per_kv_token_s=0.25, per_prefill_token_s=0.125)
    engine = Engine(tiny(law))
    engine.submit("a", 4, 3, 0.0)
    # Prefill 1 + 4/8; then a decode over 4, then over 5 cached tokens.
    ends = [1.5, 1.5 + 1.5 + 1.0, 1.5 + 1.5 + 1.0 + 1.5 + 1.25]
    assert [row[2] for row in run_out(engine) if row[0] == "token"] == ends


def test_the_newest_is_preempted_and_keeps_what_it_gave() -> None:
    engine = Engine(tiny(kv_tokens=16, block=4, chunk=16))
    engine.submit("old", 4, 9, 0.0)
    engine.submit("new", 4, 9, 0.0)
    rows = run_out(engine)
    # Both hold 2 blocks until their 8 tokens are full; then the newer gives way, and starts again at the front.
    assert engine.preemptions_total == 1
    preempted = next(row for row in rows if row[0] == "preempted")
    assert preempted[1] == "new"
    assert [row[:2] for row in rows if row[0] == "finished"] == [("finished", "old"), ("finished", "new")]
    assert sum(row[:2] == ("token", "new") for row in rows) == 9
    assert sum(row[:2] == ("token", "new") and row[3] is True for row in rows) == 1
    assert engine.prompt_tokens_total == 8
    assert engine.generated_tokens_total == 18


def test_a_step_under_way_goes_on_when_its_sequence_is_aborted() -> None:
    engine = Engine(tiny())
    engine.submit("a", 8, 10, 0.0)
    assert engine.kv_usage == 2 / 16
    assert engine.abort("a", 0.5)
    assert engine.kv_usage == 0.0
    assert not engine.abort("a", 0.5)
    engine.submit("b", 8, 1, 0.5)
    assert run_out(engine) == [("token", "b", 2.0, True), ("finished", "b", 2.0)]


def test_a_name_can_come_again_after_its_abort() -> None:
    engine = Engine(tiny())
    engine.submit("a", 8, 10, 0.0)
    engine.abort("a", 0.5)
    engine.submit("a", 6, 1, 0.5)
    assert run_out(engine) == [("token", "a", 2.0, True), ("finished", "a", 2.0)]


def test_a_late_call_sees_no_sequence_before_it_came() -> None:
    engine = Engine(tiny())
    engine.submit("a", 8, 3, 0.0)
    engine.submit("b", 8, 1, 100.0)  # nobody advanced meanwhile
    assert engine.next_deadline_s() == 1.0
    rows = plain(engine.advance(200.0))
    assert [row for row in rows if row[1] == "b"] == [("token", "b", 101.0, True), ("finished", "b", 101.0)]
    assert [row[2] for row in rows] == sorted(float(str(row[2])) for row in rows)


def test_a_clock_that_steps_back_starts_no_step_in_the_past() -> None:
    engine = Engine(tiny())
    engine.submit("a", 8, 1, 5.0)
    engine.advance(6.0)
    engine.submit("b", 8, 1, 5.5)
    assert engine.next_deadline_s() == 7.0


def test_what_can_never_fit_is_refused_with_what_is_allowed() -> None:
    engine = Engine(tiny(kv_tokens=32, context=64))
    with pytest.raises(TooLong, match="32 tokens of KV"):
        engine.submit("a", 30, 4, 0.0)
    engine.submit("a", 30, 3, 0.0)  # the last token is never cached: 32 fit
    with pytest.raises(TooLong, match="context of 64"):
        Engine(tiny(kv_tokens=512)).submit("a", 60, 5, 0.0)
    with pytest.raises(ValueError, match="already"):
        engine.submit("a", 1, 1, 0.0)
    with pytest.raises(ValueError, match="at least one token"):
        engine.submit("b", 0, 1, 0.0)
    assert issubclass(TooLong, ValueError)
    assert issubclass(TooLong, ForebayError)


def test_the_waiting_line_is_bounded() -> None:
    engine = Engine(tiny(sequences=1), max_waiting=2)
    for name in range(3):
        engine.submit(name, 8, 50, 0.0)
    with pytest.raises(WaitingFull, match="2 may"):
        engine.submit(3, 8, 50, 0.0)
    assert engine.waiting == 2
    assert 3 not in engine


def test_a_slowed_engine_takes_longer_steps_from_the_next_one_on() -> None:
    engine = Engine(tiny())
    engine.submit("a", 8, 3, 0.0)
    engine.slowdown = 4.0
    assert [row[2] for row in run_out(engine) if row[0] == "token"] == [1.0, 5.0, 9.0]


def test_the_first_passes_of_a_cold_engine_are_slow_whoever_they_are_for() -> None:
    """Three passes take 4 s each, its prompts' among them; an idle engine gets no warmer, and a new one is cold."""
    profile = msgspec.structs.replace(tiny(), warm_up=WarmUp(3, 4.0))
    engine = Engine(profile)
    engine.submit("a", 8, 2, 0.0)
    assert [row[2] for row in run_out(engine) if row[0] == "token"] == [4.0, 8.0]
    engine.submit("b", 8, 3, 100.0)
    assert [row[2] for row in run_out(engine) if row[0] == "token"] == [104.0, 105.0, 106.0]
    assert engine.passes_total == 5
    again = Engine(profile)
    again.submit("a", 8, 1, 0.0)
    assert [row[2] for row in run_out(again) if row[0] == "token"] == [4.0]


def test_a_profile_whose_step_cannot_hold_its_decodes_is_refused() -> None:
    with pytest.raises(ValueError, match="can't hold 9 decodes"):
        Engine(tiny(sequences=9, chunk=8))


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_shipped_profile_runs(name: str) -> None:
    engine = Engine(PROFILES[name])
    for number in range(4):
        engine.submit(number, 400, 8, 0.0)
    rows = run_out(engine)
    assert sum(row[0] == "finished" for row in rows) == 4
    engine.check()


@pytest.mark.parametrize("damage", ["_blocks_free", "_decoding_kv"])
def test_check_notices_a_miscount(damage: str) -> None:
    engine = Engine(tiny())
    engine.submit("a", 8, 3, 0.0)
    engine.advance(1.0)
    engine.check()
    setattr(engine, damage, getattr(engine, damage) + 1)
    with pytest.raises(AssertionError):
        engine.check()
