"""What the faults touched is told apart from what the policy did by itself."""

import pytest
from lab_runs import minute

from forebay.app.lab.fault_spans import apart, near, recovery_s, spans, told
from forebay.app.lab.faults import parse_faults
from forebay.app.report.content import FaultDrawn
from forebay.domain.roster import Capacity
from forebay.engine.catalogue import PROFILES
from forebay.simulation.values import ColdStartModel, FleetRules, Scenario

PROFILE = PROFILES["llama-3.1-8b-h100"]
CALM = Scenario(
    FleetRules(PROFILE, Capacity(100_000, 64, 8192, 1e4, 1e3, 8192), ()),
    ColdStartModel(120.0, 0.0, 0.0),
    3 * 3600.0,
)


def world(faults):
    return parse_faults(faults).put_into(CALM)


def rows(bad):
    """Three hours of minutes with 100 requests each; ``bad``: those with 50 of them late."""
    return [minute(number, both_met=50 if number in bad else 100, missed=50 if number in bad else 0) for number in range(180)]


def test_each_fault_has_a_name_a_span_and_whether_metrics_were_gone():
    assert spans(world("metrics=empty/25%@1h+20m,reclaim=50%@2h,crash=2@30m,shortage=1@10m+5m")) == (
        FaultDrawn("at most 1 node", 600.0, 900.0),
        FaultDrawn("crash 2", 1800.0, 1800.0),
        FaultDrawn("metrics empty of 25%", 3600.0, 4800.0, blind=True),
        FaultDrawn("reclaim 50%", 7200.0, 7320.0),
    )
    assert spans(CALM) == ()


def test_what_is_missed_until_two_cold_starts_after_a_fault_is_near_it_and_on_while_the_jam_lasts():
    ill = world("crash=1@1h")
    assert recovery_s(ill) == 240.0
    found = near(ill, rows({30, 62, 63, 64, 65, 66, 67, 70}))
    assert (found.missed, found.missed_near) == (400, 300), "minutes 62 to 67 in one stretch; 30 and 70 are the policy's own"
    assert near(CALM, rows({30})) is None


def test_where_the_faults_break_the_promise_the_words_say_so_and_else_not():
    ill = world("crash=1@1h")
    by_faults = near(ill, rows({62, 63, 64}))
    assert apart(by_faults) == 1.0
    text = told("forebay", by_faults, ill, holds=False)
    assert "Of the 150 requests that forebay missed, 100 % fell within reach of the faults (to their end and 4m more" in text
    assert "It is the faults that break the promise: play it without `--faults`" in text
    by_itself = near(ill, rows({20, 21, 22, 23, 62}))
    text = told("forebay", by_itself, ill, holds=False)
    assert "20 % fell within reach" in text
    assert "It is the faults" not in text
    assert apart(by_itself) == pytest.approx(1 - 200 / (174 * 100), abs=2e-4)
    assert told("forebay", near(ill, rows(())), ill, holds=True) == ""
