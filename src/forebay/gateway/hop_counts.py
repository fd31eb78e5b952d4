"""Who counts a forwarded request whose hop ended before its answer did: one of the two gateways, while they can talk.

What was answered to its end is counted where it was answered. Where a hop ends early, the gateway that served it can't tell
whether the client has left, the other gateway has died, or only the connection between the two; nor can the one that forwarded
it. So each asks the other before it counts. Whoever forwarded it told the client last: what broke under it, or what it goes on
with elsewhere, is its own to count, and the other one counts what it says it gave up. A gateway that does not answer is
taken for dead.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import quote, unquote

import msgspec

from forebay.ports.clock import Clock

HOPS = b"/forebay/v1/hops"
ASKED_MAX = 128
"""Hops in one question."""
ID_CHARS_MAX = 1024
REMEMBERED_MAX = 16_384
"""Hops that are answered for; those noted longest ago are forgotten first."""
PENDING_MAX = 16_384
"""Hops that are asked about; more are counted unasked."""
TRIES = 3
AGAIN_REAL_S = 0.5
SETTLE_REAL_S = 10.0

_decode_ids = msgspec.json.Decoder(list[Annotated[str, msgspec.Meta(max_length=ID_CHARS_MAX)]]).decode
_decode_counted = msgspec.json.Decoder(list[bool]).decode
_encode = msgspec.json.Encoder().encode

Count = Callable[[], None]
Ask = Callable[[str, bytes], Awaitable[bytes | None]]
"""A gateway's answer to a body; None: it gives none."""


class HopCounts:
    """Of one gateway, for what it forwards and for what is forwarded to it."""

    def __init__(self, name: str, run: str, clock: Clock, ask: Ask, adopts: Callable[[int, bytes], bool]) -> None:
        """``run``: a name that no other process of this name has. ``adopts(ticket, hop)``: see `overflow.Peers.adopts`."""
        self._prefix = f"{quote(name, safe='')}/{quote(run, safe='')}.".encode()
        self._clock = clock
        self._ask = ask
        self._adopts = adopts
        self._serial = 0
        self._closed = False
        self._mine: dict[bytes, None] = {}
        self._theirs: dict[bytes, None] = {}
        """Others were told that nobody here answers for them: they count them."""
        self._pending: dict[str, list[tuple[bytes, Count]]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def close(self) -> None:
        """Ask no more: what nobody has answered for by now is counted, as is all that ends after it."""
        self._closed = True
        for task in self._asking.values():
            task.cancel()
        self._asking.clear()
        pending, self._pending = self._pending, {}
        for left in pending.values():
            self._count(left)

    async def settled(self) -> None:
        """Wait for the answers, within a bound."""
        if self._asking:
            await asyncio.wait(list(self._asking.values()), timeout=SETTLE_REAL_S)

    def fresh(self, ticket: int) -> bytes:
        """The id of the next hop: of a request that is forwarded, once more."""
        self._serial += 1
        return b"%b%d.%d" % (self._prefix, ticket, self._serial)

    def mine(self, hop: bytes) -> None:
        """It is counted here, or was, or is counted by whoever serves the request next."""
        _remember(self._mine, hop)

    def settle(self, gateway: str, hop: bytes, count: Count) -> None:
        """Count it, unless ``gateway``, at the other end of ``hop``, answers for it; ``gateway`` empty: the one that made ``hop``."""
        gateway = gateway or unquote(hop.partition(b"/")[0].decode("ascii", "replace"))
        pending = self._pending.setdefault(gateway, [])
        if self._closed or len(pending) >= PENDING_MAX:
            self._count([(hop, count)])
            return
        pending.append((hop, count))
        if gateway not in self._asking:
            self._asking[gateway] = asyncio.ensure_future(self._settle(gateway, pending))

    def answer(self, body: bytes) -> bytes:
        """What another gateway is told that asks. Raises msgspec.DecodeError for what is no list of hops."""
        return _encode([self._answers_for(hop.encode()) for hop in _decode_ids(body)[:ASKED_MAX]])

    def _answers_for(self, hop: bytes) -> bool:
        if hop in self._mine:
            return True
        ticket = hop.removeprefix(self._prefix).partition(b".")[0] if hop.startswith(self._prefix) else b""
        if ticket.isdigit() and self._adopts(int(ticket), hop):
            self.mine(hop)
            return True
        _remember(self._theirs, hop)
        return False

    def _count(self, pending: list[tuple[bytes, Count]]) -> None:
        for hop, count in pending:
            if hop not in self._theirs:
                self.mine(hop)  # who asks later is told so
                count()

    async def _settle(self, gateway: str, pending: list[tuple[bytes, Count]]) -> None:
        tries = 0
        while pending:
            asked = pending[:ASKED_MAX]
            theirs = await self._counted(gateway, [hop for hop, _ in asked])
            if theirs is None:
                tries += 1
                if tries < TRIES:
                    await self._clock.sleep_until(self._clock.now_s() + AGAIN_REAL_S * self._clock.speed)
                    continue
                asked, theirs = list(pending), [False] * len(pending)
            tries = 0
            del pending[: len(asked)]
            self._count([one for one, counted in zip(asked, theirs, strict=True) if not counted])
        self._pending.pop(gateway, None)
        self._asking.pop(gateway, None)

    async def _counted(self, gateway: str, hops: list[bytes]) -> list[bool] | None:
        """Which of them ``gateway`` answers for; None: it does not say."""
        told = await self._ask(gateway, _encode([hop.decode("ascii", "replace") for hop in hops]))
        if told is not None:
            with contextlib.suppress(msgspec.DecodeError):
                counted = _decode_counted(told)
                return counted if len(counted) == len(hops) else None
        return None


def _remember(hops: dict[bytes, None], hop: bytes) -> None:
    hops[hop] = None
    if len(hops) > REMEMBERED_MAX:
        del hops[next(iter(hops))]
