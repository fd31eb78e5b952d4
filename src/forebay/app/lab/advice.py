"""What it means that no policy keeps a promise that a fixed fleet keeps, and what to try: for those who are new to it."""

from collections.abc import Sequence

from forebay.app.report.content import format_hours
from forebay.domain.units import format_duration
from forebay.simulation.values import PolicySummary
from forebay.spec.types import Scaling

SMALL_FLEET = 5
"""Up to so many replicas, one too few is felt at once."""


SMALL_MEAN = 3.0
"""With fewer replicas on average, a spare one is what cures: it is there when a burst or a rise comes, and grows with the fleet."""


def advice(
    lines: Sequence[PolicySummary],
    fixed: int | None,
    fixed_gpu_hours: float,
    pool: Scaling,
    mean: float,
    cold_start_s: float,
    promise: float,
) -> str:
    """In words; empty where some of ``lines`` keeps the promise, or where not even a ``fixed`` number of replicas does (None).

    ``mean``: replicas that the policy had on average.
    """
    least = pool.min_replicas
    if fixed is None or any(line.holds_slo for line in lines):
        return ""
    many = f"{fixed} replicas" if fixed > 1 else "One replica"
    words = [
        f"{many} all the time keep{'' if fixed > 1 else 's'} it through the busiest hour, for {format_hours(fixed_gpu_hours)} GPU-hours: "
        f"the promise can be kept, and what was missing is replicas in time. A start takes {format_duration(cold_start_s)}, and load that "
        "rises within that, or comes back after replicas were given up, meets too few."
    ]
    if 1 < fixed <= SMALL_FLEET:
        words.append(
            f"In a fleet this small each replica is {1 / fixed:.0%} of it: to be one short for minutes makes more than the "
            f"{100 * (1 - promise):.2g} % late that may be."
        )
    hold = f"`min: {fixed}` (which gives up what scaling saves), " if fixed > least else ""
    if mean < SMALL_MEAN and not pool.spare_replicas:
        words.append(
            f"With {mean:.2g} replicas on average try `spare: 1` first: one more than demand asks for, as good as `min: 2` while one would "
            f"do, and it goes along when demand grows. Or {hold}the `ramp` that you expect, a shorter cold start, or a looser promise."
        )
    else:
        spare = "" if pool.spare_replicas else "`spare: 1`, "
        words.append(f"Try {hold}the `ramp` that you expect, {spare}a shorter cold start, or a looser promise.")
    return " ".join(words)
