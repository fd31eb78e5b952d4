from forebay.scaling.capacity import PoolCapacity
from forebay.scaling.floors import buffered
from forebay.spec.types import Scaling


def added(cold_start_s):
    settings = Scaling(ramp_per_s2=30 / 3600)
    return buffered(2, settings, PoolCapacity(rate_per_s=50 / 60), 0.0, (), cold_start_s).numbers["added"]


def test_a_few_seconds_more_of_cold_start_do_not_turn_three_into_four():
    assert [added(cold_start_s) for cold_start_s in (299, 300, 301, 304)] == [3, 3, 3, 3]
    assert added(306) == 4
    assert added(100) == 1
