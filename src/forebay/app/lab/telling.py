"""What one run tells minute by minute: its timeline as columns, and why there were so many replicas at a time that is asked about."""

from collections.abc import Sequence
from typing import Any

import msgspec

from forebay.app.lab.witness import MOMENTS_MAX
from forebay.app.lab.world import Prepared
from forebay.controller.status import Explanation, explanation
from forebay.domain.errors import BadInput
from forebay.simulation.values import Minute, RunResult

COLUMNS = tuple(field.name for field in msgspec.structs.fields(Minute))


def asked_s(ready: Prepared, texts: Sequence[str]) -> list[float]:
    """The seconds of the run that ``--explain`` names; raises BadInput for what is no time, or none of the run's."""
    if len(texts) > MOMENTS_MAX:
        raise BadInput(f"--explain: found {len(texts)} of them, allowed: at most {MOMENTS_MAX}")
    found = []
    for text in texts:
        second = ready.clock.second("--explain", text)
        if second >= ready.duration_s:
            raise BadInput(f"--explain: found {text!r}, allowed: before the end of the run, {ready.clock.told(ready.duration_s)}")
        found.append(second)
    return found


def explained(ready: Prepared, run: RunResult) -> list[Explanation]:
    """The decisions in force at the times that were asked about, as `forebay explain` gives them."""
    return [
        explanation(decision, f"{ready.clock.told(moment_s)}, decided at {ready.clock.told(decision.at_s, zone=False)}")
        for moment_s, decision in run.witnessed
    ]


def timeline(ready: Prepared, run: RunResult) -> dict[str, Any]:
    """Columns of as many values as rows, a row a minute (longer ones in runs of more than a week); times and counts as in `Minute`."""
    columns = {name: [getattr(row, name) for row in run.timeline] for name in COLUMNS}
    return {"start_wall_s": ready.start_wall_s or None, "zone": ready.clock.zone, **columns}
