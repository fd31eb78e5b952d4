"""Misses that no number of replicas prevents, and the promise that could be kept instead."""

import time

import numpy as np
import pytest

from forebay.app.lab.idle_fleet import IdleFleet
from forebay.demand.synthesis import bare
from forebay.domain.units import parse_duration_s
from forebay.engine.catalogue import PROFILES
from forebay.simulation.lab_scenario import scenario_from
from forebay.spec.types import EngineKind, Pool, Scaling, Slo, Tier

PROFILE = PROFILES["llama-3.1-8b-h100"]
TIERS = (Tier("interactive", 0, 1.0, 600.0),)
SPAN_S = 60.0


def idle(long_share, slo):
    pool = Pool(
        "chat",
        "llama-3.1-8b",
        EngineKind("emulated"),
        PROFILE,
        slo=slo,
        scaling=Scaling(prompt_tokens=200, output_tokens=20, max_replicas=2),
    )
    world = scenario_from(pool, TIERS, duration_s=SPAN_S)

    def arrivals():
        at_s = np.linspace(0.5, SPAN_S - 1, 100)
        prompts = np.where(np.arange(100) < 100 * long_share, 60_000, 200).astype(np.int32)
        chunk = bare(at_s, prompts, np.full(100, 20, np.int32))
        yield chunk._replace(tier=np.zeros(100, np.int16))

    return IdleFleet(world, arrivals, 100 / SPAN_S, 20.0, time.process_time)


def test_an_idle_fleet_keeps_what_it_can():
    fleet = idle(0.0, Slo(1.0, 0.05))
    assert fleet.attained() == 1.0


def test_long_prompts_are_missed_by_share_and_the_nearest_promise_is_theirs():
    fleet = idle(0.2, Slo(1.0, 0.05))
    assert fleet.attained() == pytest.approx(0.8, abs=0.02)
    name, _, value = fleet.nearest().partition(": ")
    assert name == "ttft"
    assert 1.0 < parse_duration_s(value) < 60.0
