"""A promise that no replica can keep is refused with the limit that binds and the nearest that could."""

import msgspec
import pytest

from forebay.app.lab.feasible import require
from forebay.domain.errors import BadInput
from forebay.domain.units import parse_duration_s
from forebay.engine.capacity import at_slo
from forebay.engine.catalogue import PROFILES
from forebay.spec.types import EngineKind, Pool, Slo

PROFILE = PROFILES["llama-3.1-70b-fp8-1xh200"]
POOL = Pool("chat", "llama-3.1-70b", EngineKind("emulated"), PROFILE)
SHAPE = (1155, 211)


def refused(slo):
    with pytest.raises(BadInput) as caught:
        require(msgspec.structs.replace(POOL, slo=slo), SHAPE, PROFILES)
    return str(caught.value)


def test_a_promise_that_can_be_kept_says_at_which_rate():
    assert require(POOL, SHAPE, PROFILES) == at_slo(PROFILE, *SHAPE, 1.0, 0.05)


@pytest.mark.parametrize(("slo", "limit"), [(Slo(0.02, 0.05), "ttft"), (Slo(1.0, 0.005), "itl")])
def test_the_nearest_promise_is_kept_and_a_tenth_less_is_not(slo, limit):
    said = refused(slo)
    assert f"{limit} binds" in said
    nearest_s = parse_duration_s(said.split(f"The nearest that it can keep is {limit}: ")[1].split(";")[0])
    for value_s, kept in ((nearest_s, True), (nearest_s * 0.9, False)):
        promise = (value_s, slo.itl_s) if limit == "ttft" else (slo.ttft_s, value_s)
        assert bool(at_slo(PROFILE, *SHAPE, *promise).requests_per_s) is kept


def test_where_one_looser_promise_helps_nothing_both_are_named():
    said = refused(Slo(0.02, 0.005))
    nearest = said.split("both looser, ttft: ")[1].split(";")[0]
    ttft_s, itl_s = (parse_duration_s(value.strip()) for value in nearest.split(", itl: "))
    assert at_slo(PROFILE, *SHAPE, ttft_s, itl_s).requests_per_s > 0
    assert at_slo(PROFILE, *SHAPE, ttft_s * 0.9, itl_s).requests_per_s == 0


def test_profiles_of_the_same_model_that_keep_it_are_named():
    rival = msgspec.structs.replace(
        PROFILE, name="ten-times", law=msgspec.structs.replace(PROFILE.law, base_s=PROFILE.law.base_s / 10, per_kv_token_s=0.0)
    )
    with pytest.raises(BadInput, match="profiles of the same model that keep it: ten-times"):
        require(msgspec.structs.replace(POOL, slo=Slo(1.0, 0.010)), SHAPE, {PROFILE.name: PROFILE, "ten-times": rival})


def test_a_pool_without_physics_can_not_be_simulated():
    with pytest.raises(BadInput, match="found no profile"):
        require(msgspec.structs.replace(POOL, profile=None), SHAPE, PROFILES)
