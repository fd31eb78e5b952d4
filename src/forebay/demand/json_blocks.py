"""Plain JSON lines a block of bytes at a time, or not at all: what is not plain is for the exact reader of `demand.named`."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.demand import named
from forebay.demand.arrays import Arrivals
from forebay.demand.counts import Counts
from forebay.demand.rows import GROUPS_MAX, TOKENS_MAX, WALL_S_MAX, Place
from forebay.demand.synthesis import UNSAID, bare

_FIELDS: tuple[tuple[str, Any, Any], ...] = (
    ("at_s", Annotated[float, msgspec.Meta(ge=0)], -1.0),
    ("wall_s", Annotated[float, msgspec.Meta(ge=0, le=WALL_S_MAX)], -1.0),
    ("tier", str, ""),
    ("group", Annotated[int, msgspec.Meta(ge=-1, lt=GROUPS_MAX)], -1),
    ("shared_tokens", Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)], 0),
)
_LENGTHS: tuple[tuple[str, Any], ...] = (
    ("prompt_tokens", Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]),
    ("output_tokens", Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]),
)


class JsonBlocks:
    """Blocks of rows that have the names of the first one."""

    def __init__(self, first_row: str, place: Place, tiers: Mapping[str, int], counts: Counts) -> None:
        """``tiers`` may grow while rows are read."""
        self._place, self._tiers, self._counts = place, tiers, counts
        called = named.called(place.columns, _keys(first_row))
        self._guards = [ours for ours in named.ALIASES if called[ours] != ours and ours not in place.columns]
        """Where an alias stands for our name: a row that has our name as well goes by that."""
        self._unix_first = "wall_s" in place.columns and "at_s" not in place.columns
        self._decoder: msgspec.json.Decoder[Any] | None = None
        keys = {ours: theirs for ours, theirs in called.items() if ours != "timestamp"}
        if "timestamp" not in place.columns and len({*keys.values(), *self._guards}) == len(keys) + len(self._guards):
            guards = [(f"own_{ours}", Any, msgspec.UNSET) for ours in self._guards]
            row = msgspec.defstruct(
                "PlainRow", [*_LENGTHS, *_FIELDS, *guards], gc=False, rename={**keys, **{f"own_{ours}": ours for ours in self._guards}}
            )
            self._decoder = msgspec.json.Decoder(row)

    def read(self, block: bytes) -> Arrivals | None:
        """The rows of ``block``, whole lines; None where any of them is not plain."""
        try:
            lines = self._decoder.decode_lines(block) if self._decoder is not None else []
        except (msgspec.DecodeError, RecursionError):
            return None
        count = len(lines)
        if not count or count != block.count(b"\n"):
            return None
        if any(getattr(line, f"own_{ours}") is not msgspec.UNSET for ours in self._guards for line in lines):
            return None
        prompt = np.fromiter((line.prompt_tokens for line in lines), np.int32, count)
        output = np.fromiter((line.output_tokens for line in lines), np.int32, count)
        group = np.fromiter((line.group for line in lines), np.int64, count)
        shared = np.fromiter((line.shared_tokens for line in lines), np.int32, count)
        try:
            tier = np.fromiter((self._tiers[line.tier] if line.tier else UNSAID for line in lines), np.int16, count)
        except KeyError:
            return None
        at_s = self._times(lines, count) if not np.any(shared > prompt) else None
        if at_s is None:
            return None
        self._place.line += count
        self._counts.unanswered += int(np.count_nonzero(output == 0))
        rows = bare(at_s, prompt, np.maximum(output, 1))
        return rows._replace(tier=tier, group=group, shared_tokens=shared)

    def _times(self, lines: list[Any], count: int) -> npt.NDArray[np.float64] | None:
        at_s = np.fromiter((line.at_s for line in lines), np.float64, count)
        if at_s.min() >= 0 and not self._unix_first:
            return at_s
        wall_s = np.fromiter((line.wall_s for line in lines), np.float64, count)
        if at_s.max() >= 0 or wall_s.min() < 0:
            return None
        return since_first(np.rint(wall_s * 1e6).astype(np.int64), self._place)


def _keys(row: str) -> list[str]:
    try:
        return list(msgspec.json.decode(row, type=dict[str, msgspec.Raw]))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return []


def since_first(wall_us: npt.NDArray[np.int64], place: Place) -> npt.NDArray[np.float64]:
    """Unix times in microseconds as seconds since the first of the trace."""
    place.since.of_us(int(wall_us[0]))
    assert place.since.origin_us is not None
    return (wall_us - place.since.origin_us) / 1e6
