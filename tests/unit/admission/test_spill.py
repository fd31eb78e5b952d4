"""Spilled requests: sent or refused at once, never more than the budget or the streams allow, and nothing leaks."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.admission.effects import Dispatch, Refuse
from forebay.admission.outcomes import Refusal
from forebay.admission.spill import HOLD_OFF_S, SpillAdmission
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Spill

PARIS = Spill("paris", "https://paris.example/v1", usd_per_hour=10.0, prompt_usd_per_mtok=1e6, output_usd_per_mtok=2e6, streams_max=3)
"""A dollar a prompt token, two an output token."""


def shape(prompt: int, output: int) -> Shape:
    return Shape(prompt, output, output)


def test_what_fits_is_sent_at_once_and_settled_with_what_it_cost() -> None:
    paris = SpillAdmission(PARIS)
    assert paris.arrive(1, "interactive", "a", shape(2, 4), 0.0) == [Dispatch(1, "paris", "https://paris.example/v1")]
    assert paris.budget.used_usd(0.0) == 10.0
    (refused,) = paris.arrive(2, "interactive", "a", shape(1, 0), 0.0)
    assert isinstance(refused, Refuse)
    paris.finish(1, Usage(2, 1), 1.0)
    assert paris.budget.used_usd(1.0) == 4.0
    assert paris.room(shape(2, 2), 1.0)


def test_without_prices_only_streams_are_bounded() -> None:
    free = SpillAdmission(Spill("free", "http://free.example/v1", streams_max=1))
    free.arrive(1, "", "", shape(10**6, 10**6), 0.0)
    assert not free.room(shape(1, 1), 0.0)
    free.abandon(1, 1.0)
    assert free.room(shape(1, 1), 1.0)


def test_a_place_that_fails_is_left_alone_for_a_growing_while() -> None:
    paris = SpillAdmission(PARIS)
    for failures in range(1, 4):
        now_s = 1000.0 * failures
        paris.arrive(failures, "", "", shape(1, 1), now_s)
        paris.failed(now_s)
        paris.failed(now_s)  # another that was there at the time: one failure of the place all the same
        (refused,) = paris.retry(failures, now_s)
        assert isinstance(refused, Refuse)
        assert refused.why is Refusal.NO_REPLICAS
        assert not paris.room(shape(1, 1), now_s + HOLD_OFF_S * 2 ** (failures - 1) - 0.1)
        assert paris.room(shape(1, 1), now_s + HOLD_OFF_S * 2 ** (failures - 1))
    paris.arrive(9, "", "", shape(1, 1), 9000.0)
    paris.first_token(9, 9000.1)
    paris.failed(9000.2)
    paris.retry(9, 9000.2)
    assert paris.room(shape(1, 1), 9000.2 + HOLD_OFF_S)


def test_what_may_have_been_charged_is_paid_for_though_it_is_given_up() -> None:
    paris = SpillAdmission(PARIS)
    paris.arrive(1, "", "", shape(2, 4), 0.0)
    paris.may_cost(1)
    paris.retry(1, 1.0)
    assert paris.budget.used_usd(1.0) == 10.0
    paris.arrive(2, "", "", shape(2, 4), 4000.0)
    paris.retry(2, 4001.0)
    assert paris.budget.used_usd(4001.0) == 0.0


def test_a_whole_answer_forgives_as_a_stream_does() -> None:
    """Only a stream's first token did: a place of whole answers was held off for longer each time, for ever."""
    paris = SpillAdmission(PARIS)
    for round_ in range(4):
        now_s = 4000.0 * round_
        paris.arrive(round_, "", "", shape(1, 1), now_s)
        paris.failed(now_s)
        paris.retry(round_, now_s)
        assert paris.room(shape(1, 1), now_s + HOLD_OFF_S)
        paris.arrive(100 + round_, "", "", shape(1, 1), now_s + 100.0)
        paris.finish(100 + round_, Usage(1, 1), now_s + 101.0)


def test_where_nothing_bounds_the_output_the_estimate_is_reserved() -> None:
    """Without max_tokens or a context, two thousand million tokens were to be reserved for, which no budget has."""
    paris = SpillAdmission(PARIS)
    assert paris.room(Shape(1, 2, output_tokens_max=2**31 - 1), 0.0)


class SpillMachine(RuleBasedStateMachine):
    """Whatever happens, the hour's budget and the streams hold, and every ticket ends once."""

    def __init__(self) -> None:
        super().__init__()
        self.paris = SpillAdmission(PARIS)
        self.now_s = 0.0
        self.tickets = 0
        self.inside: list[int] = []
        self.costs: list[tuple[float, float]] = []

    @rule(passed_s=st.floats(0, 1000))
    def time_passes(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule(prompt=st.integers(0, 4), output=st.integers(1, 4))
    def arrives(self, prompt: int, output: int) -> None:
        self.tickets += 1
        room = self.paris.room(shape(prompt, output), self.now_s)
        (effect,) = self.paris.arrive(self.tickets, "t", "a", shape(prompt, output), self.now_s)
        assert isinstance(effect, Dispatch) == room
        if room:
            self.inside.append(self.tickets)

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), prompt=st.integers(0, 4), output=st.integers(0, 1), how=st.sampled_from(["finish", "abandon", "retry"]))
    def ends(self, data: st.DataObject, prompt: int, output: int, how: str) -> None:
        ticket = data.draw(st.sampled_from(self.inside))
        self.inside.remove(ticket)
        if how == "finish":
            self.paris.finish(ticket, Usage(0, output), self.now_s)
            self.costs.append((self.now_s, 2.0 * output))
        elif how == "abandon":
            self.paris.abandon(ticket, self.now_s)
        else:
            self.paris.retry(ticket, self.now_s)

    @invariant()
    def holds(self) -> None:
        self.paris.check()
        assert self.paris.streams == len(self.inside)
        assert self.paris.budget.used_usd(self.now_s) <= PARIS.usd_per_hour + 1e-9
        assert sum(cost for at_s, cost in self.costs if at_s > self.now_s - 3540.0) <= PARIS.usd_per_hour + 1e-9


TestSpill = SpillMachine.TestCase
TestSpill.settings = settings(max_examples=25, stateful_step_count=20)
