"""On what other autoscalers are tuned for a comparison: the hours around the busiest of what came before, cut where a run has seen enough.

A million requests are hours, not days. So those are taken that are hardest to hold: the climb to the busiest hour, and the way
down. Where nothing came before what is played, they are taken from what is played, and it is said that this flatters.
"""

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.app.lab.faults import FaultPlan
from forebay.app.lab.request import LabRequest
from forebay.app.lab.survey import HOUR_S, busiest
from forebay.app.lab.world import HISTORY_BUCKET_S, Prepared, requests_of
from forebay.domain.scaling import History
from forebay.domain.units import format_duration
from forebay.simulation import tune

SPAN_S_MAX = tune.DAY_S
"""A longer training span has more decisions than it has news."""
PAST_S_MAX = tune.WEEK_S
"""What is further back says less about what is played."""


class TrainingSpan(msgspec.Struct, frozen=True):
    """Where baselines are tuned, and what they may know of the days around it."""

    request: LabRequest
    hourly: tuple[float, ...]
    """Replicas needed by hour of the day or week, as `simulation.tune.by_hour` has them; empty where no rate is known."""
    said: str
    """For people: which part of the trace it is."""


def training_span(ready: Prepared, replica_rate_per_s: float) -> TrainingSpan:
    """The training span for a comparison on ``ready``; ``replica_rate_per_s``: what one replica serves, 0 where it isn't known."""
    request = ready.request
    past = _usable(ready.past)
    history = past or requests_of(request, ready.start_wall_s)
    counts = np.nan_to_num(np.frombuffer(history.requests, "<f4").astype(np.float64))
    counts = counts[-round(PAST_S_MAX / HISTORY_BUCKET_S) :]
    start_s = request.trace.start_s - (len(counts) * HISTORY_BUCKET_S if past else 0.0)
    first, after = around(counts, HISTORY_BUCKET_S, float(tune.REQUESTS_MAX), SPAN_S_MAX)
    duration_s = (after - first) * HISTORY_BUCKET_S
    if not past:
        duration_s = min(duration_s, ready.duration_s - first * HISTORY_BUCKET_S)
    trace = msgspec.structs.replace(request.trace, start_s=start_s + first * HISTORY_BUCKET_S, duration_s=duration_s)
    wall_s = history.start_wall_s + len(history.requests) / 4 * HISTORY_BUCKET_S - len(counts) * HISTORY_BUCKET_S
    hours = 168 if len(counts) * HISTORY_BUCKET_S >= tune.WEEK_S else 24
    whole = format_duration(len(counts) * HISTORY_BUCKET_S if past else ready.duration_s)
    of = f"the {whole} before what is played" if past else "the very span that is played, since nothing comes before it: this flatters them"
    return TrainingSpan(
        request=msgspec.structs.replace(request, trace=trace, faults=FaultPlan(), faults_text=""),
        hourly=tuple(tune.by_hour(counts, wall_s, replica_rate_per_s, hours)) if replica_rate_per_s else (),
        said=f"the {format_duration(duration_s)} around the busiest hour of {of}",
    )


def around(counts: npt.NDArray[np.float64], bucket_s: float, most: float, longest_s: float) -> tuple[int, int]:
    """(first, after): buckets around the busiest hour of ``counts``, earlier and later ones in turn, while they have at most ``most``
    requests together and last ``longest_s`` at most. One bucket at least.
    """
    middle = min(len(counts) - 1, round((busiest(counts, bucket_s) + HOUR_S / 2) / bucket_s))
    first, after, total, earlier = middle, middle + 1, float(counts[middle]), True
    while (after - first + 1) * bucket_s <= longest_s and (first > 0 or after < len(counts)):
        back = first > 0 and (earlier or after == len(counts))
        total += float(counts[first - 1 if back else after])
        if total > most:
            break
        first, after, earlier = (first - 1, after, False) if back else (first, after + 1, True)
    return first, after


def _usable(past: History | None) -> History | None:
    """``past`` where it is an hour at least and something came in it."""
    if past is None or len(past.requests) / 4 * HISTORY_BUCKET_S < HOUR_S:
        return None
    return past if np.nansum(np.frombuffer(past.requests, "<f4")) > 0 else None
