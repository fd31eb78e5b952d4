"""Few more or fewer replicas wait for the next ones and are one change; many more never wait."""

import pytest

from forebay.domain.scaling import Term, TermKind
from forebay.scaling.memory import Memory
from forebay.scaling.scale_in import calm_s, gather_s
from forebay.scaling.weighing import GATHERED_MAX, Facts, _gathered
from forebay.spec.types import Scaling

COLD_START_S = 200.0


def wanted(replicas, *, desired=20, rose_s=100.0, now_s=200.0, settings=Scaling()):
    """What the forecast's floor comes to at ``now_s``, where it wants ``replicas`` of ``desired`` there are."""
    sight = type("Sight", (), {"now_s": now_s, "desired": desired})()
    facts = type("Few", (), {"sight": sight, "memory": Memory(rose_s=rose_s), "settings": settings, "cold_start_s": COLD_START_S})()
    assert set(vars(type(facts))) & set(Facts.__struct_fields__) == {"sight", "memory", "settings", "cold_start_s"}
    return _gathered(Term("forecast", TermKind.FLOOR, replicas, "x"), facts).replicas


def test_few_more_soon_after_the_last_are_put_off():
    assert wanted(22) == 20


def test_many_more_are_never_put_off():
    assert wanted(24) == 24
    assert 20 * (1 + GATHERED_MAX) < 24


@pytest.mark.parametrize(("rose_s", "now_s"), [(None, 200.0), (100.0, 100.0 + gather_s(COLD_START_S))])
def test_nothing_is_put_off_for_longer_or_after_a_step_down(rose_s, now_s):
    assert wanted(22, rose_s=rose_s, now_s=now_s) == 22


def test_spares_are_part_of_what_is_put_off():
    assert wanted(21, settings=Scaling(spare_replicas=1)) == 19


def test_what_is_wanted_never_falls_as_the_forecast_rises():
    found = [max(20, wanted(replicas)) for replicas in range(10, 40)]
    assert found == sorted(found)


def test_the_sooner_a_start_serves_the_longer_the_wait():
    assert gather_s(0.0) == gather_s(90.0) == 400.0
    assert gather_s(225.0) == 230.0
    assert gather_s(360.0) == gather_s(3600.0) == 60.0


def test_the_sooner_a_start_serves_the_shorter_the_calm():
    assert calm_s(0.0) == 60.0
    assert calm_s(90.0) == 180.0
    assert calm_s(150.0) == calm_s(3600.0) == 300.0
