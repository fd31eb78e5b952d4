"""Progress of a comparison has stages: policies, and the clairvoyant schedule where that is all that is left."""

import pytest

from forebay.app.lab.stages import SCHEDULE, Stages


@pytest.fixture
def told():
    return []


def stages(told, policies, bound, one_by_one):
    return Stages(policies, bound, one_by_one, "policies", told.append, lambda share: told.append(round(share, 3)))


def test_the_schedule_is_a_stage_of_its_own_once_it_is_alone(told):
    """`compare` stood at 78 % for minutes, and nothing said that the schedule was under way."""
    it = stages(told, 3, True, one_by_one=False)
    it.tell(0.5)
    for _ in range(3):
        it.done(bound=False)
    it.tell((3 + 0.25) / 4)
    it.done(bound=True)
    assert told == ["policies", 0.5, SCHEDULE, 0.25]


def test_one_by_one_it_comes_first_and_each_stage_goes_from_nothing_to_all(told):
    it = stages(told, 2, True, one_by_one=True)
    it.tell(0.5 / 3)
    it.done(bound=True)
    it.tell((1 + 1) / 3)
    it.done(bound=False)
    it.done(bound=False)
    assert told == [SCHEDULE, 0.5, "policies", 0.5]


@pytest.mark.parametrize("one_by_one", [True, False])
def test_without_a_schedule_there_is_one_stage(told, one_by_one):
    it = stages(told, 2, False, one_by_one)
    it.tell(0.75)
    it.done(bound=False)
    assert told == ["policies", 0.75]
