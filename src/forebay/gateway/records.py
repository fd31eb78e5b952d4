"""Why each request was treated as it was: one record of what was decided about it, kept for a while after its end.

A record is made once, when the request ends, of what the call knows anyway; while it lives it is made for whoever asks.
What went as it should is forgotten first: it has a ring of its own, so that it never pushes out what did not.
"""

from collections import OrderedDict
from typing import Protocol
from urllib.parse import unquote

import msgspec

from forebay.admission.outcomes import Shortage
from forebay.gateway.answers import ErrorReply
from forebay.ports.clock import Clock

REQUESTS = b"/forebay/v1/requests/"
ORDINARY_MAX = 8192
"""Completed at the first try and unpreempted: the latest so many are kept…"""
UNUSUAL_MAX = 8192
"""…and so many of the others."""
WHY_CHARS_MAX = 240
RECORD_BYTES_MAX = 2048
"""Of one record with what it alone holds: ids of requests are at most 128 bytes, few replicas are tried, and ``why`` is cut."""
ID_CHARS_MAX = 400
"""Of an id in a path, as it is quoted there."""

_encode = msgspec.json.Encoder().encode


class Place(msgspec.Struct, frozen=True):
    """Where a request that waits stands in line (`admission.waits.Position`)."""

    ahead: int
    """Requests that start before it, if nothing else comes."""
    ahead_tokens: int
    starts_in_s: float | None
    """None: no pace is known."""
    refused_in_s: float
    """It is refused if it has not been started by then."""
    short_of: Shortage | None
    """What the least loaded replica is missing for it."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One request. Seconds are the world's, but for ``retry_after_s``."""

    id: str
    """Its ``x-request-id``."""
    state: str
    """``waiting``, ``running`` or ``finished``."""
    team: str
    tier: str
    pool: str
    arrived_unix_s: float
    estimated_prompt_tokens: int
    estimated_output_tokens: int
    queue_s: float
    """In its lane before it was first sent, or until now or its end where it never was."""
    waited_for: str
    """What it was short of when it came (`Shortage`); empty: it was sent at once."""
    replica: str
    """The one it is on, or was on last; empty: none."""
    tried: tuple[str, ...]
    """Replicas that failed it."""
    continued: int
    """How often another replica went on with its answer."""
    preempted: int
    """How often it gave its place up."""
    outcome: str | None
    """`meters.Outcome`; None while it lives."""
    reason: str
    """Of one that was refused: `admission.outcomes.Refusal`."""
    why: str
    """What last went wrong, in words."""
    retry_after_s: float | None
    """Real seconds, as the client was told."""
    prompt_tokens: int | None
    """As metered; None: nothing was."""
    output_tokens: int | None
    exact: bool
    """They are the engine's own count."""
    ttft_s: float | None
    """From its arrival to a stream's first content; None: it had none, or was no stream."""
    total_s: float
    """From its arrival to its end, or until now."""
    place: Place | None = None
    """Of one that waits."""


class Live(Protocol):
    """A request that has not ended."""

    def record(self, now_s: float) -> Record:
        """What is known of it by now."""
        ...


class Records:
    """Those of one gateway: every live request's, and the latest of those that ended, by team and id.

    Clients choose ids, so one may be in use twice at once in a team: the later request is told of.
    """

    def __init__(self, clock: Clock) -> None:
        self.live: dict[tuple[str, bytes], Live] = {}
        self.wall_offset_s = clock.wall_s() - clock.now_s()
        """Both clocks go at one pace."""
        self._clock = clock
        self._ordinary: OrderedDict[tuple[str, bytes], Record] = OrderedDict()
        self._unusual: OrderedDict[tuple[str, bytes], Record] = OrderedDict()

    def __len__(self) -> int:
        """Records kept of requests that ended."""
        return len(self._ordinary) + len(self._unusual)

    def keep(self, key: tuple[str, bytes], call: Live, record: Record, ordinary: bool) -> None:
        """``call`` has ended."""
        if self.live.get(key) is call:
            del self.live[key]
        ring, most = (self._ordinary, ORDINARY_MAX) if ordinary else (self._unusual, UNUSUAL_MAX)
        ring[key] = record
        if len(ring) > most:
            ring.popitem(last=False)

    def of(self, team: str, request_id: bytes) -> Record | None:
        """The latest request of ``team`` under this id; None: there is none, or it has been forgotten."""
        key = (team, request_id)
        live = self.live.get(key)
        if live is not None:
            return live.record(self._clock.now_s())
        found = [record for ring in (self._ordinary, self._unusual) if (record := ring.get(key)) is not None]
        return max(found, key=lambda record: record.arrived_unix_s, default=None)

    def told(self, path: bytes, team: str) -> bytes | ErrorReply:
        """``GET /forebay/v1/requests/{id}``: the record as JSON, or 404. Another team's is none that there is."""
        asked = unquote(path[len(REQUESTS) :][:ID_CHARS_MAX].decode("utf-8", "replace"))
        record = self.of(team, asked.encode())
        if record is None:
            message = f"No request with the id {asked[:128]!r} is here, or it ended too long ago to be known."
            return ErrorReply(404, "invalid_request_error", "request_not_found", message, "id")
        return _encode(record)
