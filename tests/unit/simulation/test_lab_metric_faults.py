"""Ill metrics: whatever the kind, a reading that isn't there is Unknown with its reason, and what nobody could know is not known here either."""

import math
import struct

import pytest
from slot_fleet import Watcher, played, scenario, steady

from forebay.domain.errors import BadInput
from forebay.domain.signal import Known, Unknown
from forebay.simulation.faults import KINDS, Faults
from forebay.simulation.scripted import Static
from forebay.simulation.values import MetricFault

FROM_S, UNTIL_S = 300.0, 600.0
PAGE = ("waiting", "running", "kv_usage", "queued_tokens", "gpu_usage", "passes")
WORD = ("lanes_waiting", "arrival_per_s", "ttft_attainment", "running", "completed_per_s", "ttft_p95_s", "itl_attainment")


def looks(kind, share=1.0, arrivals=None, **changes):
    """{second: observation} of two replicas under one fault."""
    watcher = Watcher(2)
    fault = MetricFault(kind, FROM_S, UNTIL_S, share)
    arrivals = steady(2.0, 900.0) if arrivals is None else arrivals
    played(scenario(900.0, initial_replicas=2, metric_faults=(fault,), **changes), watcher, arrivals)
    return {seen.now_s: seen for seen in watcher.seen}


@pytest.mark.parametrize(
    ("kind", "page", "word"), [("error", "refused", "gateway_lost"), ("empty", "missing", "missing"), ("nan", "nan", "nan")]
)
def test_pages_and_the_gateways_word_are_unknown_at_once_and_come_back(kind, page, word):
    seen = looks(kind)
    for at_s in (300.0, 450.0, 585.0):
        assert {getattr(replica, name) for replica in seen[at_s].replicas for name in PAGE} == {Unknown(page)}
        assert {getattr(seen[at_s], name) for name in WORD} == {Unknown(word)}
    for at_s in (285.0, 630.0):
        assert not any(isinstance(getattr(replica, name), Unknown) for replica in seen[at_s].replicas for name in PAGE)
        assert all(isinstance(getattr(seen[at_s], name), Known) for name in WORD)
    assert seen[600.0].arrival_per_s == Unknown("short"), "a rate needs two looks"
    assert seen[630.0].arrival_per_s == Known(2.0, 630.0)


def test_renamed_metrics_are_missing_and_touch_nobody_else():
    seen = looks("renamed")[450.0]
    assert {getattr(replica, name) for replica in seen.replicas for name in (*PAGE[:4], "passes")} == {Unknown("missing")}
    assert all(isinstance(replica.gpu_usage, Known) for replica in seen.replicas)
    assert all(isinstance(getattr(seen, name), Known) for name in WORD)


def test_frozen_pages_of_busy_engines_give_themselves_away():
    seen = looks("frozen", arrivals=steady(4.0, 900.0))
    before = {replica.id: replica.running.value for replica in seen[285.0].replicas}
    assert {replica.id: replica.running for replica in seen[330.0].replicas} == {
        name: Known(value, 330.0) for name, value in before.items()
    }
    assert {replica.running for replica in seen[345.0].replicas} == {Unknown("frozen")}
    assert seen[315.0].arrival_per_s.at_s == 285.0, "the last word holds until the lease is over"
    assert seen[330.0].arrival_per_s == Unknown("gateway_lost")
    assert isinstance(seen[615.0].replicas[0].running, Known)


def test_a_frozen_idle_page_is_believed_until_there_are_streams():
    seen = looks("frozen", arrivals=steady(4.0, 900.0, from_s=450.1))
    assert {replica.running for replica in seen[450.0].replicas} == {Known(0, 450.0)}
    assert {replica.running for replica in seen[465.0].replicas} == {Unknown("wedged")}


def test_a_replica_that_became_ready_under_a_frozen_page_has_none():
    watcher = Watcher(lambda seen: 1 if seen.now_s < 200 else 2)
    played(scenario(500.0, metric_faults=(MetricFault("frozen", FROM_S, UNTIL_S),)), watcher)
    late = next(seen for seen in watcher.seen if seen.now_s == 345.0)
    assert (late.replicas[0].running, late.replicas[1].running) == (Known(0, 345.0), Unknown("missing"))


def test_a_share_takes_so_many_pages_and_not_the_gateways():
    watcher = Watcher(40)
    fault = MetricFault("error", FROM_S, UNTIL_S, share=0.5)
    played(scenario(400.0, initial_replicas=40, metric_faults=(fault,)), watcher, steady(4.0, 400.0))
    late = watcher.seen[-1]
    dark = [replica.id for replica in late.replicas if isinstance(replica.running, Unknown)]
    assert 10 <= len(dark) <= 30
    assert isinstance(late.arrival_per_s, Known)
    earlier = watcher.seen[-3]
    assert dark == [replica.id for replica in earlier.replicas if isinstance(replica.running, Unknown)], "the same all along"


def test_faults_are_of_the_readings_not_of_the_look():
    seen = looks("error", scrape_delay_s=30.0)
    assert isinstance(seen[315.0].arrival_per_s, Known)
    assert seen[330.0].arrival_per_s == Unknown("gateway_lost")
    assert seen[615.0].arrival_per_s == Unknown("gateway_lost")


def test_live_tokens_are_the_gateways_last_words():
    seen = looks("error", arrivals=steady(4.0, 900.0))
    before = [replica.live_tokens for replica in seen[285.0].replicas]
    assert sum(before) > 0
    assert [replica.live_tokens for replica in seen[585.0].replicas] == before


def test_buckets_of_an_outage_are_not_known():
    seen = looks("error", history_bucket_s=60.0)
    columns = struct.unpack(f"<{len(seen[885.0].history.requests) // 4}f", seen[885.0].history.requests)
    # Looks at 300 to 585 are dark; the one at 300 belongs to the bucket that begins there.
    assert [math.isnan(value) for value in columns] == [False] * 5 + [True] * 5 + [False] * 4


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (MetricFault("lost", 0.0, 1.0), "error, empty, frozen, nan, renamed"),
        (MetricFault("nan", 5.0, 5.0), "ends after it begins"),
        (MetricFault("nan", 0.0, 5.0, share=0.0), "above 0"),
    ],
)
def test_an_ill_fault_is_refused(fault, words):
    with pytest.raises(BadInput, match=words):
        played(scenario(10.0, metric_faults=(fault,)), Static(1))


def test_shares_differ_by_seed():
    fault = MetricFault("nan", 0.0, 1.0, share=0.5)
    chosen = {seed: [Faults((fault,), seed).touches(0, fault, number) for number in range(30)] for seed in (1, 2)}
    assert chosen[1] != chosen[2]
    assert set(KINDS) >= {fault.kind}
