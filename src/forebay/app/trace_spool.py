"""Arrivals on disk as they are in memory: drawn or parsed once, played many times at the speed of a file.

A comparison plays one trace under every policy; making it anew each time would cost as much as simulating it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from forebay.app.traces import OpenedTrace
from forebay.demand.arrays import Arrivals, ArrivalSource
from forebay.domain.errors import ForebayError


def spooled(opened: OpenedTrace, path: Path) -> OpenedTrace:
    """``opened`` with its arrivals written to ``path``, from which they are played from now on.

    A row takes 18 bytes, or 30 where its chunk has groups; the file is the caller's to remove. Raises ForebayError where the disk
    refuses, BadInput where the trace does.
    """
    try:
        with path.open("wb") as file:
            for chunk in opened.source():
                _write(chunk, file)
    except OSError as error:
        raise ForebayError(f"can't keep the trace in {path}: {error.strerror or error}") from None
    return opened.with_source(lambda: _read(path))


def _write(chunk: Arrivals, file: IO[bytes]) -> None:
    grouped = bool(np.any(chunk.group >= 0))
    columns: list[npt.NDArray[np.generic]] = [chunk.at_s, chunk.prompt_tokens, chunk.output_tokens, chunk.tier]
    if grouped:
        columns += [chunk.group, chunk.shared_tokens]
    file.write(np.array([len(chunk.at_s), grouped], np.int64).tobytes())
    for column in columns:
        file.write(np.ascontiguousarray(column).tobytes())


def _read(path: Path) -> ArrivalSource:
    with path.open("rb") as file:
        yield from _chunks(file)


def _chunks(file: IO[bytes]) -> Iterator[Arrivals]:
    while len(head := np.fromfile(file, np.int64, 2)) == 2:
        count, grouped = int(head[0]), bool(head[1])
        at_s = np.fromfile(file, np.float64, count)
        prompt, output = np.fromfile(file, np.int32, count), np.fromfile(file, np.int32, count)
        tier = np.fromfile(file, np.int16, count)
        group = np.fromfile(file, np.int64, count) if grouped else np.full(count, -1, np.int64)
        yield Arrivals(at_s, prompt, output, tier, group, np.fromfile(file, np.int32, count) if grouped else np.zeros(count, np.int32))
