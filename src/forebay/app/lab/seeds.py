"""Whether another seed would change anything: known before anybody waits for several."""

from pathlib import Path

from forebay.app.lab.request import LabRequest
from forebay.app.trace_files import format_of
from forebay.demand.trace import RATE_FORMATS


def alike(request: LabRequest) -> bool:
    """Whether it is certain that every seed gives the same: the requests are recorded ones, and nothing else is drawn either.

    Raises BadInput for a trace whose format is not known.
    """
    trace, faults, profile = request.trace, request.faults, request.pool.profile
    requests_drawn = trace.recorded is not None or trace.rate_scale != 1 or len(trace.tiers) > 1
    faults_drawn = (
        faults.outages or faults.crashes_per_replica_day or faults.random_metrics or any(f.share < 1 for f in faults.metric_faults)
    )
    engines_drawn = request.start_cv > 0 or (profile is not None and not profile.spread.steady)
    if requests_drawn or faults_drawn or engines_drawn:
        return False
    return format_of(Path(trace.path), trace.trace_format, trace.column) not in RATE_FORMATS
