"""From a request to the world: the survey adds up, the fixed fleet is the smallest, options reach the scenario."""

import json

import msgspec
import numpy as np
import pytest

from forebay.app.lab.faults import parse_faults
from forebay.app.lab.peak import smallest_fleet
from forebay.app.lab.policies import EVERY, make
from forebay.app.lab.request import LabRequest, TraceOptions
from forebay.app.lab.survey import Surveyed, busiest
from forebay.app.lab.world import ending, opened, prepared, scenario, slow
from forebay.demand.arrays import Arrivals
from forebay.domain.errors import BadInput
from forebay.domain.scaling import Observation
from forebay.engine.catalogue import PROFILES
from forebay.simulation.values import Actuator, Dispatch, Order, Queueing
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Pool, Scaling

SPAN_S = 1500.0
RATE_PER_S = 0.4


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """25 minutes of 0.4/s, with three minutes of twice as much from minute 20 on."""
    chance = np.random.default_rng(5)
    times = np.sort(np.concatenate((chance.uniform(0, SPAN_S, int(SPAN_S * RATE_PER_S)), chance.uniform(1200, 1380, 72))))
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    rows = [{"at_s": round(float(at_s), 3), "prompt_tokens": 400, "output_tokens": 30} for at_s in times]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def request(trace, start_s=0.0, duration_s=None, **more):
    pool = Pool(
        "chat",
        "llama-3.1-8b",
        EngineKind("emulated"),
        PROFILES["llama-3.1-8b-h100"],
        scaling=Scaling(min_replicas=1, max_replicas=6, interval_s=15.0, prompt_tokens=400, output_tokens=30),
    )
    return LabRequest(pool, DEFAULT_TIERS, (), TraceOptions(str(trace), "jsonl", start_s=start_s, duration_s=duration_s), **more)


def silent(doing):
    """Nobody watches."""


def arrivals(at_s, tier=None):
    count = len(at_s)
    return Arrivals(
        np.array(at_s, np.float64),
        np.full(count, 100, np.int32),
        np.full(count, 10, np.int32),
        np.zeros(count, np.int16) if tier is None else np.array(tier, np.int16),
        np.full(count, -1, np.int64),
        np.zeros(count, np.int32),
    )


def test_the_survey_adds_up_what_is_demand():
    chunks = [arrivals([0.0, 30.0, 70.0]), arrivals([80.0, 130.0, 200.0], [0, 1, 0])]
    found = Surveyed(180.0, 60.0, (True, False)).take(iter(chunks)).survey()
    assert found.requests == 6
    assert (found.prompt_tokens_mean, found.output_tokens_mean) == (100, 10)
    assert found.mean_per_s == pytest.approx(4 / 180)
    assert found.peak_per_s == pytest.approx(2 / 60)
    assert found.first_per_s == pytest.approx(4 / 180)


def test_history_is_what_came_in_each_bucket():
    past = Surveyed(600.0, 300.0, (True,)).take(iter([arrivals([0.0, 299.0, 300.0])])).history(1000.0)
    assert (past.start_wall_s, past.bucket_s) == (1000.0, 300.0)
    assert np.frombuffer(past.requests, "<f4").tolist() == [2, 1]
    assert np.frombuffer(past.prompt_tokens, "<f4").tolist() == [200, 100]


def test_the_busiest_hour_is_found():
    assert busiest(np.array([1.0, 1, 5, 5, 1]), 1800.0) == 3600.0
    assert busiest(np.array([9.0]), 1800.0) == 0.0


def test_the_fixed_fleet_is_the_smallest_that_keeps_the_promise(trace):
    ready = prepared(request(trace), silent)
    world = scenario(ready, 0)
    fewer = msgspec.structs.replace(world, promise_attainment=1.0)

    def source():
        return opened(ready.request, 0, 0.0, None).source()

    for promised in (world, fewer):
        found = {smallest_fleet(promised, source, guess, lambda: 0.0) for guess in (1, 2, 6)}
        assert len(found) == 1
    assert ready.peak_replicas == smallest_fleet(world, source, 3, lambda: 0.0)[0]


def test_a_promise_that_nobody_keeps_is_told_with_the_most(trace):
    ready = prepared(request(trace), silent)
    hopeless = msgspec.structs.replace(scenario(ready, 0), promise_attainment=1.1)
    assert smallest_fleet(hopeless, lambda: opened(ready.request, 0, 0.0, None).source(), 2, lambda: 0.0) == (6, False)


def test_what_is_before_the_span_is_history(trace):
    ready = prepared(request(trace, start_s=700.0), silent)
    assert ready.past is not None
    counts = np.frombuffer(ready.past.requests, "<f4")
    assert len(counts) == 2
    assert counts.sum() == pytest.approx(600 * RATE_PER_S, rel=0.2)
    begin_s = scenario(ready, 0).start_wall_s
    assert ready.past.start_wall_s + 600 == pytest.approx(begin_s)
    assert prepared(request(trace, start_s=200.0), silent).past is None


def test_the_end_of_a_trace_is_its_last_part(trace):
    cut = ending(request(trace), 300.0)
    assert opened(cut, 0, cut.trace.start_s, None).duration_s == pytest.approx(300, abs=1)
    assert ending(request(trace), 1e6).trace.start_s == 0.0


def test_options_reach_the_scenario(trace):
    asked = request(
        trace,
        faults=parse_faults("crash=1@5m,shortage=2@1m+1m"),
        queueing=Queueing.ENGINE,
        dispatch=Dispatch.ROUND_ROBIN,
        order=Order.FIFO,
        actuator=Actuator("hpa", tolerance=0.0),
        start_cv=0.3,
        shared_bandwidth_bytes_per_s=1e9,
        peer_to_peer=True,
        scrape_delay_s=15.0,
    )
    world = scenario(prepared(asked, silent), 4)
    assert (world.rules.queueing, world.rules.dispatch, world.rules.order) == (Queueing.ENGINE, Dispatch.ROUND_ROBIN, Order.FIFO)
    assert (world.actuator, world.scrape_delay_s, world.seed) == (Actuator("hpa", tolerance=0.0), 15.0, 4)
    assert (world.cold_start.cv, world.cold_start.shared_bandwidth_bytes_per_s, world.cold_start.peer_to_peer) == (0.3, 1e9, True)
    assert len(world.outages) == len(world.shortages) == 1


def test_a_fault_beyond_the_end_is_refused_and_does_not_spoil_the_search_for_the_fleet(trace):
    ready = prepared(request(trace, faults=parse_faults("crash=1@24m")), silent)
    assert scenario(ready, 0).outages
    late = prepared(request(trace, duration_s=600.0, faults=parse_faults("crash=1@24m")), silent)
    with pytest.raises(BadInput, match="before the end of the run"):
        scenario(late, 0)


@pytest.mark.parametrize("name", EVERY)
def test_every_policy_can_be_made_and_asked(trace, name):
    ready = prepared(request(trace, duration_s=120.0), silent)
    decision = make(name, ready).decide(Observation("chat", 0.0, 0.0, 1, ()))
    assert decision.pool == "chat"
    assert 1 <= decision.replicas <= 6


def test_a_run_that_waits_for_decisions_says_what_would_be_sooner():
    """At the default interval of a second 30 hours are 108,000 decisions, and minutes went by without a word of why."""
    (note,) = slow(1.0, 108_000.0, 400_000)
    assert "decides every 1s, 108,000 times here" in note
    assert "`interval: 15s`" in note
    assert slow(15.0, 108_000.0, 400_000) == []
    assert slow(1.0, 7_200.0, 10_000) == []
    assert slow(1.0, 108_000.0, 9_000_000) == [], "requests are what takes the time"
