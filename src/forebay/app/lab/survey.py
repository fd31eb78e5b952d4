"""What a trace comes to before anything is played: how much, how steep, how long, and the history that policies may know of it."""

import math
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.demand.arrays import ArrivalSource
from forebay.domain.scaling import History

MINUTE_S = 60.0
HOUR_S = 3600.0
FIRST_MINUTES = 5
"""The beginning of a run: the fleet that is there at second 0 is sized for it."""

_Floats = npt.NDArray[np.float64]


def busiest(per_bucket: _Floats, bucket_s: float, span_s: float = HOUR_S) -> float:
    """When the busiest ``span_s`` of a load given in buckets begins, in seconds; 0 where there is less than that."""
    width = max(1, round(span_s / bucket_s))
    if len(per_bucket) <= width:
        return 0.0
    return float(np.argmax(np.convolve(per_bucket, np.ones(width), mode="valid"))) * bucket_s


class Survey(msgspec.Struct, frozen=True):
    """Rates per second; preemptible tiers are left out of all but ``requests``."""

    requests: int
    prompt_tokens_mean: float
    output_tokens_mean: float
    mean_per_s: float
    peak_per_s: float
    """Of the busiest whole minute."""
    first_per_s: float
    """Over the first minutes."""
    busiest_s: float
    """When the busiest hour begins, by tokens."""
    busiest_per_s: float
    """Requests per second through it."""


class Surveyed:
    """Adds up arrivals in buckets, chunk by chunk."""

    def __init__(self, duration_s: float, bucket_s: float, promised: tuple[bool, ...]) -> None:
        """``promised``: by tier, whether it counts as demand."""
        self._bucket_s = bucket_s
        self._duration_s = duration_s
        self._promised = np.array(promised)
        self._requests = 0
        self._columns = np.zeros((3, max(1, math.ceil(duration_s / bucket_s - 1e-9))))

    def take(self, source: ArrivalSource, tell: Callable[[float], None] | None = None) -> "Surveyed":
        """Add all of ``source`` that lies within the span; ``tell``: what fraction of the span has been seen."""
        for chunk in source:
            if tell is not None and len(chunk.at_s):
                tell(min(1.0, float(chunk.at_s[-1]) / self._duration_s))
            self._requests += len(chunk.at_s)
            keep = self._promised[chunk.tier] & (chunk.at_s < self._duration_s)
            places = (chunk.at_s[keep] / self._bucket_s).astype(np.int64)
            for column, weights in enumerate((None, chunk.prompt_tokens[keep], chunk.output_tokens[keep])):
                counted = np.bincount(places, weights, minlength=1)
                self._columns[column, : len(counted)] += counted
        return self

    def survey(self) -> Survey:
        """Of what was taken."""
        requests, prompts, outputs = (float(column.sum()) for column in self._columns)
        whole = self._columns[0][: max(1, int(self._duration_s // self._bucket_s))] / min(self._bucket_s, self._duration_s)
        first = self._columns[0][:FIRST_MINUTES]
        load = self._columns[1] / max(prompts, 1.0) + self._columns[2] / max(outputs, 1.0)
        busiest_s = busiest(load, self._bucket_s)
        hour = self._columns[0][round(busiest_s / self._bucket_s) :][: round(HOUR_S / self._bucket_s)]
        return Survey(
            requests=self._requests,
            prompt_tokens_mean=prompts / requests if requests else 0.0,
            output_tokens_mean=outputs / requests if requests else 0.0,
            mean_per_s=requests / self._duration_s,
            peak_per_s=float(whole.max()),
            first_per_s=float(first.sum()) / min(self._duration_s, len(first) * self._bucket_s),
            busiest_s=busiest_s,
            busiest_per_s=float(hour.sum()) / min(self._duration_s, len(hour) * self._bucket_s),
        )

    def history(self, start_wall_s: float) -> History:
        """The buckets as policies see them."""
        requests, prompts, outputs = (column.astype("<f4").tobytes() for column in self._columns)
        return History(start_wall_s, self._bucket_s, requests, prompts, outputs)
