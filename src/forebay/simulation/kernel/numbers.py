"""Numbers that the fast fleet and its judge agree on: they are part of what is simulated, not of how."""

IN_FLIGHT, COMPLETED, SHED, CUT = 0, 1, 2, 3
"""Outcomes of a request."""

PREFIX_LOAD_NUMERATOR = 5
PREFIX_LOAD_DENOMINATOR = 4
PREFIX_STREAMS_SPARE = 2
"""A prefix group stays with its replica while that has at most 5/4 of the mean streams and two more (bounded loads)."""

SKETCH_ERROR = 0.01
"""Relative error of quantiles at most."""
SKETCH_LEAST_S = 1e-6
"""Anything shorter is as good as nothing."""
BUCKETS = 1408
"""Up to SKETCH_LEAST_S · ((1 + e) ÷ (1 - e))^(BUCKETS - 2) s, some 15 days."""

KINDS = 4
TTFT, TPOT, ITL, WAIT = range(KINDS)
"""What is sketched: per request, per request, per token, per dispatch."""
RECENT_KINDS = 2
"""TTFT and TPOT are also sketched since the last reset."""
