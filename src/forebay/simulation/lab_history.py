"""Demand of the past in buckets, as the Store would hand it to a policy: rebuilt once a bucket, shared by reference in between.

A bucket in which the gateways were not heard throughout is NaN: not known, which is not the same as idle.
"""

import math
import struct
from collections.abc import Sequence

from forebay.domain.errors import BadInput
from forebay.domain.scaling import History

HISTORY_S_MAX = 29 * 86_400.0
"""Four weeks, and the day that a forecast from four weeks ago reaches into."""
OFFSET_S_MAX = 1e-3
VALUE_BYTES = 4
_VALUE = struct.Struct("<f")
_UNKNOWN = _VALUE.pack(math.nan)


class Buckets:
    """Rolling columns of demand; ``view`` is None until one bucket is over."""

    def __init__(self, start_wall_s: float, bucket_s: float, past: History | None) -> None:
        """Begin at ``start_wall_s``, after ``past`` where there is one. Raises BadInput where the two don't fit together."""
        self._bucket_s = bucket_s
        self._kept_bytes = VALUE_BYTES * max(1, int(HISTORY_S_MAX / bucket_s))
        self._columns = (b"", b"", b"")
        self._end_wall_s = start_wall_s
        self._before: Sequence[float] = (0.0, 0.0, 0.0)
        self._whole = True
        self.view: History | None = None
        if past is not None:
            self._keep(_fitted(past, start_wall_s, bucket_s))

    def unheard(self) -> None:
        """The gateways are not heard now: this bucket is not known."""
        self._whole = False

    def end(self, totals: Sequence[float]) -> None:
        """A bucket is over. ``totals`` since the beginning: requests, prompt tokens, output tokens."""
        grown = [now - before for now, before in zip(totals, self._before, strict=True)]
        self._before = tuple(totals)
        self._end_wall_s += self._bucket_s
        self._keep([column + (_VALUE.pack(value) if self._whole else _UNKNOWN) for column, value in zip(self._columns, grown, strict=True)])
        self._whole = True

    def _keep(self, columns: Sequence[bytes]) -> None:
        requests, prompts, outputs = (column[-self._kept_bytes :] for column in columns)
        self._columns = (requests, prompts, outputs)
        count = len(requests) // VALUE_BYTES
        self.view = History(self._end_wall_s - count * self._bucket_s, self._bucket_s, requests, prompts, outputs) if count else None


def _fitted(past: History, start_wall_s: float, bucket_s: float) -> list[bytes]:
    """The columns of ``past`` up to ``start_wall_s``, filled up with NaN where they end sooner."""
    columns = [past.requests, past.prompt_tokens, past.output_tokens]
    lengths = sorted({len(column) for column in columns})
    if past.bucket_s != bucket_s or len(lengths) != 1 or lengths[0] % VALUE_BYTES:
        raise BadInput(
            f"history: found buckets of {past.bucket_s:g} s in columns of {', '.join(map(str, lengths))} bytes; "
            f"allowed: columns of one length, {VALUE_BYTES} bytes a bucket, in the scenario's buckets of {bucket_s:g} s"
        )
    places = (start_wall_s - past.start_wall_s) / bucket_s
    wanted = round(places)
    if wanted < 0 or abs(places - wanted) * bucket_s > OFFSET_S_MAX:
        raise BadInput(
            f"history: it begins at {past.start_wall_s:.0f} and the scenario at {start_wall_s:.0f} (Unix seconds); "
            f"allowed: a whole number of buckets of {bucket_s:g} s in between"
        )
    missing = _UNKNOWN * min(int(HISTORY_S_MAX / bucket_s), max(0, wanted - lengths[0] // VALUE_BYTES))
    return [column[: wanted * VALUE_BYTES] + missing for column in columns]
