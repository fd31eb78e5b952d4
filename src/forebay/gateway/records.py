"""Why each request was treated as it was: one record of what was decided about it, kept for a while after its end.

A record is made once, when the request ends, of what the call knows anyway; while it lives it is made for whoever asks.
What went as it should is forgotten first: it has a ring of its own, so that it never pushes out what did not.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol
from urllib.parse import unquote

import msgspec

from forebay.admission.candidates import Candidate, Permit, TeamShare, Weighed
from forebay.admission.outcomes import Shortage
from forebay.domain.roster import Finished
from forebay.domain.shape import Shape, Usage
from forebay.gateway.answers import ErrorReply
from forebay.gateway.leaving import Leaving
from forebay.gateway.meters import Outcome
from forebay.ports.clock import Clock

REQUESTS = b"/forebay/v1/requests/"
ORDINARY_MAX = 8192
"""Completed at the first try and unpreempted: the latest so many are kept…"""
UNUSUAL_MAX = 8192
"""…and so many of the others."""
WHY_CHARS_MAX = 240
RECORD_BYTES_MAX = 2688
"""Of one record with what it alone holds: ids of requests are at most 128 bytes, few replicas are tried or
weighed, and ``why`` is cut."""
ID_CHARS_MAX = 400
"""Of an id in a path, as it is quoted there."""

ORDINARY_OUTCOME = Outcome.COMPLETED.value
encoded = msgspec.json.Encoder().encode


class Place(msgspec.Struct, frozen=True):
    """Where a request that waits stands in line (`admission.looks.Position`)."""

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
    outcome: str | None
    """`meters.Outcome`; None while it lives."""
    prompt_tokens: int | None
    """As metered; None: nothing was."""
    output_tokens: int | None
    exact: bool
    """They are the engine's own count."""
    ttft_s: float | None
    """From its arrival to a stream's first content; None: it had none, or was no stream."""
    total_s: float
    """From its arrival to its end, or until now."""
    tried: tuple[str, ...] = ()
    """Replicas that failed it."""
    left: tuple[str, ...] = ()
    """Pools that did not start it in time, or failed it: it went on from each to the next, and on to ``pool``."""
    continued: int = 0
    """How often another replica went on with its answer."""
    preempted: int = 0
    """How often it gave its place up."""
    reason: str = ""
    """Of one that was refused: `admission.outcomes.Refusal`."""
    why: str = ""
    """What last went wrong, in words."""
    retry_after_s: float | None = None
    """Real seconds, as the client was told."""
    place: Place | None = None
    """Of one that waits."""
    way: str = ""
    """Where it was answered instead of its pool, or why there: as in the answer's headers."""
    candidates: tuple[Candidate, ...] = ()
    """How the replicas compared when it was last sent; empty: it was not weighed (`leaving.SAMPLE_EVERY`)."""
    permit: Permit | None = None
    """What it took of its replica's budgets then; None: as ``candidates``."""
    team_share: TeamShare | None = None
    """How its team stood in its lane then; None: as ``candidates``, or there are too many teams."""


class Live(Protocol):
    """A request that has not ended."""

    @property
    def known_as(self) -> tuple[str, bytes]:
        """Its team and id."""
        ...

    def record(self, now_s: float) -> Record:
        """What is known of it by now."""
        ...


Ordinary = tuple[bytes, str, str, str, float, Shape, float, str, str, Usage | None, float | None, float, bytes, Weighed]
"""Of a request that went as it should: id, team, tier, pool, arrival, estimate, wait, what for, replica, usage, first content, end,
headers of where it went instead, scores.

Such are nearly all: what is made for each is as little as can be made a record of when somebody asks.
"""


def shown_way(headers: bytes) -> str:
    """``x-forebay-long-context: 40000`` as ``long-context: 40000``."""
    return headers.decode().strip().removeprefix("x-forebay-")


class Records:
    """Those of one gateway: every live request's, and the latest of those that ended, by team and id.

    Clients choose ids, so one may be in use twice in a team: the latest request is told of, and one that lives before any that ended.
    ``calls``: all that live now.
    """

    def __init__(self, clock: Clock, calls: Callable[[], Iterable[Live]]) -> None:
        self.waited: dict[tuple[str, bytes], Live] = {}
        """Those of the live that could not be sent at once: it is them that are asked for again and again."""
        self.ordinary: deque[Ordinary] = deque(maxlen=ORDINARY_MAX)
        self.unusual: deque[Record] = deque(maxlen=UNUSUAL_MAX)
        self.leaving = Leaving[Record | Ordinary](self._finished)
        """Those to be kept in the history."""
        self.wall_offset_s = clock.wall_s() - clock.now_s()
        """Both clocks go at one pace."""
        self._clock = clock
        self._calls = calls

    def of(self, team: str, request_id: bytes) -> Record | None:
        """The latest request of ``team`` under this id; None: there is none, or it has been forgotten."""
        key = (team, request_id)
        live = self.waited.get(key) or next((call for call in self._calls() if call.known_as == key), None)
        if live is not None:
            return live.record(self._clock.now_s())
        shown = request_id.decode()
        went_well = next((self._whole(one) for one in reversed(self.ordinary) if one[0] == request_id and one[1] == team), None)
        other = next((record for record in reversed(self.unusual) if record.id == shown and record.team == team), None)
        if went_well is None or other is None:
            return went_well or other
        return max(went_well, other, key=lambda record: record.arrived_unix_s)

    def _whole(self, one: Ordinary) -> Record:
        request_id, team, tier, pool, arrived_s, estimate, queue_s, waited_for, replica, usage, begun_s, ended_s, way, weighed = one
        return Record(
            id=request_id.decode(),
            state="finished",
            team=team,
            tier=tier,
            pool=pool,
            arrived_unix_s=arrived_s + self.wall_offset_s,
            estimated_prompt_tokens=estimate.prompt_tokens,
            estimated_output_tokens=estimate.output_tokens,
            queue_s=queue_s,
            waited_for=waited_for,
            replica=replica,
            outcome=ORDINARY_OUTCOME,
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            output_tokens=None if usage is None else usage.output_tokens,
            exact=usage is not None and usage.exact,
            ttft_s=None if begun_s is None else begun_s - arrived_s,
            total_s=ended_s - arrived_s,
            way=shown_way(way),
            candidates=weighed.candidates,
            permit=weighed.permit,
            team_share=weighed.share,
        )

    def _finished(self, record: Record | Ordinary, ended_s: float, unusual: bool) -> Finished:
        if not isinstance(record, Record):
            record = self._whole(record)
        return Finished(record.id, record.team, ended_s + self.wall_offset_s, unusual, msgspec.Raw(encoded(record)))


def asked_for(path: bytes) -> bytes:
    """The id in ``GET /forebay/v1/requests/{id}``."""
    return unquote(path[len(REQUESTS) :][:ID_CHARS_MAX].decode("utf-8", "replace")).encode()


def not_here(request_id: bytes) -> ErrorReply:
    """404. Another team's is none that there is."""
    message = (
        f"No request with the id {request_id.decode()[:128]!r} is here, or it ended too long ago to be known, "
        "or it was refused before it was queued (a wrong key, an unknown model, a bad body)."
    )
    return ErrorReply(404, "invalid_request_error", "request_not_found", message, "id")
