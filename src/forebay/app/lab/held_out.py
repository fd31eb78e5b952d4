"""Whether what was chosen on one span is worth having: how it and the defaults did on the next, in a sentence."""

from typing import Any

from forebay.app.lab import comparing
from forebay.app.lab.comparing import TUNED, Comparison
from forebay.app.lab.summaries import EQUAL
from forebay.app.lab.tuning import Choice, Tuning, choices_as_json
from forebay.domain.units import format_duration, format_share
from forebay.simulation.values import PolicySummary

GAIN_MIN = 0.02
"""Fewer GPU-hours by less than this on one span are chance: another span, or other draws of the same rates, differ by as much."""
SHORT_S = 86_400.0
"""A span without a whole day in it says little about the next."""


def verdicts(tuning: Tuning) -> dict[str, str]:
    """By policy: whether to take what was chosen for it, or to keep its defaults, and why."""
    return {choice.policy: _verdict(choice, tuning.held_out) for choice in tuning.choices}


def remark(tuning: Tuning) -> str:
    """What is to be known of all of them: that a short span was held out; else empty."""
    span_s = tuning.held_out.ready.duration_s
    if span_s >= SHORT_S:
        return ""
    return f"{format_duration(span_s)} held out is a short span to judge by: hold out a day or more before you change a setting."


def as_json(tuning: Tuning) -> dict[str, Any]:
    """For scripts: the comparison on the held-out span, what was chosen, and whether to take it."""
    found, said = choices_as_json(tuning.trained, tuning.choices), verdicts(tuning)
    choices = [{**each, "verdict": said[each["name"]]} for each in found["choices"]]
    return {**comparing.as_json(tuning.held_out), **found, "choices": choices}


def _verdict(choice: Choice, held: Comparison) -> str:
    if len(choice.tried) == 1:
        return "nothing to choose: it has no settings to try."
    if choice.chosen == choice.tried[0][0]:
        return f"keep the defaults: of {len(choice.tried)} settings none did better on the training span."
    lines = {line.name: line for line in held.summaries}
    default, tuned = lines[choice.policy], lines[choice.policy + TUNED]
    if default.holds_slo and tuned.holds_slo:
        return _by_cost(choice, default, tuned)
    before, after = (format_share(held.attained(line.name), held.yardstick.promise) for line in (default, tuned))
    if tuned.holds_slo:
        return f"take {choice.settings}: on what was held out it keeps the promise ({after}), the defaults don't ({before})."
    if default.holds_slo:
        return f"keep the defaults: on what was held out they keep the promise ({before}), what was chosen doesn't ({after})."
    return f"keep the defaults: on what was held out neither they ({before}) nor what was chosen ({after}) keep the promise."


def _by_cost(choice: Choice, default: PolicySummary, tuned: PolicySummary) -> str:
    more = tuned.gpu_hours / default.gpu_hours - 1 if default.gpu_hours else 0.0
    if -EQUAL > more > -GAIN_MIN:
        return (
            f"keep the defaults: on what was held out what was chosen keeps the promise too, with {-more:.1%} fewer GPU-hours; less than "
            f"{GAIN_MIN:.0%} on one span is within what chance does: hold out more days to tell."
        )
    if more < -EQUAL:
        return f"take {choice.settings}: on what was held out it keeps the promise too, with {-more:.1%} fewer GPU-hours than the defaults."
    needs = "as many GPU-hours" if more <= EQUAL else f"{more:.1%} more GPU-hours"
    return f"keep the defaults: on what was held out what was chosen keeps the promise too, and takes {needs}."
