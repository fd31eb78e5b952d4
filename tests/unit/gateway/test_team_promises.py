"""A team's own promise in a tier counts for its requests, and for nobody else's."""

from forebay.domain.shape import Shape
from forebay.gateway.identity import Identity
from forebay.gateway.meters import ANSWERS_FOR_A_MEAN, Outcome, TierMeter
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec, Team, Tier

OWN = Tier("standard", rank=1, ttft_s=20.0, longest_wait_s=40.0)
SPEC = Spec(
    pools=(Pool("chat", "m", EngineKind("attach", attach=("http://127.0.0.1:1",))),),
    models=(Model("m"),),
    tiers=DEFAULT_TIERS,
    teams=(
        Team("own", (("sk-own", "interactive"),), promises=(OWN,)),
        Team("usual", (("sk-usual", "standard"),)),
    ),
)


def test_a_key_gets_its_teams_promise_and_service_tier_too():
    identity = Identity(SPEC)
    own = identity.caller(b"Bearer sk-own")
    assert own.tier == DEFAULT_TIERS[0]
    assert identity.tier(own, "standard") == OWN
    assert identity.caller(b"Bearer sk-usual").tier == DEFAULT_TIERS[1]


def test_attainment_is_measured_against_the_promise_that_was_made():
    meter = TierMeter("chat", DEFAULT_TIERS[1], 0.05)
    meter.first_content(10.0, OWN.ttft_s)
    meter.first_content(10.0, DEFAULT_TIERS[1].ttft_s)
    assert (meter.ttft_met, meter.ttft_missed) == (1, 1)


def test_demand_in_output_tokens_is_a_mean_once_there_are_answers():
    meter = TierMeter("chat", DEFAULT_TIERS[0], 0.05)
    meter.arrive(Shape(100, 300))
    meter.outcomes[Outcome.COMPLETED] = ANSWERS_FOR_A_MEAN
    meter.output_tokens = ANSWERS_FOR_A_MEAN * 120
    meter.arrive(Shape(100, 300))
    assert meter.counts().arrived_output_tokens == 300 + 120
