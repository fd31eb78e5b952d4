"""Policies by name: with settings as a name carries them, Forebay's own too; and what tuning finds, said so that it can be pasted."""

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forebay.app.lab import candidates, own_settings, policies, tuning
from forebay.app.lab.policies import NAMES, chosen, parted, typed
from forebay.app.lab.request import LabRequest, TraceOptions
from forebay.domain.errors import BadInput
from forebay.engine.catalogue import PROFILES
from forebay.scaling.baselines.settable import Pair
from forebay.spec.decode import decode
from forebay.spec.types import Scaling

SPEC = """
pools:
  chat: {model: llama-3.1-8b, profile: llama-3.1-8b-h100, engine: {kind: emulated}, scaling: {min: 1, max: 5, in: {kv: 0.4}}}
"""


@pytest.fixture(scope="module")
def request_():
    spec = decode(SPEC, "forebay.yaml", {profile.name: profile for profile in PROFILES.values()})
    return LabRequest(spec.pools[0], spec.tiers, (), TraceOptions("trace.jsonl", "auto"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("hpa-queue:target=3,down=10m,forebay", ["hpa-queue:target=3,down=10m", "forebay"]),
        ("kpa:target=20, kpa: target = 40 ,kpa", ["kpa:target=20", "kpa:target=40", "kpa"]),
        ("hpa-queue,target=3", ["hpa-queue:target=3"]),
        ("kpa,kpa", ["kpa"]),
        ("all,kpa:target=40", [*NAMES, "kpa:target=40"]),
        ("forebay:forecast.calm=2m,prices.miss=30", ["forebay:forecast.calm=2m,prices.miss=30"]),
    ],
)
def test_what_has_an_equals_sign_belongs_to_the_policy_before_it(text, names):
    """`--policies hpa-queue:target=3` was refused: what somebody runs could only be played with its source's defaults."""
    assert chosen("--policies", text) == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("target=3,kpa", "found 'target=3' first, allowed: a policy, then its settings, such as hpa-queue:target=3,down=10m"),
        ("kpa:", "found '' of kpa, allowed: KEY=VALUE"),
        ("kpa:target", "found 'target' of kpa, allowed: KEY=VALUE"),
        ("kpa:target=", "found 'target=' of kpa, allowed: KEY=VALUE"),
        ("kap:target=3", "found 'kap', allowed: all, forebay"),
        ("all:target=3", "found settings of all"),
        ("kpa:targt=3", 'did you mean "target"?'),
        ("forebay:calm=3m", 'did you mean "forecast.calm" or "in.calm"?'),
        ("forebay:in.kv=50%", "found 'in.kv=50%' of forebay, allowed: a number ≥ 0 and ≤ 1; write 0.5"),
        ("forebay:max=9", "found 'max' of forebay, allowed: spare, "),
        ("forebay:spare=1,spare=2", "'spare' of forebay twice"),
        (",", "found none"),
    ],
)
def test_what_is_no_policy_and_no_setting_is_told_with_what_is(text, said):
    with pytest.raises(BadInput) as told:
        chosen("--policies", text)
    assert str(told.value).startswith("--policies: ")
    assert said in str(told.value)


def test_settings_that_do_not_fit_the_pool_are_refused_before_anything_is_played(request_):
    policies.fitting(["hpa-queue:target=3", "forebay:in.kv=0.5", "forebay"], request_)
    with pytest.raises(BadInput, match=r"--policy: found 'down=0.9' of wva-v2, allowed: at most up, which is 0.85"):
        policies.fitting(["wva-v2:down=90%"], request_, "--policy")
    with pytest.raises(BadInput, match=r"allowed: below out.kv, which is 0.3"):
        policies.fitting(["forebay:out.kv=0.3"], request_)


@given(st.lists(st.tuples(st.sampled_from(["target", "down"]), st.from_regex(r"[0-9a-z%.]{1,9}", fullmatch=True)), max_size=4))
def test_a_name_is_parted_as_it_was_put_together(pairs):
    told = [Pair(*pair) for pair in pairs]
    assert parted(typed("kpa", told)) == ("kpa", told)


def test_settings_of_forebays_own_are_those_of_the_spec(request_):
    name, pairs = parted("forebay:forecast.calm=2m,prices.miss=30,buffer=false,spare=1")
    scaling = own_settings.set_in("--policies", request_.pool.scaling, pairs)
    assert (name, scaling.in_kv_usage, scaling.max_replicas) == ("forebay", 0.4, 5)
    changed = own_settings.changes(scaling, request_.pool.scaling)
    assert own_settings.yaml(changed) == "scaling: {spare: 1, forecast: {calm: 2m}, prices: {miss: 30}, buffer: false}"
    assert own_settings.set_in("--policies", request_.pool.scaling, own_settings.pairs_of(changed)) == scaling


def test_every_setting_that_tune_tries_of_forebays_own_can_be_pasted(request_):
    """`forecast_calm_s 120, miss_ratio 3` were no keys of anything; the line of YAML and the name give the same policy."""
    ready = msgspec.structs.replace(_ready(request_))
    for candidate in candidates.listed("forebay", ready, ()):
        told = candidates.told(candidate, ready)
        scaling = candidates._scaling(candidate, ready)
        assert _same(own_settings.set_in("--policies", request_.pool.scaling, parted(told.policy)[1]), scaling)
        if told.words != "defaults":
            pasted = yaml.safe_load(SPEC)
            for section, value in yaml.safe_load(told.words)["scaling"].items():
                pasted["pools"]["chat"]["scaling"].setdefault(section, {}).update(value)
            spec = decode(yaml.safe_dump(pasted), "forebay.yaml", {profile.name: profile for profile in PROFILES.values()})
            assert _same(spec.pools[0].scaling, scaling)
            assert yaml.safe_load(told.words)["scaling"] == told.spec


def test_what_tune_finds_for_others_is_a_name_that_can_be_played(request_):
    ready = _ready(request_)
    told = [candidates.told(candidate, ready) for candidate in candidates.listed("hpa-queue", ready, ())]
    assert told[0] == candidates.Told("hpa-queue", {}, "defaults")
    assert "hpa-queue:target=0.5,down=15m" in [each.policy for each in told]
    assert all(each.words in (each.policy, "defaults") for each in told)
    policies.fitting([each.policy for each in told], request_)
    plan = candidates.told(candidates.listed("cron", ready, tuple(float(hour) for hour in range(24)))[0], ready)
    assert (plan.policy, plan.words) == ("", "margin 1, early 0: a plan by the hour, made from the training span")


def test_only_policies_without_settings_are_tuned():
    assert tuning.tunable(["forebay", "kpa", "kpa:target=3", "ray"]) == ["kpa", "ray"]
    tuning.require_tunable("--tuned", ["forebay", "kpa:target=3", "kpa"])
    with pytest.raises(BadInput, match=r"--tuned: found nothing to tune among forebay, kpa:target=3, allowed: another autoscaler without"):
        tuning.require_tunable("--tuned", ["forebay", "kpa:target=3"])
    with pytest.raises(BadInput, match="'kpa:target=3', allowed: names without settings"):
        tuning.require_defaults("--policies", ["ray", "kpa:target=3"])


def _ready(request):
    from forebay.app.lab.survey import Survey
    from forebay.app.lab.world import Prepared

    return Prepared(request, "trace", 600.0, 0.0, Survey(10, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0), 3, 1, None, ())


def _same(found: Scaling, wanted: Scaling) -> bool:
    """But for what six digits leave out."""
    pairs = [(getattr(found, field), getattr(wanted, field)) for field in Scaling.__struct_fields__]
    return all(one == (pytest.approx(other, rel=1e-5) if isinstance(other, float) else other) for one, other in pairs)
