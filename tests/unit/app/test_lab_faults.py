"""``--faults`` in words: each is understood, or refused with what is allowed."""

import pytest

from forebay.app.lab.faults import NOTICE_S, RANDOM_EVERY_S, FaultPlan, parse_faults
from forebay.domain.errors import BadInput
from forebay.engine.capacity import roster_capacity
from forebay.engine.catalogue import PROFILES
from forebay.simulation.faults import KINDS
from forebay.simulation.values import ColdStartModel, FleetRules, MetricFault, Outage, Scenario, Shortage

PROFILE = PROFILES["llama-3.1-8b-h100"]
RULES = FleetRules(PROFILE, roster_capacity(PROFILE, 1.0, 0.05), ())


def scenario(duration_s, seed=0):
    return Scenario(RULES, ColdStartModel(0.0, 0.0, 0.0), duration_s, seed=seed)


def test_all_of_them_at_once():
    plan = parse_faults(
        "metrics=error@2h+20m, crash=2@3h,reclaim=25%@5h,shortage=12@4h+1h,crashes=0.5,metrics=nan/50%@1m+30s,reclaim=3@6h+30s"
    )
    assert plan.metric_faults == (MetricFault("error", 7200, 8400), MetricFault("nan", 60, 90, 0.5))
    assert plan.outages == (Outage("crash", 10800, 2), Outage("reclaim", 18000, 0.25, NOTICE_S), Outage("reclaim", 21600, 3, 30))
    assert plan.shortages == (Shortage(14400, 18000, 12),)
    assert plan.crashes_per_replica_day == 0.5
    played = plan.put_into(scenario(86400))
    assert (played.metric_faults, played.outages, played.shortages) == (plan.metric_faults, plan.outages, plan.shortages)


def test_nothing_is_no_fault():
    assert parse_faults(" , ") == FaultPlan()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("metrix=error@1h+1m", 'did you mean "metrics"?'),
        ("metrics=eror@1h+1m", 'did you mean "error"?'),
        ("metrics=error@1h", "a length above 0"),
        ("metrics=error+1h", "a length above 0"),
        ("metrics=error@1h+0s", "a length above 0"),
        ("metrics=error@soon+1m", "'soon' is not a duration"),
        ("metrics=error/0%@1h+1m", "a share such as 25%"),
        ("metrics=error/200%@1h+1m", "at most 100%"),
        ("crash=2", "crash=2@3h"),
        ("crash=0@1h", "a whole number of replicas"),
        ("crash=1@1h+1m", "crash=2@3h"),
        ("crash=x@1h", "a whole number of replicas"),
        ("crashes=0", "crashes per replica and day"),
        ("reclaim=1", "reclaim=25%@5h"),
        ("shortage=12@4h", "a length above 0"),
        ("shortage=50%@4h+1h", "a whole number of nodes"),
        ("crash=1@2h@3h", "WORD=WHAT@TIME+LENGTH"),
        ("crash", "crash=2@3h"),
    ],
)
def test_what_is_not_understood_is_named_with_what_is(text, said):
    with pytest.raises(BadInput) as caught:
        parse_faults(f"crash=1@1h,{text}")
    assert "--faults" in str(caught.value)
    assert said in str(caught.value)


def test_a_fault_after_the_end_would_never_be_seen():
    with pytest.raises(BadInput, match="found one at 3h, allowed: before the end of the run, 1h"):
        parse_faults("crash=1@3h").put_into(scenario(3600))


def test_a_whole_fleet_can_be_taken():
    (outage,) = parse_faults("crash=100%@1h").outages
    assert 0.999 < outage.replicas < 1


@pytest.mark.parametrize("duration_s", [600.0, 86400.0, 3.3 * RANDOM_EVERY_S])
def test_random_faults_come_from_the_seed_and_lie_within_the_run(duration_s):
    plan = parse_faults("metrics=random")
    drawn = [plan.put_into(scenario(duration_s, seed)).metric_faults for seed in range(30)]
    assert drawn[3] == plan.put_into(scenario(duration_s, 3)).metric_faults
    assert len({faults[0] for faults in drawn}) > 10
    assert {fault.kind for faults in drawn for fault in faults} == set(KINDS)
    for faults in drawn:
        assert len(faults) == -(-duration_s // RANDOM_EVERY_S)
        assert all(0 <= fault.from_s < fault.until_s <= duration_s + 1e-6 for fault in faults)
