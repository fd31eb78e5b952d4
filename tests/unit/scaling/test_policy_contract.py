"""What every policy owes its drivers, as properties over arbitrary observations."""

import math

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.domain.due import Due, gathered
from forebay.domain.replica import ReplicaState
from forebay.domain.scaling import MEMORY_BYTES_MAX, Decision, Observation, ReplicaObservation, TermKind
from forebay.domain.signal import Known, Unknown
from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.memory import BUCKETS_MAX, UNKNOWN_IDS_MAX, Bucket, Held, Memory, dump, load
from forebay.scaling.policy import QueueFirst
from forebay.spec.types import CalendarEntry, Scaling

MIN, MAX = 2, 12
NIGHT = CalendarEntry("night", (), tuple(range(7)), 79_200.0, 21_600.0, "America/New_York", 4)
POLICY = QueueFirst(
    Scaling(min_replicas=MIN, max_replicas=MAX, spare_replicas=1, ramp_per_s2=30 / 3600),
    PoolCapacity(rate_per_s=50 / 60, prompt_tokens_per_s=900.0, output_tokens_per_s=150.0, cold_start_s=300.0),
    (NIGHT,),
    "chat",
)
MODEST = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

any_float = st.floats() | st.sampled_from([0.0, -1.0, 1e300, -1e300, float("nan"), float("inf"), 5e-324])
any_signal = st.builds(Known, any_float, any_float) | st.builds(Unknown, st.sampled_from(["never", "timeout"]))
some_id = st.sampled_from(["chat-0", "chat-1", "", "x" * 500, "ü\x00"])
any_replica = st.builds(
    ReplicaObservation,
    id=some_id,
    state=st.sampled_from(ReplicaState),
    since_s=any_float,
    requested_s=any_float,
    waiting=any_signal,
    running=any_signal,
    kv_usage=any_signal,
    live_tokens=any_float,
    expected_ready_s=st.none() | any_float,
    overdue=st.booleans(),
)
maybe_float = st.none() | any_float
ill_held = st.builds(Held, maybe_float, st.booleans())
ill_memory = st.builds(
    Memory,
    version=st.integers(0, 2),
    now_s=maybe_float,
    wall_s=any_float,
    waiting=ill_held,
    calm=ill_held,
    breach=ill_held,
    exhausted_since_s=maybe_float,
    unknown_since_s=st.dictionaries(some_id, any_float, max_size=3),
    ready=st.integers(-5, 2**40),
    ready_rose_s=maybe_float,
    stepped_s=maybe_float,
    buckets=st.lists(st.builds(Bucket, *[any_float] * 6), max_size=4).map(tuple),
).map(msgspec.msgpack.encode)
any_observation = st.builds(
    Observation,
    pool=st.just("chat"),
    now_s=any_float,
    wall_s=any_float,
    desired=st.integers(),
    replicas=st.lists(any_replica, max_size=5).map(tuple),
    lanes_waiting=any_signal,
    arrival_per_s=any_signal,
    arrival_prompt_tokens_per_s=any_signal,
    arrival_output_tokens_per_s=any_signal,
    ttft_attainment=any_signal,
    cold_start_s=any_signal,
    past_ramps_per_s2=st.lists(any_float, max_size=3).map(tuple),
    memory=st.binary(max_size=80) | ill_memory,
    preemptible_due=st.lists(st.builds(Due, any_float, st.integers(-5, 2**70)), max_size=4).map(tuple),
)
sane_due = st.lists(st.builds(Due, st.floats(0, 5000), st.integers(1, 5000)), max_size=4).map(tuple)
sane_load = st.tuples(st.integers(0, 60), st.floats(0, 1), st.floats(0, 20))
"""Waiting, KV usage, arrivals per second."""


def seen(now_s, desired, load, memory=b"", known=True, states=(), replicas=None):
    waiting, kv, arrivals = load

    def signal(value):
        return Known(float(value), now_s) if known else Unknown("timeout")

    ready = tuple(
        ReplicaObservation(f"chat-{i}", ReplicaState.READY, 0.0, 0.0, signal(0), signal(1), signal(kv)) for i in range(replicas or desired)
    )
    others = tuple(ReplicaObservation(f"other-{i}", state, 0.0, 0.0) for i, state in enumerate(states))
    return Observation("chat", now_s, 1.7e9 + now_s, desired, ready + others, signal(waiting), signal(arrivals), memory=memory)


def after(history, step_s, desired=5):
    """Memory and desired count after a history of loads, ``step_s`` apart; None: nothing known."""
    memory, now_s = b"", 0.0
    for load_or_none in history:
        now_s += step_s
        decision = POLICY.decide(seen(now_s, desired, load_or_none or (0, 0.0, 0.0), memory, known=load_or_none is not None))
        desired, memory = decision.replicas, decision.memory
    return memory, now_s, desired


def assert_well_formed(decision):
    binding = [term for term in decision.terms if term.binding]
    assert len(binding) == 1
    assert binding[0].replicas == decision.replicas
    assert binding[0].name == decision.reason
    assert all(term.because for term in decision.terms)
    assert len({term.name for term in decision.terms}) == len(decision.terms)
    assert len(decision.memory) <= MEMORY_BYTES_MAX
    assert MIN <= decision.replicas <= MAX
    assert math.isfinite(decision.look_again_at_s)


@MODEST
@given(any_observation)
def test_total_and_well_formed_whatever_is_observed(observation):
    """No exception, one binding term, within the limits; what it says serialises and comes back equal."""
    decision = POLICY.decide(observation)
    assert_well_formed(decision)
    assert decision.reason != "hold_ill" or "clock" in decision.terms[0].because
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(decision), type=Decision) == decision


@MODEST
@given(any_observation, any_observation)
def test_memory_made_of_anything_serves_the_next_decision(first, second):
    memory = POLICY.decide(first).memory
    assert_well_formed(POLICY.decide(msgspec.structs.replace(second, memory=memory)))


@MODEST
@given(any_observation)
def test_the_same_observation_gets_the_same_decision(observation):
    assert POLICY.decide(observation) == POLICY.decide(observation)


@MODEST
@given(st.lists(st.none() | sane_load, max_size=12), st.floats(1, 400), st.integers(0, 20))
def test_unknown_never_lowers_the_count(history, step_s, desired):
    memory, now_s, _ = after(history, step_s)
    for hours in (0, 1, 5, 50):
        observation = seen(now_s + 3600 * hours + 1, desired, (0, 0.0, 0.0), memory, known=False)
        decision = POLICY.decide(observation)
        assert decision.replicas >= min(desired, MAX)
        memory = decision.memory


@MODEST
@given(st.lists(sane_load, max_size=12), st.floats(1, 100), sane_load, sane_load)
def test_more_load_never_gets_fewer_replicas_at_once(history, step_s, one, other):
    memory, now_s, desired = after(history, step_s)
    less = tuple(min(pair) for pair in zip(one, other, strict=True))
    more = tuple(max(pair) for pair in zip(one, other, strict=True))
    fewer, most = (POLICY.decide(seen(now_s + step_s, desired, load, memory)).replicas for load in (less, more))
    assert fewer <= most


@MODEST
@given(st.lists(sane_load, max_size=6), st.floats(1, 100), sane_load, sane_due, sane_due, st.integers(0, 3))
def test_more_that_is_due_never_gets_fewer_replicas(history, step_s, load_now, due, more, pending):
    memory, now_s, desired = after(history, step_s)
    states = [ReplicaState.LOADING] * pending
    seen_now = seen(now_s + step_s, desired, load_now, memory, states=states)
    counts = [
        POLICY.decide(msgspec.structs.replace(seen_now, preemptible_due=dues)).replicas
        for dues in ((), due, gathered((each.in_s, each.requests) for each in (*due, *more)))
    ]
    assert counts == sorted(counts)


@MODEST
@given(st.lists(sane_load, max_size=6), sane_load, sane_load, sane_due)
def test_more_load_beside_what_is_due_never_gets_fewer_replicas(history, one, other, due):
    memory, now_s, desired = after(history, 20.0)
    loads = [tuple(pick(pair) for pair in zip(one, other, strict=True)) for pick in (min, max)]
    fewer, most = (
        POLICY.decide(msgspec.structs.replace(seen(now_s + 20.0, desired, load, memory), preemptible_due=due)).replicas for load in loads
    )
    assert fewer <= most


@MODEST
@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1), st.booleans()), min_size=1, max_size=12), st.integers(2, 5))
def test_looking_more_often_changes_no_duration(stretches, times):
    """Loads change every 60 s; one driver looks then, the other ``times`` as often. Every wait has lasted equally long."""
    memories = []
    for looks in (1, times):
        memory = b""
        for index, (waiting, kv, known) in enumerate(stretches):
            for look in range(looks):
                now_s = 60.0 * (index + look / looks)
                memory = POLICY.decide(seen(now_s, 8, (waiting, kv, 1.0), memory, known)).memory
        last = seen(60.0 * len(stretches), 8, (stretches[-1][0], stretches[-1][1], 1.0), memory, stretches[-1][2])
        memories.append(load(POLICY.decide(last).memory))
    coarse, fine = memories
    for name in ("waiting", "calm", "breach"):
        one, other = getattr(coarse, name).since_s, getattr(fine, name).since_s
        assert (one is None) == (other is None)
        assert one is None or math.isclose(one, other, abs_tol=1e-6)
    assert coarse.unknown_since_s == fine.unknown_since_s


@MODEST
@given(st.lists(sane_load, max_size=6), sane_load, st.integers(2, 30))
def test_asking_again_at_the_same_instant_adds_nothing(history, load_now, times):
    memory, now_s, desired = after(history, 61.0)
    now_s += 61.0
    first = POLICY.decide(seen(now_s, desired, load_now, memory))
    memory = first.memory
    for _ in range(times):
        again = POLICY.decide(seen(now_s, first.replicas, load_now, memory, replicas=desired))
        memory = again.memory
    assert again.replicas == first.replicas


@MODEST
@given(st.lists(sane_load, min_size=1, max_size=25), st.floats(5, 300))
def test_a_step_down_is_small_and_needs_calm(history, step_s):
    """Whatever happened, one decision takes away at most a tenth, at least one, and only where nothing waits."""
    memory, now_s, desired = b"", 0.0, 10
    for load_now in history:
        now_s += step_s
        decision = POLICY.decide(seen(now_s, desired, load_now, memory))
        if decision.replicas < desired:
            assert desired - decision.replicas == 1
            assert load_now[0] == 0
            assert load_now[1] < 0.5
            assert next(term for term in decision.terms if term.binding).kind is TermKind.SCALE_IN
        desired, memory = decision.replicas, decision.memory


def test_memory_at_its_fullest_stays_within_its_limit():
    full = Memory(
        now_s=1.7e9 + 0.123,
        wall_s=1.7e9 + 0.123,
        waiting=Held(0.1, True),
        calm=Held(0.1, True),
        breach=Held(0.1, True),
        exhausted_since_s=0.1,
        unknown_since_s={f"{index:04}" + "ü" * 60: 0.1 + index for index in range(UNKNOWN_IDS_MAX)},
        ready=2**40,
        ready_rose_s=0.1,
        stepped_s=0.1,
        buckets=tuple(Bucket(0.1 + index, 9.9, 1e9, 9.9, 1e9, 1e9) for index in range(BUCKETS_MAX)),
    )
    assert len(dump(full)) <= MEMORY_BYTES_MAX
    assert load(dump(full)) == full


def test_a_thousand_silent_replicas_fit_into_memory():
    replicas = tuple(ReplicaObservation(f"{index:05}" + "é" * 300, ReplicaState.READY, 0.0, 0.0) for index in range(1000))
    decision = POLICY.decide(Observation("chat", 1.0, 1.0, 12, replicas))
    assert_well_formed(decision)
    assert load(decision.memory).unknown_since_s[""] == 1.0
