"""The scores that a record tells are those by which the replica was chosen, without the request itself."""

import pytest

from forebay.admission.candidates import Permit, TeamShare
from forebay.admission.machine import Admission
from forebay.admission.prefixes import prefix_of
from forebay.admission.weighing import CANDIDATES_MAX, TEAMS_MAX
from forebay.domain.roster import Capacity, RosterPool, RosterReplica
from forebay.domain.shape import Shape, Usage
from forebay.spec.types import Tier

TIERS = (Tier("interactive", rank=0, ttft_s=1.0, longest_wait_s=30.0),)
CAPACITY = Capacity(10_000, 4, 5_000, 1_000.0, 100.0, 8_192)


@pytest.fixture
def admission():
    made = Admission("chat", TIERS, 100)
    made.set_roster(RosterPool("chat", tuple(RosterReplica(f"r{number}", f"http://r{number}", CAPACITY) for number in range(6))), 0.0)
    return made


def arrive(admission, ticket, tokens=1000, prefix=None):
    admission.arrive(ticket, "interactive", "team", Shape(tokens, 100), 0.0, prefix=prefix)
    return admission.weighed(ticket).candidates


def test_the_chosen_one_is_first_and_none_was_less_loaded(admission):
    for ticket in range(1, 12):
        chosen, *others = arrive(admission, ticket, 200 * ticket)
        assert (chosen.chosen, chosen.short_of) == (True, "")
        assert len(others) == CANDIDATES_MAX - 1
        assert all(not other.chosen and other.load >= chosen.load for other in others)
        assert [other.load for other in others] == sorted(other.load for other in others)


def test_the_request_itself_is_not_in_its_scores(admission):
    (first, *_) = arrive(admission, 1)
    assert (first.load, first.streams, first.prefill_tokens) == (0.0, 0, 0)


def test_what_a_replica_lacked_is_told(admission):
    for ticket in range(1, 24):
        arrive(admission, ticket, 100)
    admission.arrive(99, "interactive", "team", Shape(100, 100), 0.0)
    (_, *others) = admission.weighed(99).candidates
    assert {other.short_of for other in others} == {"slots"}


def test_what_is_foreseen_to_be_cached_is_told_as_it_was_before_it_was_sent(admission):
    body = b'{"messages":"' + b"x" * 8000
    prefix = prefix_of(body, len(body), 2000, "llama")
    (first, *_) = arrive(admission, 1, 2000, prefix)
    assert first.cached_tokens == 0
    admission.first_token(1, 0.1)
    (again, *others) = arrive(admission, 2, 2000, prefix)
    assert again.replica == first.replica
    assert again.cached_tokens > 1500
    assert {other.cached_tokens for other in others} == {0}


def test_a_replica_that_failed_it_is_told(admission):
    (first, *_) = arrive(admission, 1)
    admission.retry(1, 0.1)
    (second, *others) = admission.weighed(1).candidates
    assert second.replica != first.replica
    assert {other.replica: other.short_of for other in others}.get(first.replica, "failed") == "failed"


def test_what_the_permit_took_is_told(admission):
    admission.arrive(1, "interactive", "team", Shape(1000, 100, sequences=2), 0.0)
    assert admission.weighed(1).permit == Permit(1100, 2, 1000)


def test_the_share_of_a_team_is_of_what_its_lane_has_given_and_its_weight_among_those_that_wait():
    """Records said nothing of it, so that nobody could tell whether a request waited for its own team's sake."""
    made = Admission("chat", TIERS, 100, {"heavy": 3.0})
    made.set_roster(RosterPool("chat", (RosterReplica("r0", "http://r0", CAPACITY),)), 0.0)
    made.arrive(1, "interactive", "light", Shape(1000, 100), 0.0)
    assert made.weighed(1).share == TeamShare(1.0, 1.0, 0)
    for ticket in (2, 3, 4):
        made.arrive(ticket, "interactive", "heavy", Shape(1000, 100), 0.0)
    made.arrive(5, "interactive", "light", Shape(1000, 100), 0.0)
    made.arrive(6, "interactive", "heavy", Shape(1000, 100), 0.0)
    made.arrive(7, "interactive", "heavy", Shape(1000, 100), 0.0)
    made.finish(2, Usage(1000, 100), 1.0)
    started = next(ticket for ticket in (5, 6, 7) if made.runs(ticket))
    share = made.weighed(started).share
    assert share.waiting_teams == 1
    assert share.due == (0.25 if started == 5 else 0.75)
    assert 0 < share.given < 1


def test_in_a_lane_of_very_many_teams_no_shares_are_added_up(admission):
    for number in range(TEAMS_MAX):
        admission.arrive(number + 1, "interactive", f"t{number}", Shape(1, 1), 0.0)
    assert admission.weighed(1).share is not None
    admission.arrive(1000, "interactive", "one-more", Shape(1, 1), 0.0)
    assert admission.weighed(1).share is None
