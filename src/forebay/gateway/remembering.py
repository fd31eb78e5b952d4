"""Which replica keeps which answer, kept where the next process of this gateway finds it: a conversation outlives a gateway's restart.

Written whole, in the background, and the seldomer the longer that takes; what was learned since the last time is lost with a process
that is killed. What can't be read is told, and forgotten.
"""

import asyncio
from typing import Annotated, Final, Protocol

import msgspec

from forebay.domain.errors import ForebayError
from forebay.gateway.holders import HELD_MAX, ID_BYTES_MAX, Holder, Holders
from forebay.gateway.keeping import Shelf
from forebay.ports.clock import Clock

KEEP_REAL_S: Final = 1.0
"""Between two writes, at least…"""
SHARE: Final = 0.02
"""…and so long that writing takes no larger part of the time."""
ROWS: Final = 1000
"""Encoded in one step: others have their turn between two."""
BYTES_MAX: Final = HELD_MAX * (ID_BYTES_MAX + 32) + 2**20
FORMAT: Final = 1
TOKENS_MAX: Final = 2**31


class _Head(msgspec.Struct, frozen=True):
    """The first line."""

    format: int
    count: int
    """Of the ids in all lines that follow."""
    places: list[tuple[str, str]]
    """Address and team, which those name by their index."""


_Row = tuple[
    Annotated[str, msgspec.Meta(max_length=ID_BYTES_MAX)],
    Annotated[int, msgspec.Meta(ge=0)],
    Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)],
]
"""An id, its place, and the tokens of its conversation."""
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_rows = msgspec.json.Decoder(list[_Row]).decode
_encode = msgspec.json.Encoder().encode


class Owner(Protocol):
    """The gateway."""

    clock: Clock
    holders: Holders

    def tell(self, kind: str, message: str) -> None:
        """An event."""
        ...


class Remembering:
    """Of one gateway. ``await begin()`` before it serves, ``run()`` beside it, ``close()`` after its last answer."""

    def __init__(self, owner: Owner, shelf: Shelf) -> None:
        self._owner = owner
        self._shelf = shelf
        self._kept = 0
        """As of this change."""
        self._fails = False

    async def begin(self) -> None:
        """Know what the last process of this gateway knew."""
        try:
            content = await self._shelf.load()
            self._owner.holders.restore(_decoded(content) if content else [])
        except (ForebayError, msgspec.MsgspecError, ValueError) as error:
            words = f"which replica keeps which response can't be read ({error}): conversations from before this start are not known here"
            self._owner.tell("responses_forgotten", words)
            return
        self._kept = self._owner.holders.changes

    async def run(self) -> None:
        """Until cancelled: keep what is learned."""
        clock = self._owner.clock
        wait_s = KEEP_REAL_S * clock.speed
        while True:
            await clock.sleep_until(clock.now_s() + wait_s)
            before_s = clock.now_s()
            await self._keep()
            wait_s = max(KEEP_REAL_S * clock.speed, (clock.now_s() - before_s) / SHARE)

    async def close(self) -> None:
        """Keep the last of it."""
        await self._keep()

    async def _keep(self) -> None:
        holders = self._owner.holders
        changes = holders.changes
        if changes == self._kept:
            return
        try:
            await self._shelf.save(await _encoded(holders))
            self._kept, self._fails = changes, False
        except ForebayError as error:
            if not self._fails:
                self._owner.tell("responses_not_kept", f"{error}: a gateway that starts again will not know which replica keeps a response")
            self._fails = True


async def _encoded(holders: Holders) -> bytes:
    held = list(holders)
    places: dict[tuple[str, str], int] = {}
    lines = []
    for at in range(0, len(held), ROWS):
        rows = []
        for response_id, holder in held[at : at + ROWS]:
            place = places.setdefault((holder.url, holder.team), len(places))
            rows.append((response_id, place, min(holder.tokens, TOKENS_MAX)))
        lines.append(_encode(rows))
        await asyncio.sleep(0)
    head = _Head(FORMAT, len(held), list(places))
    return b"\n".join([_encode(head), *lines])


def _decoded(content: bytes) -> list[tuple[str, Holder]]:
    """Raises MsgspecError, or ValueError, for what was not written here."""
    first, *lines = content.split(b"\n")
    head = _decode_head(first)
    if head.format != FORMAT:
        raise ValueError(f"found format {head.format}; allowed: {FORMAT}")
    rows = [row for line in lines for row in _decode_rows(line)]
    if len(rows) != head.count or any(place >= len(head.places) for _, place, _ in rows):
        raise ValueError(f"found {len(rows)} ids at {len(head.places)} places; allowed: {head.count}, each at one of them")
    return [(response_id, Holder(*head.places[place], tokens)) for response_id, place, tokens in rows]
