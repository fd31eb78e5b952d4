"""What a call tells about itself: its decision record, and the headers that say where it was answered."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Final

from forebay.admission.outcomes import BACK, Refusal, Shortage
from forebay.domain.shape import Usage
from forebay.domain.usage import How, UsageKey
from forebay.gateway.answers import ErrorReply
from forebay.gateway.body import with_tier
from forebay.gateway.call import CallState
from forebay.gateway.context import Context
from forebay.gateway.continuing import CHAT, PATH
from forebay.gateway.desk import Desk
from forebay.gateway.hop_counts import Count
from forebay.gateway.identity import told_tier
from forebay.gateway.latencies import ABSENT_S
from forebay.gateway.leaving import SAMPLE_EVERY, Leaving
from forebay.gateway.meters import Outcome, TierMeter
from forebay.gateway.passed import passed_answer
from forebay.gateway.records import WHY_CHARS_MAX, Ordinary, Place, Record, shown_way
from forebay.ports.upstream import ResponseHead

PLACES_MAX = 4096
"""Triples of pool, replica and tier whose header lines are remembered."""
_TIERED: Final = (CHAT, PATH)
"""Endpoints whose answers have a ``service_tier`` of OpenAI's."""
_PLACE_NAMES = frozenset({b"x-forebay-pool", b"x-forebay-queue-ms", b"x-forebay-replica", b"x-forebay-tier"})
_STRANGE = frozenset({400, 401, 403, 404, 413, 503})
_NO_FIELD = re.compile(rb"[^\x21-\x7e]")
_HOW = {
    Outcome.COMPLETED: How.COMPLETED,
    Outcome.REFUSED_BY_ENGINE: How.REFUSED,
    Outcome.SHED: How.SHED,
    Outcome.FAILED: How.FAILED,
    Outcome.TRUNCATED: How.TRUNCATED,
    Outcome.CLIENT_GONE: How.LEFT,
    Outcome.CLIENT_SLOW: How.LEFT,
}
"""Of a request that ends; one that moved has not."""
_CUT_SHORT = frozenset({How.TRUNCATED, How.FAILED})
"""What is told inside a stream, and else by an answer that ends too early."""
_ENDED_WELL: Final = How.COMPLETED
_COMPLETED: Final = Outcome.COMPLETED  # in names of their own: a member of an enum is looked up by a function call
_SHED: Final = Outcome.SHED
_NO_REPLICAS: Final = Refusal.NO_REPLICAS
_NO_USAGE: Final = Usage(0, 0)
_TURN: Final = Shortage.TURN.value
_REFUSED_BY_ENGINE: Final = Outcome.REFUSED_BY_ENGINE


@lru_cache(PLACES_MAX)
def _lines(pool: str, replica: str, tier: str, end: bytes = b"") -> bytes:
    """The header lines that name them, and the beginning of the one after; all of that where ``end`` is its value."""
    lines = [(b"x-forebay-pool", pool), (b"x-forebay-replica", replica), (b"x-forebay-tier", tier)]
    told = [b"%b: %b\r\n" % (name, _NO_FIELD.sub(b"?", value.encode())) for name, value in lines if value]
    return b"".join(told) + b"x-forebay-queue-ms: " + end


def told_by_peer(gateway: str, head: ResponseHead | None) -> bytes:
    """The header lines of an answer that another gateway gave: its name, and its own words."""
    told = [line for line in head.headers if line[0] in _PLACE_NAMES] if head is not None else []
    return b"".join([b"%b: %b\r\n" % line for line in ((b"x-forebay-gateway", gateway.encode()), *told)])


def refused_a_stranger(head: ResponseHead) -> bool:
    """Whether another gateway refused what it took for no pool's request: it has not the same configuration yet, or another hop key.

    Or it has no room for requests at all, or is about to end.
    """
    return head.status in _STRANGE and not any(name in _PLACE_NAMES for name, _ in head.headers)


def _counted(
    meter: TierMeter,
    outcome: Outcome,
    context: Context,
    key: UsageKey,
    how: How,
    usage: Usage | None,
    queue_s: float,
    ended_s: float,
    took: tuple[float, float, float, float],
) -> None:
    meter.ended(outcome, usage)
    context.usage.count(key, how, usage, queue_s, ended_s)
    context.latencies.observe(key, *took)


class Recorded(CallState, ABC):
    """Its record, at any time."""

    __slots__ = ()

    @abstractmethod
    def _counted_usage(self) -> Usage | None:
        """What was seen of its answer by now."""

    @property
    @abstractmethod
    def _streams(self) -> bool:
        """The client gets events."""

    @property
    def known_as(self) -> tuple[str, bytes]:
        """See `records.Live`."""
        return self._team, self._request_id

    def _waits(self, now_s: float) -> None:
        """It was not sent at once: note what for, which takes no looking where it isn't the first."""
        admission = self._pool.admission
        if self._over or admission.runs(self.ticket):
            return
        at = admission.position(self.ticket, now_s) if admission.waiting == 1 else None
        self._waited_for = _TURN if at is None or at.short_of is None else at.short_of.value
        self._context.records.waited[self._team, self._request_id] = self

    def _weigh(self, leaving: Leaving[Record | Ordinary]) -> None:
        """It was just given a permit: note how the replicas compared, and whether it is one of the sample."""
        if leaving.until_sample <= 0:
            leaving.until_sample = SAMPLE_EVERY
            self._sampled = True
        else:
            leaving.weighed_left -= 1
        self._weighed = self._pool.admission.weighed(self.ticket)

    def _place(self) -> bytes:
        """Header lines: its pool, the replica that answers, its tier, and the real milliseconds it waited before it was first sent."""
        if self._pool.peer:
            return told_by_peer(self._pool.peer, self._answer)
        if not self._queue_s:
            return _lines(self._pool.name, self._replica, self._tier.name, b"0\r\n")
        return b"%b%d\r\n" % (_lines(self._pool.name, self._replica, self._tier.name), self._queue_s * 1000 / self._context.speed)

    def _write_whole(self, body: bytes) -> None:
        """All of an answer, with the tier that served it where its client named one, and its engine says nothing of that."""
        asked = self._ask.service_tier
        if asked is not None and self._passed.json and not (self._pool.peer or self._pool.foreign) and self._target.startswith(_TIERED):
            body = with_tier(body, told_tier(asked, self._tier))
        self._write_head(body, len(body), False, True)

    def _write_head(self, first: bytes, length: int | None, chunked: bool, last: bool = False) -> None:
        """The engine's head and the first bytes after it, in one write; nothing can be tried again after it. ``last``: it is all."""
        self._open = True
        connection, context = self._connection, self._context
        keep_alive = self._keep_alive = (chunked or length is not None) and connection.keep_alive
        more = self._place() + self.way
        if context.desk.quotas:
            more = context.desk.limits_left(self._team) + more
        self._pass(passed_answer(self._passed, self._request_id, length, chunked, keep_alive, first, more), last)

    def _pass(self, piece: bytes, last: bool) -> None:
        """Write it; ``last``: once it is counted. A gateway may be killed in between, and what its client has must be in the journal."""
        if last:
            self._final = piece
        elif piece:
            self._connection.write(piece)

    def _pass_final(self) -> None:
        final, self._final = self._final, b""
        if final:
            self._connection.write(final)

    def _turned_away(self, why: Refusal, reply: ErrorReply) -> None:
        """It was refused with ``reply``."""
        failed, home = self._why, self._home
        self._why, self._retry_after_s = reply.message, reply.retry_after_s
        if why is _NO_REPLICAS:  # the client is told that there is none, the operator why
            if home.routed:
                cause = f"Before that: {failed}" if failed else ""
            elif home.outliers.out:
                cause = f"None is in routing here; the last to go was {home.last_ejected}"
            else:
                cause = "None is in the roster here."
            self._why = f"{reply.message} {cause}".rstrip()
        now_s = self._context.desk.now_s()
        if not self._wait_counted:
            self._queue_s = now_s - self._arrived_s
        self._recorded(_SHED, None, now_s, why.value)

    def _recorded(self, outcome: Outcome, usage: Usage | None, now_s: float, reason: str = "") -> None:
        """It has ended: counted, and noted."""
        context, pool, model = self._context, self._home if self._orphaned or self._abroad else self._pool, self._ask.model
        records = context.records
        spent = _NO_USAGE if usage is None and outcome is _REFUSED_BY_ENGINE else usage
        if spent is not None and self._demanded is not None:
            meter, prompt_tokens, output_tokens = self._demanded
            meter.settled(spent, prompt_tokens, output_tokens, self._arrived_s + records.wall_offset_s)
        if pool.peer or self._continues:  # it is counted where it was answered, or began
            self._meter.ended(outcome, usage)
        else:
            key = (self._team, model if model in pool.adapters else pool.model, self._meter.tier.name, pool.name)
            how = _ENDED_WELL if outcome is _COMPLETED else _HOW[outcome]
            queue_s, ended_s = self._queue_s if self._wait_counted else now_s - self._arrived_s, now_s + records.wall_offset_s
            if (self._connection.by_peer or self._orphaned) and not self._abroad:
                took = self._took(outcome, usage, now_s)
                count = partial(_counted, self._meter, outcome, context, key, how, usage, queue_s, ended_s, took)
                self._count_once(how, reason, count)
            else:
                self._meter.ended(outcome, usage)
                context.usage.count(key, how, usage, queue_s, ended_s)
                sent_s, ttft_s, token_s, total_s = self._took(outcome, usage, now_s)
                context.latencies.observe(key, sent_s, ttft_s, token_s, total_s)
        if self._waited_for:
            known_as = self._team, self._request_id
            if records.waited.get(known_as) is self:
                del records.waited[known_as]
        if outcome is not _COMPLETED or self._retries or self._preempted or self._left:
            if outcome is _REFUSED_BY_ENGINE and self._answer is not None and self._answer.status >= 400:
                self._why = f"The engine answered {self._answer.status}."
            record = self._record("finished", outcome.value, usage, now_s, reason)
            records.unusual.append(record)
            records.leaving.add(record, now_s, True)
            return
        begun_s, promise_s = self._begun_s, self._ttft_s
        slow = self._queue_s > promise_s or (begun_s is not None and begun_s - self._arrived_s > promise_s)
        one = (
            self._request_id,
            self._team,
            self._meter.tier.name,
            self._pool.name,
            self._arrived_s,
            self._estimate,
            self._queue_s,
            self._waited_for,
            self._replica,
            usage,
            begun_s,
            now_s,
            self.way,
            self._weighed,
        )
        records.ordinary.append(one)
        if slow or self._sampled:
            more = self._why or self._tried or self._continued
            records.leaving.add(one if not more else self._record("finished", outcome.value, usage, now_s), now_s, slow)

    def _took(self, outcome: Outcome, usage: Usage | None, now_s: float) -> tuple[float, float, float, float]:
        """What `Latencies.observe` is told of it. The last content came just before the end, so nothing is looked at per event."""
        begun_s, first_s, arrived_s = self._begun_s, self._first_s, self._arrived_s
        completed, token_s = outcome is _COMPLETED, ABSENT_S
        if completed and first_s is not None and usage is not None:
            tokens = usage.output_tokens // self._estimate.sequences
            if tokens > 1:
                token_s = (now_s - first_s) / (tokens - 1)
        return (
            self._queue_s if self._wait_counted else ABSENT_S,
            ABSENT_S if begun_s is None else begun_s - arrived_s,
            token_s,
            now_s - arrived_s if completed else ABSENT_S,
        )

    @property
    def _continues(self) -> bool:
        """It is the rest of an answer that another gateway began."""
        return self._connection.by_peer and self._request.facts.continues

    def _count_once(self, how: How, reason: str, count: Count) -> None:
        """It was forwarded, here or from here: count it, unless the gateway at the other end of the hop does."""
        ways = self._home.ways
        hop = self._hop if self._orphaned else self._request.facts.hop_id
        if not hop or ways is None or ways.peers is None:
            count()
        elif self._orphaned:
            ways.peers.counts.settle(self._pool.peer, hop, count)
        elif how is How.LEFT or reason in BACK or (self._open and not self._streams and how in _CUT_SHORT):
            ways.peers.counts.settle("", hop, count)
        else:
            ways.peers.counts.mine(hop)
            count()

    def adopted(self, hop: bytes) -> bool:
        """See `desk.Caller`."""
        if self._hop != hop or self._over or self._exchange is None:
            return False
        self._orphaned = True
        return True

    def record(self, now_s: float) -> Record:
        """See `records.Live`."""
        at = self._pool.admission.position(self.ticket, now_s)
        if at is None or not at.waiting:
            return self._record("running", None, self._counted_usage(), now_s)
        place = Place(at.ahead, at.ahead_tokens, at.starts_in_s, at.refused_in_s, at.short_of)
        return self._record("waiting", None, self._counted_usage(), now_s, place=place)

    def _record(
        self, state: str, outcome: str | None, usage: Usage | None, now_s: float, reason: str = "", place: Place | None = None
    ) -> Record:
        arrived_s, estimate, begun_s, weighed = self._arrived_s, self._estimate, self._begun_s, self._weighed
        return Record(
            id=self._request_id.decode(),
            state=state,
            team=self._team,
            tier=self._meter.tier.name,
            pool=self._pool.name,
            arrived_unix_s=arrived_s + self._context.records.wall_offset_s,
            estimated_prompt_tokens=estimate.prompt_tokens,
            estimated_output_tokens=estimate.output_tokens,
            queue_s=self._queue_s if self._wait_counted else now_s - arrived_s,
            waited_for=self._waited_for,
            replica=self._replica,
            outcome=outcome,
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            output_tokens=None if usage is None else usage.output_tokens,
            exact=usage is not None and usage.exact,
            ttft_s=None if begun_s is None else begun_s - arrived_s,
            total_s=now_s - arrived_s,
            tried=self._tried,
            left=self._left,
            continued=self._continued,
            preempted=self._preempted,
            reason=reason,
            why=self._why[:WHY_CHARS_MAX],
            retry_after_s=self._retry_after_s,
            place=place,
            way=shown_way(self.way),
            candidates=weighed.candidates,
            permit=weighed.permit,
            team_share=weighed.share,
        )


def live(desk: Desk) -> Iterator[Recorded]:
    """All requests inside."""
    return (call for pool in (*desk.pools.values(), *desk.spills) for call in pool.calls.values() if isinstance(call, Recorded))
