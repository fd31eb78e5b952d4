"""What a decision says about admission reaches the front queue, and turns away what it names and nothing else."""

import msgspec
import pytest
from fleet_cases import arrivals_of
from slot_fleet import played, scenario

from forebay.domain.roster import Capacity, Posture
from forebay.domain.scaling import Decision, Term, TermKind
from forebay.engine.catalogue import PROFILES
from forebay.simulation.fast import FastFleet
from forebay.simulation.values import FleetRules, Queueing, TierRules

# The first test compiles the kernel, which takes longer than any test may; the rest find it compiled.
pytestmark = pytest.mark.timeout(300)
PROFILE = msgspec.structs.replace(PROFILES["llama-3.1-8b-h100"], sequences_max=1)
RULES = FleetRules(
    PROFILE,
    Capacity(PROFILE.kv_tokens, 1, 10**6, 0.0, 0.0, PROFILE.context_tokens),
    (TierRules("high", 1.0, 1.0, 600.0), TierRules("low", 1.0, 1.0, 600.0), TierRules("batch", 1.0, 1.0, 600.0, preemptible=True)),
)
ROWS = [(0.0, 100, 50, 2, -1, 0), *((0.01, 100, 5, tier, -1, 0) for tier in (0, 1, 2))]
"""Batch takes the only place at once; then one of each tier finds it taken."""


def shed(posture, rules=RULES):
    """Refusals by tier."""
    fleet = FastFleet(rules, iter([arrivals_of(ROWS)]))
    fleet.add()
    fleet.set_posture(posture)
    fleet.run_until(60.0)
    fleet.check()
    return tuple(fleet.totals(tier).shed for tier in range(3))


@pytest.mark.parametrize(
    ("posture", "turned_away"), [(Posture.OPEN, (0, 0, 0)), (Posture.SHED_PREEMPTIBLE, (0, 0, 1)), (Posture.SHED_LOW, (0, 1, 1))]
)
def test_what_can_not_start_at_once_is_turned_away_by_tier(posture, turned_away):
    assert shed(posture) == turned_away


def test_a_plain_load_balancer_turns_nobody_away():
    assert shed(Posture.SHED_LOW, msgspec.structs.replace(RULES, queueing=Queueing.ENGINE)) == (0, 0, 0)


class Closing:
    """Sheds what is preemptible from a minute on."""

    def decide(self, seen):
        posture = Posture.SHED_PREEMPTIBLE if seen.now_s >= 60 else Posture.OPEN
        return Decision(seen.pool, seen.now_s, 2, "two", (Term("two", TermKind.FLOOR, 2, "always"),), posture=posture)


def test_the_driver_passes_on_what_was_decided():
    _, fleet = played(scenario(120.0, initial_replicas=2), Closing())
    assert [call for call in fleet.calls if call[1] == "posture"] == [(60.0, "posture", "shed_preemptible")]
