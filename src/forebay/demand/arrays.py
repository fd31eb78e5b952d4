"""Arrivals as columns: what a simulator that plays a week reads, a chunk at a time, so that no trace is ever held whole."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CHUNK_ROWS = 65_536
"""Rows of a chunk at most. A source gives chunks of any size up to this."""


class Arrivals(NamedTuple):
    """One chunk: columns of equal length, ``at_s`` rising (ties allowed) within it and from chunk to chunk."""

    at_s: npt.NDArray[np.float64]
    """Seconds of the trace; 0 is its beginning."""
    prompt_tokens: npt.NDArray[np.int32]
    """At least 1; all of the prompt, cached part included."""
    output_tokens: npt.NDArray[np.int32]
    """At least 1."""
    tier: npt.NDArray[np.int16]
    """Index into the tiers of the scenario, most important first."""
    group: npt.NDArray[np.int64]
    """Requests of one group share a prefix; -1: none."""
    shared_tokens: npt.NDArray[np.int32]
    """Leading prompt tokens shared with earlier requests of ``group``: a replica that served the group has them cached."""


ArrivalSource = Iterator[Arrivals]


def empty() -> Arrivals:
    """A chunk of no rows."""
    return Arrivals(
        np.empty(0, np.float64),
        np.empty(0, np.int32),
        np.empty(0, np.int32),
        np.empty(0, np.int16),
        np.empty(0, np.int64),
        np.empty(0, np.int32),
    )


def taken(rows: Arrivals, which: slice | npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Arrivals:
    """The rows that ``which`` (a slice, places, or a mask) picks."""
    at_s, prompt, output, tier, group, shared = rows
    return Arrivals(at_s[which], prompt[which], output[which], tier[which], group[which], shared[which])


def joined(first: Arrivals, second: Arrivals) -> Arrivals:
    """The rows of ``first``, then those of ``second``; their times are not looked at."""
    return Arrivals(
        np.concatenate((first.at_s, second.at_s)),
        np.concatenate((first.prompt_tokens, second.prompt_tokens)),
        np.concatenate((first.output_tokens, second.output_tokens)),
        np.concatenate((first.tier, second.tier)),
        np.concatenate((first.group, second.group)),
        np.concatenate((first.shared_tokens, second.shared_tokens)),
    )


def by_time(rows: Arrivals) -> Arrivals:
    """In order of time, equal times as they were."""
    return taken(rows, np.argsort(rows.at_s, kind="stable"))


def in_chunks(rows: Arrivals) -> ArrivalSource:
    """``rows`` in pieces of at most ``CHUNK_ROWS``; none for no rows."""
    for start in range(0, len(rows.at_s), CHUNK_ROWS):
        yield taken(rows, slice(start, start + CHUNK_ROWS))
