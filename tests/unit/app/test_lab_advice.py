"""Where no policy keeps the promise, a newcomer is told what that means and what to try."""

from lab_runs import run, tier

from forebay.app.lab.advice import SMALL_FLEET, advice
from forebay.app.lab.summaries import Yardstick, summary
from forebay.spec.types import Scaling

YARDSTICK = Yardstick(bound_gpu_hours=80.0, static_usd=1000.0, promise=0.99, promised_tiers=("interactive",))


def line(share):
    return summary([run(tiers={"interactive": tier(share)})], YARDSTICK)


def told(*shares, fixed=3, least=1, mean=4.0, spare=0):
    pool = Scaling(min_replicas=least, max_replicas=30, spare_replicas=spare)
    return advice([line(share) for share in shares], fixed, 72.0, pool, mean, 270.0, 0.99)


def test_what_nobodys_keeping_the_promise_means_is_said_with_what_to_try():
    text = told(0.97, 0.98)
    assert text.startswith("3 replicas all the time keep it through the busiest hour, for 72 GPU-hours: the promise can be kept")
    assert "A start takes 4m30s" in text
    assert "each replica is 33% of it: to be one short for minutes makes more than the 1 % late that may be" in text
    assert "Try `min: 3` (which gives up what scaling saves), the `ramp` that you expect" in text


def test_a_large_fleet_is_not_called_small_and_a_minimum_that_is_there_is_not_proposed():
    text = told(0.97, fixed=SMALL_FLEET + 1, least=SMALL_FLEET + 1)
    assert "this small" not in text
    assert "min:" not in text
    assert "Try the `ramp`" in text


def test_where_somebody_keeps_it_or_nobody_could_nothing_is_advised():
    assert told(0.97, 0.995) == ""
    assert told(0.97, fixed=None) == ""


def test_a_pool_of_one_or_two_is_told_of_a_spare_first_unless_it_has_one():
    small = told(0.985, fixed=2, mean=1.3)
    assert "With 1.3 replicas on average try `spare: 1` first" in small
    assert small.index("`spare: 1`") < small.index("`min: 2` (which gives up what scaling saves)")
    assert "spare" not in told(0.985, fixed=2, mean=1.3, spare=1)
    assert "first: one more" not in told(0.985, fixed=5, mean=3.1)
