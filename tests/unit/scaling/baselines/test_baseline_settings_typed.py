"""What may be set in other autoscalers: every field of every law, by a word that is read, shown, documented and played."""

from pathlib import Path

import msgspec
import pytest
from baseline_pool import POOL

from forebay.domain.errors import BadInput
from forebay.domain.scaling import MEMORY_BYTES_MAX
from forebay.scaling.baselines import named, settable, targets
from forebay.scaling.baselines.grid import candidates
from forebay.scaling.baselines.reference import BEGIN, END, reference
from forebay.scaling.baselines.settable import SETTABLE, Pair
from forebay.scaling.baselines.windows import SAMPLES_MAX
from forebay.scaling.capacity import pool_capacity

HOME = Path(__file__).parents[4]
OF = targets(POOL, pool_capacity(POOL))
DEFAULTS = {name: make() for name, make in named(POOL, pool_capacity(POOL), peak_replicas=12).items()}
DECIDED_BY_NAME = {("aibrix-apa", "fixed"), ("aibrix-apa-fixed", "fixed"), ("dynamo-sla", "sla.fit")}
"""Fields for which there is a name of its own."""


def fields(given, path=""):
    """Paths of everything in ``given`` that holds a value."""
    for name in given.__struct_fields__:
        value = getattr(given, name)
        if isinstance(value, msgspec.Struct):
            yield from fields(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


@pytest.mark.parametrize("name", SETTABLE)
def test_every_setting_of_a_law_can_be_typed(name):
    """So that `the policy I have` can be played, whatever was set in it; a new field fails here until it has its word."""
    has = {field for field in fields(SETTABLE[name].given(DEFAULTS[name].law)) if (name, field) not in DECIDED_BY_NAME}
    assert has == {each.field for each in SETTABLE[name].settings}
    assert len({each.key for each in SETTABLE[name].settings}) == len(has)


def test_all_but_a_fleet_that_is_sized_for_the_peak_have_settings():
    assert set(DEFAULTS) - set(SETTABLE) == {"static-peak"}


@pytest.mark.parametrize("name", SETTABLE)
def test_what_is_shown_is_read_back_and_the_defaults_are_within_what_is_allowed(name):
    given = SETTABLE[name].given(DEFAULTS[name].law)
    for each in SETTABLE[name].settings:
        value = settable.setting.value_at(given, each.field)
        assert each.read(each.show(value)) == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value)


@pytest.mark.parametrize("name", SETTABLE)
def test_what_tune_finds_can_be_typed_again(name):
    """Each setting that is tried for the law, as words, makes the same law again."""
    default = DEFAULTS[name]
    for tried in candidates(name, OF, peak_replicas=12):
        law = tried.make().law
        pairs = settable.pairs_of(name, law, default.law)
        again = settable.set_in("--policies", name, default, OF, pairs).law
        for each in SETTABLE[name].settings:
            found, wanted = (settable.setting.value_at(SETTABLE[name].given(one), each.field) for one in (again, law))
            assert found == (pytest.approx(wanted, rel=1e-5) if isinstance(wanted, float) else wanted), each.key


def test_a_plan_by_the_hour_can_not_be_typed():
    hourly = [1.0 + hour for hour in range(24)]
    planned = candidates("cron", OF, hourly=hourly)[0].make()
    assert settable.pairs_of("cron", planned.law, DEFAULTS["cron"].law) is None


def test_only_what_is_typed_differs_from_the_defaults():
    policy = settable.set_in("--policies", "hpa-queue", DEFAULTS["hpa-queue"], OF, [Pair("target", "3"), Pair("down", "10m")])
    assert policy.law.target == 3
    assert policy.law.settings == msgspec.structs.replace(DEFAULTS["hpa-queue"].law.settings, down_stabilisation_s=600.0)
    sla = settable.set_in("--policies", "dynamo-sla", DEFAULTS["dynamo-sla"], OF, [Pair("itl", "40ms"), Pair("sensitivity", "70%")])
    assert (sla.law.targets.itl_s, sla.law.targets.ttft_s, sla.law.settings.sensitivity) == (0.04, OF.ttft_s, 0.7)
    keda = settable.set_in("--policies", "keda-queue-running", DEFAULTS["keda-queue-running"], OF, [Pair("up_pods", "2")])
    assert keda.law.settings.hpa.up_replicas == 2
    none = settable.set_in("--policies", "hpa-gpu", DEFAULTS["hpa-gpu"], OF, [Pair("up_percent", "none")])
    assert none.law.settings.up_fraction is None


@pytest.mark.parametrize(
    ("name", "key", "text", "said"),
    [
        ("hpa-queue", "targt", "3", "found 'targt' of hpa-queue, allowed: target, tolerance, up, down, up_percent"),
        ("hpa-queue", "targt", "3", 'did you mean "target"?'),
        ("hpa-queue", "target", "0", "found 'target=0' of hpa-queue, allowed: a number > 0"),
        ("hpa-queue", "down", "300", "found 'down=300' of hpa-queue, allowed: a duration with its unit, such as 300s; write 300s"),
        ("hpa-queue", "down", "2h", "at most 1h"),
        ("hpa-gpu", "target", "170%", "allowed: a share such as 0.7 or 70%, above 0 %, at most 100 %"),
        ("hpa-gpu", "target", "70", "it is a fraction: write 0.7"),
        ("hpa-gpu", "up_pods", "some", "a whole number ≥ 1 and ≤ 10000, or none"),
        ("skyserve", "fallback", "no", "true or false; write false"),
        ("static-peak", "replicas", "3", "static-peak, which has no settings; give its name alone"),
        ("wva-v2", "down", "90%", "found 'down=0.9' of wva-v2, allowed: at most up, which is 0.85"),
        ("kpa", "window", "2s", "at least 6s"),
    ],
)
def test_what_can_not_be_set_is_told_with_what_can(name, key, text, said):
    with pytest.raises(BadInput) as told:
        settable.set_in("--policies", name, DEFAULTS[name], OF, [Pair(key, text)])
    assert str(told.value).startswith("--policies: found ")
    assert said in str(told.value)


def test_a_setting_is_given_once():
    with pytest.raises(BadInput, match="'target' of kpa twice, allowed: each setting once"):
        settable.check("--policies", "kpa", [Pair("target", "3"), Pair("target", "4")])


def test_the_longest_windows_fit_what_a_law_remembers():
    for name, settings in SETTABLE.items():
        for each in settings.settings:
            if each.field.endswith(("window_s", "stable_s", "stabilisation_s", "delay_s")):
                assert each.kind.most / DEFAULTS[name].law.tick_s <= SAMPLES_MAX, (name, each.key)
    assert 3 * 19 * SAMPLES_MAX < MEMORY_BYTES_MAX


def test_the_reference_in_the_docs_is_the_table():
    text = (HOME / "docs" / "baselines.md").read_text(encoding="utf-8")
    between = text.partition(BEGIN)[2].partition(END)[0]
    assert between.strip() == reference().strip(), "paste the output of python -m forebay.scaling.baselines.reference between the marks"
