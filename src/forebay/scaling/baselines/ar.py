"""One step ahead from a short series: an autoregression of order one on its differences, fitted by least squares.

It stands in for the ARIMA models of other autoscalers (pmdarima chooses the order from the data; here it is (1, 1, 0)).
On load series the last value is near the best at such horizons, and that is what this is, with a trend where there is one.
"""

from collections.abc import Sequence
from itertools import pairwise

LEAST = 5
"""With fewer values the last one is the forecast, as in Dynamo's predictors."""


def one_ahead(values: Sequence[float]) -> float:
    """The next value, at least 0; 0 of an empty series."""
    if len(values) < LEAST:
        return values[-1] if values else 0.0
    steps = [after - before for before, after in pairwise(values)]
    squares = sum(step * step for step in steps[:-1])
    slope = sum(before * after for before, after in pairwise(steps)) / squares if squares else 0.0
    return max(0.0, values[-1] + min(1.0, max(-1.0, slope)) * steps[-1])
