"""What one replica serves is found by playing it, and never above what the mean pace allows by much."""

import time

import msgspec
import numpy as np
import pytest

from forebay.app.lab import replica_rate
from forebay.app.lab.replica_rate import measured
from forebay.demand.lengths import FromRows
from forebay.engine.catalogue import PROFILES
from forebay.spec.types import EngineKind, Pool, Scaling, Slo, Tier

POOL = Pool(
    "chat", "llama-3.1-8b", EngineKind("emulated"), PROFILES["llama-3.1-8b-h100"], scaling=Scaling(prompt_tokens=200, output_tokens=20)
)
TIERS = (Tier("interactive", 0, 1.0, 600.0),)
ALIKE = FromRows(np.full(10, 200, np.int32), np.full(10, 20, np.int32))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Plays of a few seconds."""
    monkeypatch.setattr(replica_rate, "SPAN_S", 4.0)
    monkeypatch.setattr(replica_rate, "HALVINGS", 3)


def test_the_rate_is_within_the_formula_s_reach_and_told_beside_it():
    found = measured(POOL, TIERS, ALIKE, 1, time.process_time)
    assert found is not None
    assert 0 < found.measured_per_s <= replica_rate.BOUNDS[1] * found.formula_per_s
    assert (found.prompt_tokens, found.output_tokens, found.replicas) == (200, 20, 1)


def test_where_not_even_the_lowest_rate_holds_none_is_claimed(monkeypatch):
    monkeypatch.setattr(replica_rate, "_holds", lambda *_: False)
    found = measured(POOL, TIERS, ALIKE, 99, time.process_time)
    assert found is not None
    assert (found.measured_per_s, found.replicas) == (0.0, replica_rate.REPLICAS_MAX)
    assert found.formula_per_s > 0


def test_a_promise_that_the_formula_rules_out_is_not_played():
    assert measured(msgspec.structs.replace(POOL, slo=Slo(1.0, 0.0001)), TIERS, ALIKE, 1, time.process_time) is None
