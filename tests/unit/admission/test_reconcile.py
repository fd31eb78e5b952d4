"""The KV budget follows what the engine holds: slowly, within bounds, and never by a reading that says nothing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.prefixes import Prefix
from forebay.admission.reconcile import (
    BRAKE_MAX,
    RATIO_MAX,
    RATIO_MIN,
    TOLD_STEP,
    UNREPORTED_TOKENS,
    Booked,
    Correction,
    booked,
)
from forebay.domain.signal import Known, Unknown
from forebay.gateway.relay import REPORT_EVENTS

KV_TOKENS = 10_000


class Pages:
    """A scrape each second, in which tokens advance unless a test says otherwise."""

    def __init__(self, ratio=1.0):
        self.of = Correction(ratio)
        self.now_s = 0.0
        self.generated = 0.0
        self.preempted = 0.0

    def take(self, usage, least=5000, most=5000, tokens=100, preempted=0, passed_s=1.0):
        self.now_s += passed_s
        self.generated += tokens
        self.preempted += preempted
        known = Booked(least, most) if most is not None else None
        self.of.take(Known(usage, self.now_s), Known(self.generated, self.now_s), Known(self.preempted, self.now_s), known, KV_TOKENS)
        return self.of.ratio

    def many(self, count, *args, **fields):
        for _ in range(count):
            self.take(*args, **fields)
        return self.of.ratio


def test_it_comes_to_what_the_engine_holds_per_token_booked():
    assert Pages().many(300, 0.65) == pytest.approx(1.3, rel=0.02)
    assert Pages().many(300, 0.45) == pytest.approx(0.9, rel=0.02)


def test_what_is_booked_is_known_within_bounds_and_the_nearest_ratio_is_taken():
    assert Pages().many(100, 0.5, least=4000, most=6000) == 1.0
    assert Pages().many(300, 0.72, least=4000, most=6000) == pytest.approx(1.2, rel=0.02)
    assert Pages(1.5).many(300, 0.5, least=4000, most=6000) == pytest.approx(1.25, rel=0.02)
    assert Pages().many(300, 0.5, least=0, most=6000) == 1.0


def test_one_reading_among_many_moves_it_little():
    pages = Pages()
    pages.many(120, 0.5)
    assert pages.take(1.0) < 1.02
    assert pages.take(1.0, passed_s=3600.0) < 1.12


def test_readings_that_say_nothing_change_nothing():
    pages = Pages()
    pages.many(60, 0.6)
    at = pages.of.ratio
    for usage in (math.nan, math.inf, -0.1, 1.5, 0.0):
        assert pages.take(usage) == at
    assert pages.take(0.9, tokens=0) == at  # frozen, or idle
    assert pages.take(0.9, most=None) == at  # a gateway is silent
    assert pages.take(0.9, least=1000, most=1400) == at  # nearly empty
    assert pages.take(0.9, passed_s=0.0) == at  # the same page again
    later = Known(1e9, 1e6)
    pages.of.take(Unknown("stale"), later, Unknown(), Booked(5000, 5000), KV_TOKENS)
    pages.of.take(Known(0.9, 1e6 + 1), Unknown("frozen"), Unknown("frozen"), Booked(5000, 5000), KV_TOKENS)
    pages.of.take(Known(0.9, 1e6), Known(2e9, 1e6 + 2), Known(math.nan, 1e6 + 2), Booked(5000, 5000), KV_TOKENS)  # of two pages
    assert pages.of.ratio == at
    assert pages.of.brake == 0.0


def test_a_restarted_engine_is_no_preemption_and_no_advance():
    pages = Pages()
    pages.many(10, 0.6, preempted=0)
    pages.preempted, pages.generated, at = 50.0, 10_000.0, pages.of.ratio
    pages.take(0.6)
    braked = pages.of.brake
    assert pages.of.preemptions_total == 50
    pages.preempted, pages.generated, at = 0.0, 0.0, pages.of.ratio
    assert pages.take(0.9, tokens=0) == at
    assert pages.of.brake < braked
    assert pages.of.preemptions_total == 50


def test_preemptions_brake_and_calm_lets_go():
    pages = Pages()
    pages.many(60, 0.5)
    free = pages.of.budget_tokens(KV_TOKENS)
    pages.take(0.5, preempted=3)
    pages.take(0.5, preempted=1)
    assert pages.of.brake == pytest.approx(0.06, rel=0.01)
    assert pages.of.budget_tokens(KV_TOKENS) < 0.95 * free
    pages.many(100, 0.5, preempted=1)
    assert pages.of.brake == pytest.approx(BRAKE_MAX, rel=0.01)
    pages.many(3600, 0.5)
    assert pages.of.brake < 0.02


def test_the_budget_is_told_in_steps():
    pages = Pages()
    told = set()
    for _ in range(300):
        pages.take(0.65)
        told.add(pages.of.budget_tokens(KV_TOKENS))
    assert 5 < len(told) < 20
    assert min(told) == pytest.approx(KV_TOKENS / 1.3, rel=2 * TOLD_STEP)


def test_it_begins_with_what_the_pool_has_come_to_within_its_bounds():
    assert Correction(1.4).budget_tokens(KV_TOKENS) == round(KV_TOKENS / 1.4)
    assert Correction(99.0).ratio == RATIO_MAX
    assert Correction(math.nan).ratio == 1.0


any_number = st.one_of(st.floats(), st.floats(0, 1))
signals = st.one_of(st.builds(Unknown), st.builds(Known, any_number, st.floats(-10, 1e6)), st.builds(Known, any_number, st.just(5.0)))
bookings = st.one_of(st.none(), st.builds(Booked, st.floats(0, 2e4), st.floats(0, 2e4)))


@given(st.lists(st.tuples(signals, signals, signals, bookings), max_size=30))
def test_whatever_is_read_the_budget_stays_within_its_bounds(readings):
    correction = Correction()
    for usage, generated, preemptions, known in readings:
        ratio = correction.ratio
        correction.take(usage, generated, preemptions, known, KV_TOKENS)
        assert RATIO_MIN <= correction.ratio <= RATIO_MAX
        assert 0.0 <= correction.brake <= BRAKE_MAX
        assert KV_TOKENS * (1 - BRAKE_MAX) / RATIO_MAX * 0.97 <= correction.budget_tokens(KV_TOKENS) <= KV_TOKENS / RATIO_MIN + 1
        if known is None or isinstance(usage, Unknown) or isinstance(generated, Unknown):
            assert correction.ratio == ratio


class Permit:
    def __init__(self, prompt, emitted=0, expected=100, outstanding=0, whole=False, spared=0, sequences=1, beside=0, met=0, prefix=None):
        self.prompt, self.emitted, self.expected, self.outstanding = prompt, emitted, expected, outstanding
        self.whole, self.spared, self.sequences = whole, spared, sequences
        self.beside, self.met, self.prefix = beside, met, prefix


def test_what_is_booked_at_least_and_at_most():
    assert booked([]) == (0, 0)
    assert booked([Permit(100, emitted=40)]) == (140, 140 + UNREPORTED_TOKENS)
    assert booked([Permit(100, outstanding=100)]) == (0, 100)
    assert booked([Permit(100, spared=60, emitted=10)]) == (50, 110 + UNREPORTED_TOKENS)
    assert booked([Permit(100, whole=True)]) == (0, 200)
    assert booked([Permit(100, sequences=4)]) == (100, 100 + 4 * UNREPORTED_TOKENS)


def test_what_several_hold_is_booked_once_at_most_and_at_least_by_who_came_first():
    """60 tokens are common to three: the engine that shares them holds 60 + 3 × 40, and one that doesn't is seen to hold more."""
    three = [Permit(100, beside=60), Permit(100, beside=60, spared=60, met=60), Permit(100, beside=60, met=60, outstanding=40)]
    assert booked(three, 60) == (100 + 40, 60 + 3 * 40 + 2 * UNREPORTED_TOKENS)


def test_where_prompts_part_within_a_block_an_engine_that_holds_less_is_not_booked_fuller():
    """25 of 40 own tokens are before that place in the bytes: the engine shares them too, which says nothing of prompts that share nothing."""
    prefix = Prefix((1, 2), 30)
    first, second = Permit(100, beside=60, prefix=prefix), Permit(100, beside=60, met=60, prefix=prefix)
    least, most = booked([first, second], 60)
    assert least == 100 + 10
    pages = Pages()
    assert pages.many(100, (100 + 15) / KV_TOKENS * 20, least=20 * least, most=20 * most) == 1.0
    assert booked([Permit(100, met=90, prefix=prefix)])[0] == 0, "a prompt is no longer than it is"


def test_a_stream_is_reported_in_the_steps_that_are_allowed_for():
    assert UNREPORTED_TOKENS == REPORT_EVENTS
