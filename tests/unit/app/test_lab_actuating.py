"""``--actuator`` in words: every setting reaches its field, and what is wrong is told with what is allowed."""

import msgspec
import pytest

from forebay.app.lab.actuating import parse_actuator, unused
from forebay.domain.errors import BadInput
from forebay.simulation.values import Actuator


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("direct", Actuator()),
        ("hpa", Actuator("hpa")),
        ("keda", Actuator("hpa")),
        ("keda,polling=10s,cooldown=10m", Actuator("hpa", polling_s=10.0, cooldown_s=600.0)),
        ("hpa, sync=5s, tolerance=0", Actuator("hpa", sync_s=5.0, tolerance=0.0)),
        ("hpa,victims=newest", Actuator("hpa", steered=False)),
        ("hpa,victims=fewest", Actuator("hpa")),
        ("hpa,up_window=30s,down_window=1h", Actuator("hpa", up_stabilisation_s=30.0, down_stabilisation_s=3600.0)),
    ],
)
def test_each_word_has_its_field(text, meant):
    assert parse_actuator(text) == meant


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kda", "found 'kda', allowed: direct, hpa, keda; did you mean"),
        ("", "found '', allowed: direct, hpa, keda"),
        ("keda,", "found '', allowed: sync=…"),
        ("keda,poling=3s", 'did you mean "polling"?'),
        ("keda,polling=0s", "found 'polling=0s', allowed: 1s to 1h"),
        ("keda,polling", "'polling': "),
        ("hpa,sync=fast", "'fast' is not a duration"),
        ("hpa,down_window=61m", "found 'down_window=61m', allowed: at most 1h"),
        ("hpa,tolerance=1", "allowed: a fraction of 0 to 0.99"),
        ("hpa,tolerance=nan", "found 'tolerance=nan'"),
        ("hpa,tolerance=-0.1", "found 'tolerance=-0.1'"),
        ("hpa,tolerance=10%", "such as tolerance=0.1"),
        ("hpa,victims=newst", 'allowed: victims=fewest, victims=newest; did you mean "newest"?'),
        ("hpa,sync=5s,sync=6s", "found 'sync' twice"),
        ("direct,sync=5s", "found 'sync=5s' beside direct"),
    ],
)
def test_what_is_wrong_is_told_with_what_is_allowed(text, sentence):
    with pytest.raises(BadInput) as refused:
        parse_actuator(text)
    assert str(refused.value).startswith("--actuator: ")
    assert sentence in str(refused.value)


def test_what_is_between_zero_and_one_is_said_to_change_nothing_in_a_pool_that_is_never_empty():
    polled = parse_actuator("keda,polling=10s")
    assert "`min` is 2" in unused(polled, 2)
    assert unused(polled, 0) == unused(Actuator("hpa", tolerance=0.0), 2) == unused(msgspec.structs.replace(polled, kind="direct"), 2) == ""
