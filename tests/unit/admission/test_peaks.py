"""The KV peak from buckets, against the exact one of sequences that decode in step."""

import random

import hypothesis.strategies as st
from hypothesis import given, settings

from forebay.admission.fairness import Account
from forebay.admission.kv import peak_kv_tokens
from forebay.admission.lanes import Lane
from forebay.admission.machine import Admission
from forebay.admission.memory import EXACT_MAX
from forebay.admission.peaks import WIDTH, Peaks
from forebay.admission.tickets import Ticket
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

TIER = Tier("only", rank=0, ttft_s=1e9, longest_wait_s=1e9)
LANE = Lane(TIER, 0, {})
ACCOUNT = Account("t", 1.0)


def ticket(number: int, prompt: int, output: int, sequences: int = 1) -> Ticket:
    return Ticket(number, LANE, ACCOUNT, Shape(prompt, output, sequences=sequences), 0.0)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 60), st.integers(1, 16))
def test_it_is_the_exact_peak_but_for_buckets_and_reports_that_are_not_in_yet(seed: int, count: int, quantum: int) -> None:
    chance = random.Random(seed)
    peaks = Peaks()
    running: dict[int, Ticket] = {}
    emitted: dict[int, int] = {}
    """What each has really emitted: all go one token a step."""
    number = 0
    for _ in range(60):
        if len(running) < count:
            number += 1
            running[number] = ticket(number, chance.randint(1, 300), chance.randint(1, 400))
            emitted[number] = 0
            peaks.add(running[number])
        for one in list(running):
            emitted[one] += 1
            entry = running[one]
            if emitted[one] >= entry.output:
                peaks.remove(entry)
                del running[one]
            elif emitted[one] % quantum == one % quantum:
                tokens = emitted[one] - entry.emitted
                entry.emitted = emitted[one]
                peaks.moved(entry, tokens)
        new = ticket(-1, chance.randint(1, 300), chance.randint(1, 400))
        sequences = [(entry.output - emitted[one], entry.prompt + emitted[one]) for one, entry in running.items()]
        exact = peak_kv_tokens([*sequences, (new.output, new.prompt)])
        off = len(sequences) + 1
        assert exact - 2 * quantum * off <= peaks.with_one_more(new) <= exact + (WIDTH + 2 * quantum) * off


def test_one_that_is_about_to_end_is_not_taken_for_one_that_never_will() -> None:
    """The count of steps ran ahead of its reports by three, and its KV was counted for as long as any other ran."""
    ending, long = ticket(1, 300, 32), ticket(2, 100, 400)
    peaks = Peaks()
    for one in (ending, long):
        peaks.add(one)
    for _ in range(35):
        long.emitted += 1
        peaks.moved(long, 1)
    new = ticket(3, 200, 150)
    now = ending.prompt + ending.output + long.prompt + long.emitted + new.prompt
    assert now <= peaks.with_one_more(new) <= now + WIDTH


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500), st.integers(1, 4)), min_size=1, max_size=60))
def test_before_any_report_it_is_never_less_than_the_exact_peak(shapes: list[tuple[int, int, int]]) -> None:
    tickets = [ticket(number, *shape) for number, shape in enumerate(shapes)]
    peaks = Peaks()
    for one in tickets[1:]:
        peaks.add(one)
    exact = peak_kv_tokens([pair for one in tickets for pair in one.spread()])
    held = sum(one.sequences for one in tickets)
    assert exact <= peaks.with_one_more(tickets[0]) <= exact + (WIDTH + 1) * held


def test_what_should_have_ended_and_did_not_is_still_held() -> None:
    """Answers that come whole report nothing: one that outlives its estimate must not be taken for gone."""
    peaks = Peaks()
    silent, loud = ticket(1, 1000, 10), ticket(2, 100, 5000)
    peaks.add(silent)
    peaks.add(loud)
    for _ in range(20):
        loud.emitted += 32
        peaks.moved(loud, 32)
    assert peaks.with_one_more(ticket(3, 10, 10)) >= 100 + 5000 + 1000


def test_many_permits_of_one_replica_are_counted_by_buckets_and_few_exactly() -> None:
    pool = Admission("chat", (TIER,), 1000)
    capacity = Capacity(40_000, 256, 10**9, 0.0, 0.0, 10**6)
    pool.set_roster(RosterPool("chat", (RosterReplica("r0", "http://r0", capacity),)), 0.0)
    chance = random.Random(5)
    running: list[int] = []
    for number in range(400):
        if pool.arrive(number, "only", "t", Shape(chance.randint(50, 200), chance.randint(50, 800)), 0.0):
            running.append(number)
            pool.emitted(number, 32)
    replica = pool._replicas.listed[0]
    assert len(running) > 2 * EXACT_MAX
    assert replica._peaks is not None
    assert replica.worst_tokens > 40_000, "more than worst cases would let in"
    held = peak_kv_tokens([pair for permit in replica.permits.values() for pair in permit.spread()])
    assert held <= 40_000
    pool.check()
    while replica.permits:
        pool.finish(next(iter(replica.permits)), Usage(1, 1), 1.0)
        pool.check()
    assert replica._peaks is None
