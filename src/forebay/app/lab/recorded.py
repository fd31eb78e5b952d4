"""A pool's own past as arrivals: what its controller saw come, bucket by bucket, becomes requests again, drawn from the seed.

A bucket says how many requests came and how long they were on average; when in the bucket, and how lengths vary, is drawn.
A bucket of which nothing is known has no arrivals here: it is counted, so that whoever reads the result knows.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forebay.app.files import STORE_FILE
from forebay.app.lab.kept import kept
from forebay.app.traces import Chances, OpenedTrace
from forebay.demand import intensity, synthesis
from forebay.demand.arrays import Arrivals, ArrivalSource
from forebay.demand.counts import Counts
from forebay.demand.lengths import LENGTH_CV
from forebay.demand.trace import TOKENS_MAX
from forebay.domain.errors import BadInput
from forebay.domain.scaling import History
from forebay.domain.units import format_duration, format_span

SQLITE_MAGIC = b"SQLite format 3"
_Floats = npt.NDArray[np.float64]


def is_state(path: Path) -> bool:
    """Whether ``path`` is a state folder (or one that isn't there yet) or its file, and no trace; a file that can't be read is none."""
    if not path.is_file():
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError:
        return False


def holds_history(path: Path) -> bool:
    """Whether there is a history at ``path``, a state folder or its file."""
    return (path / STORE_FILE).is_file() if path.is_dir() else path.is_file() and is_state(path)


def read(path: Path, pool: str) -> History:
    """What the controller whose state is in the folder ``path`` (or its file) saw come to ``pool``.

    Raises BadInput where there is no history, or none of this pool.
    """
    past = kept(path if path.is_file() else path / STORE_FILE, pool)
    if past is None:
        raise BadInput(f"{path}: no demand of the pool {pool} is recorded; `forebay up` keeps it, five minutes at a time, for four weeks")
    return past


class Buckets:
    """The columns of a history, unpacked; NaN where nothing is known."""

    def __init__(self, history: History) -> None:
        self.bucket_s = history.bucket_s
        self.requests, prompts, outputs = (
            np.frombuffer(column, "<f4").astype(np.float64) for column in (history.requests, history.prompt_tokens, history.output_tokens)
        )
        came = np.maximum(np.nan_to_num(self.requests), 1e-9)
        self.prompt_means = np.nan_to_num(prompts) / came
        self.output_means = np.nan_to_num(outputs) / came

    @property
    def duration_s(self) -> float:
        """All buckets."""
        return len(self.requests) * self.bucket_s

    @property
    def unknown(self) -> int:
        """Buckets of which nothing is known."""
        return int(np.isnan(self.requests).sum())


def opened(
    past: History, name: str, tiers: Mapping[str, float], span: tuple[float, float | None], rate_scale: float, cv: float, seed: int
) -> OpenedTrace:
    """The part of ``past`` of ``span`` (start, length; None: the rest) as a trace of rates.

    ``tiers``: the weight of each, most important first; ``cv``: variation of the gaps. Raises BadInput where the part is empty, or
    no request is known in it.
    """
    buckets, (start_s, duration_s) = Buckets(past), span
    chances = Chances(seed)
    try:
        rates = intensity.smooth(np.nan_to_num(buckets.requests) / buckets.bucket_s, buckets.bucket_s)
        rates = rates.window(start_s, math.inf if duration_s is None else duration_s).scaled(rate_scale)
    except ValueError:
        raise BadInput(
            f"{name}: nothing is recorded {format_span(start_s, None)}; there are {format_duration(buckets.duration_s)}"
        ) from None
    if not rates.cumulated()[-1] > 0:
        raise BadInput(f"{name}: no request is recorded {format_span(start_s, rates.duration_s)}")

    def source() -> ArrivalSource:
        lengths = chances("lengths")
        times = synthesis.times(rates, cv, chances("gaps"))
        return synthesis.tiered((_requests(buckets, at_s, start_s, lengths) for at_s in times), list(tiers.values()), chances("tiers"))

    return OpenedTrace(name, source, rates, past.start_wall_s + start_s, Counts(), list(tiers), rate_only=True)


def _requests(past: Buckets, at_s: _Floats, start_s: float, chance: np.random.Generator) -> Arrivals:
    place = np.minimum(((at_s + start_s) / past.bucket_s).astype(np.int64), len(past.requests) - 1)
    sigma = math.sqrt(math.log1p(LENGTH_CV * LENGTH_CV))

    def drawn(means: _Floats) -> npt.NDArray[np.int32]:
        spread = chance.lognormal(-sigma * sigma / 2, sigma, len(at_s))
        return np.clip(np.rint(means[place] * spread), 1, TOKENS_MAX).astype(np.int32)

    return synthesis.bare(at_s, drawn(past.prompt_means), drawn(past.output_means))
