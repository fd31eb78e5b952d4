"""What was chosen on one span is judged on the next: a sentence that says whether to take it."""

from types import SimpleNamespace

import pytest
from lab_runs import run, tier

from forebay.app.lab.candidates import Candidate, Told
from forebay.app.lab.held_out import remark, verdicts
from forebay.app.lab.summaries import Yardstick, attained, summary
from forebay.app.lab.tuning import Choice
from forebay.simulation.tune import Row

YARDSTICK = Yardstick(None, None, 0.99, ("interactive",))
DEFAULT, OTHER = Candidate("kpa", 0, {}), Candidate("kpa", 3, {"target": 26.0})
TRIED = tuple((candidate, Row("", 1.0, 1.0)) for candidate in (DEFAULT, OTHER))


def tuning(default, tuned, *, chosen=OTHER, tried=TRIED, duration_s=90_000.0):
    """As `tune` has it; ``default`` and ``tuned``: GPU-hours and what was kept on the span that was held out."""
    runs = {
        name: run(name, gpu_hours=hours, tiers={"interactive": tier(both)})
        for name, (hours, both) in (("kpa", default), ("kpa (tuned)", tuned))
    }
    held = SimpleNamespace(
        ready=SimpleNamespace(duration_s=duration_s),
        summaries=[summary([each], YARDSTICK) for each in runs.values()],
        yardstick=YARDSTICK,
        attained=lambda name: attained(runs[name], ("interactive",)),
    )
    return SimpleNamespace(choices=(Choice("kpa", chosen, "", tried, Told("kpa:target=26", {}, "kpa:target=26")),), held_out=held)


@pytest.mark.parametrize(
    ("default", "tuned", "said"),
    [
        (
            (100.0, 0.995),
            (90.0, 0.992),
            "take kpa:target=26: on what was held out it keeps the promise too, with 10.0% fewer GPU-hours than",
        ),
        (
            (100.0, 0.995),
            (99.3, 0.992),
            "keep the defaults: on what was held out what was chosen keeps the promise too, with 0.7% fewer GPU-hours; less than 2% on",
        ),
        (
            (100.0, 0.995),
            (97.9, 0.992),
            "take kpa:target=26: on what was held out it keeps the promise too, with 2.1% fewer GPU-hours than",
        ),
        (
            (100.0, 0.995),
            (100.0, 0.999),
            "keep the defaults: on what was held out what was chosen keeps the promise too, and takes as many",
        ),
        (
            (100.0, 0.995),
            (110.0, 0.999),
            "keep the defaults: on what was held out what was chosen keeps the promise too, and takes 10.0% more",
        ),
        (
            (100.0, 0.995),
            (80.0, 0.97),
            "keep the defaults: on what was held out they keep the promise (99.50%), what was chosen doesn't (97.00%)",
        ),
        (
            (100.0, 0.97),
            (110.0, 0.99),
            "take kpa:target=26: on what was held out it keeps the promise (99.00%), the defaults don't (97.00%)",
        ),
        ((100.0, 0.97), (90.0, 0.98), "keep the defaults: on what was held out neither they (97.00%) nor what was chosen (98.00%) keep"),
    ],
)
def test_what_is_not_better_on_what_was_held_out_is_not_taken(default, tuned, said):
    """`tune` named settings as chosen, whatever they came to afterwards, and left the judgement to its reader."""
    assert verdicts(tuning(default, tuned))["kpa"].startswith(said)


def test_where_nothing_did_better_or_nothing_can_be_set_the_defaults_stay():
    same = tuning((100.0, 0.995), (100.0, 0.995), chosen=DEFAULT)
    assert verdicts(same) == {"kpa": "keep the defaults: of 2 settings none did better on the training span."}
    only = tuning((100.0, 0.995), (100.0, 0.995), chosen=DEFAULT, tried=TRIED[:1])
    assert verdicts(only) == {"kpa": "nothing to choose: it has no settings to try."}


def test_a_span_shorter_than_a_day_is_said_to_be_short():
    assert remark(tuning((1.0, 1.0), (1.0, 1.0))) == ""
    assert remark(tuning((1.0, 1.0), (1.0, 1.0), duration_s=7200.0)).startswith("2h held out is a short span to judge by")
