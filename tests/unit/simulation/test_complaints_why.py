"""Complaints 9 and 15: a start that poisons what is learned, and what it would have done, why, and whether anyone was asked."""

import msgspec
import pytest
from complaint_worlds import between, dynamo, rival, started_cold
from test_scenarios import POOL, REPLICA_PER_S, compiled, forebay, played, poisson, pool, top, world  # noqa: F401 (an autouse fixture)

from forebay.domain.signal import Known
from forebay.scaling import explain
from forebay.simulation.values import MetricFault, Outage, Shortage

pytestmark = pytest.mark.timeout(900)
"""The first test may have to compile the kernel."""


class Recorded:
    """A policy, and all that it saw and said."""

    def __init__(self, policy):
        self._policy = policy
        self.log = []

    def decide(self, observation):
        decision = self._policy.decide(observation)
        self.log.append((observation, decision))
        return decision


@pytest.fixture(scope="module")
def troubled(compiled):  # noqa: F811
    """Half an hour with a crash, an outage of the metrics, a shortage and a rise."""
    recorded = Recorded(forebay())
    it = world(
        initial_replicas=4,
        metric_faults=(MetricFault("error", 300.0, 500.0),),
        outages=(Outage("crash", 700.0, 1),),
        shortages=(Shortage(900.0, 1500.0, 6),),
    )
    played(it, recorded, poisson((900.0, 2.0), (1800.0, 5.0)))
    return recorded.log


def test_complaint_15_each_decision_says_why(troubled):
    for _, decision in troubled:
        term = explain.binding(decision)
        assert term is not None
        assert (term.name, term.replicas) == (decision.reason, decision.replicas)
        assert f"{decision.replicas} replica" in explain.summary(decision)
        assert all(row.because for row in explain.rows(decision))
    reasons = {decision.reason for _, decision in troubled}
    assert {"hold_unknown", "hold_calm", "demand"} <= reasons, "and not always the same"


def test_complaint_15_what_was_seen_gives_the_same_answer_again(troubled):
    stored = [(msgspec.msgpack.encode(seen), said) for seen, said in troubled]
    for seen, said in stored:
        assert forebay().decide(msgspec.msgpack.decode(seen, type=type(troubled[0][0]))) == said


def test_complaint_15_another_setting_is_asked_beside_and_changes_nothing(troubled):
    """Advice only: the same observations, another policy, and the difference with its reason."""
    other = forebay(pool(spare_replicas=2))
    differs = [(said, other.decide(seen)) for seen, said in troubled]
    more = [advice for said, advice in differs if advice.replicas > said.replicas]
    assert more
    assert {advice.reason for advice in more} == {"spare"}
    assert all("2 may fail" in explain.summary(advice) for advice in more)


@pytest.mark.parametrize("name", ["kpa", "ray", "hpa-queue"])
def test_complaint_15_growth_is_asked_for_above_what_was_agreed(name):
    """From three to eleven replicas' worth, where anything above two more within the hour wants approval."""

    def grown(policy):
        it = world(initial_replicas=3, duration_s=1200.0)
        return played(it, policy, poisson((300.0, 2.0), (1200.0, 8.0)))

    assert max(row.desired for row in grown(rival(name, POOL)).timeline) > 3 + 2
    asking = grown(forebay(pool(min_replicas=3, ask_above=2)))
    assert max(row.desired for row in asking.timeline) == 5
    assert asking.first_alert_s["approval_wanted"] < 600.0
    approved = grown(forebay(pool(min_replicas=3, ask_above=2, approved_replicas=12)))
    assert max(row.desired for row in approved.timeline) >= 8
    assert top(approved).both_attainment > top(asking).both_attainment


FIRST, FACTOR = 20, 100.0
"""An engine compiles in its first twenty passes: three seconds each."""
WARM = pool(max_replicas=40)
COLD = started_cold(WARM, FIRST, FACTOR)


@pytest.fixture(scope="module")
def risen(compiled):  # noqa: F811
    """Load rises by half after twenty minutes, with engines that start cold and with ones that start warm. By who decided: the result."""

    def one(of, policy):
        return played(world(of, initial_replicas=6, duration_s=3000.0), policy, poisson((1200.0, 4.0), (3000.0, 6.0)))

    return {
        "dynamo": one(COLD, dynamo(COLD)),
        "dynamo, first passes left out": one(COLD, dynamo(COLD, skip_first=FIRST)),
        "dynamo, warm": one(WARM, dynamo(WARM)),
        "forebay": one(COLD, forebay(COLD)),
        "forebay, not told": one(COLD, forebay(WARM)),
        "forebay, warm": one(WARM, forebay(WARM)),
    }


def held(result):
    """Mean number of replicas in the last quarter of an hour, when all is long settled."""
    rows = between(result, 2100.0, 3000.0)
    return sum(row.ready for row in rows) / len(rows)


def test_complaint_9_first_passes_poison_a_model_that_learns_from_them(risen):
    assert held(risen["dynamo, warm"]) < 10.0, "that is what the load needs"
    assert held(risen["dynamo"]) == 40.0, "the pool's max, and for good: what it learned from cold engines is never forgotten"
    assert held(risen["dynamo, first passes left out"]) < held(risen["dynamo, warm"]) + 2.0, "it is they that did it"


def test_complaint_9_cold_engines_teach_the_policy_nothing_about_warm_ones(risen):
    assert held(risen["forebay"]) <= held(risen["forebay, warm"]) + 1.0
    assert held(risen["forebay, not told"]) < 1.5 * held(risen["forebay, warm"]), (
        "without a word in the profile it is misled, within bounds"
    )
    for name in ("forebay", "forebay, not told", "forebay, warm"):
        rows = between(risen[name], 2100.0, 3000.0)
        met = sum(row.both_met for row in rows)
        assert met > 0.99 * (met + sum(row.missed for row in rows)), name


def test_complaint_9_a_restart_in_place_is_no_cold_start():
    """It has its node and its weights: as a start of ten seconds it would teach a lead that is far too short."""
    recorded = Recorded(forebay(pool(min_replicas=4, cold_start_s=360.0)))
    it = world(pool(cold_start_s=360.0), initial_replicas=4, outages=(Outage("crash", 120.0, 2),))
    played(it, recorded, poisson((1800.0, 2.0)))
    assert all(not isinstance(seen.cold_start_s, Known) for seen, _ in recorded.log)


def test_complaint_9_minutes_without_replicas_teach_nothing_about_one_replica():
    """Load doubles for five minutes, a start takes six. An hour later a replica is thought to serve what it was thought to serve before."""
    of = pool(cold_start_s=360.0, max_replicas=60)
    recorded = Recorded(forebay(of))
    it = world(of, initial_replicas=7, duration_s=5100.0)
    played(it, recorded, poisson((900.0, 5.0), (1200.0, 10.0), (5100.0, 5.0)))

    def thought_per_s(at_s):
        decision = next(said for seen, said in recorded.log if seen.now_s >= at_s)
        return next(term.numbers["replica_rate_per_s"] for term in decision.terms if term.name == "demand")

    assert thought_per_s(4800.0) > 0.9 * thought_per_s(885.0)
    assert thought_per_s(4800.0) < 1.2 * REPLICA_PER_S
