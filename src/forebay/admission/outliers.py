"""Replicas that answer fast but wrong, or have stopped, leave routing for a growing time and are probed back.

Health checks do not see them: vLLM answers 500 to every new request while it drains, and nothing at all while it is
wedged, with ``/health`` at 200 all along. What is seen is how requests end. So many failures in a row, with no success
between them, eject a replica; one that stalls is ejected at once. After its time it is probed with a small request, and
comes back with a good answer. However bad all of them look, only a share of a pool is ever out: where everything fails,
the fault is elsewhere, and a router that routes nowhere helps nobody. But where nobody listens any more there is nothing to route to:
such a replica is out at once, be it the last, so that requests wait for it to come back, or for another, and aren't spent on it; and it is
looked for every few seconds, however long it takes: that costs nobody anything, and a start takes minutes. One that asks for a key that it
isn't shown serves nobody either: it is out at once in the same way, and asked again ever more seldom, or when there is another key to show.

Where other gateways have replicas of the pool, the share is one of all, less what they have out; and what makes no tokens is out at
once, be it the last here: it serves nobody, and they may. Their word is a second old, so two may take out what only one of them may: then
they take it back, and leave it in for a while that doubles, too. Where nothing of the pool is in routing anywhere, all that is out is
looked for every few seconds.

A machine: calls in, effects out, no I/O; one owner.
"""

from collections.abc import Iterable

import msgspec

FAILURES_IN_A_ROW = 3
EJECTED_SHARE_MAX = 0.5
"""Of a pool's replicas, rounded down; a pool of one ejects none. Of those here, or of those of all gateways: whichever lets more out."""
EJECT_S = 5.0
"""The first time out, world seconds; it doubles with each ejection that follows…"""
EJECT_S_MAX = 300.0
LOCKED_S_MAX = 60.0
"""Where it asks for a key: somebody is about to see to that."""
GOOD_FOR_S = 300.0
"""…until the replica has been good for so long."""


class Eject(msgspec.Struct, frozen=True):
    """Give this replica no new requests. ``stalled``: what it has should be moved, too."""

    replica: str
    why: str
    for_s: float
    stalled: bool
    locked: bool = False
    """It asks for a key: told also of one that was out for another reason before."""


class Probe(msgspec.Struct, frozen=True):
    """Send this replica a small request, and say by ``probed`` how it went."""

    replica: str


class Readmit(msgspec.Struct, frozen=True):
    """Give this replica requests again."""

    replica: str


Effect = Eject | Probe | Readmit


class _Record:
    """What is remembered of one replica."""

    __slots__ = ("ejected", "failures", "gone", "kept_until_s", "locked", "out_until_s", "probing", "proven", "readmitted_s", "silent")

    def __init__(self) -> None:
        self.failures = 0
        self.ejected = 0
        """Times, since it was last good for long."""
        self.out_until_s: float | None = None
        """None: it is in routing."""
        self.probing = False
        self.proven = False
        """It has answered something."""
        self.gone = False
        """It is out since nobody listened there, or it asks for a key: that is no share of those that answer wrong."""
        self.locked = False
        """It asks for a key."""
        self.silent = False
        """It is out since it makes no tokens, and others have replicas of the pool: that is no share either."""
        self.kept_until_s = 0.0
        """It was taken back since nobody else served: until then it goes by the share of those here alone."""
        self.readmitted_s = 0.0


class Outliers:
    """The replicas of one pool. ``roster`` names them; replicas it doesn't know are ignored."""

    def __init__(self) -> None:
        self.ejections_total = 0
        self.suspects: set[str] = set()
        """Replicas in routing of which a success is news: with a failure on record, watched, or that have answered nothing yet."""
        self._records: dict[str, _Record] = {}
        self._elsewhere = self._out_elsewhere = 0
        """Replicas of the pool that other gateways have in routing, and out of it."""

    def roster(self, replicas: Iterable[str]) -> list[Effect]:
        """These are the pool's from now on. Where that leaves too many out, those out longest are probed now."""
        before = self._records
        self._records = {replica: before.get(replica) or _Record() for replica in replicas}
        self.suspects.intersection_update(self._records)
        self.suspects.update(self._records.keys() - before.keys())
        effects: list[Effect] = []
        for replica in self._too_many:
            self._readmit(replica, self._records[replica], effects)
        return effects

    def elsewhere(self, replicas: int, out: int, now_s: float) -> list[Effect]:
        """Other gateways have so many in routing, and so many out. Where that leaves too many out, those out longest are taken back."""
        if (replicas, out) == (self._elsewhere, self._out_elsewhere):
            return []
        self._elsewhere, self._out_elsewhere = replicas, out
        effects: list[Effect] = []
        for replica in self._too_many:
            record = self._records[replica]
            record.kept_until_s = now_s + _time_out_s(record.ejected)
            self._readmit(replica, record, effects)
        return effects

    @property
    def others(self) -> bool:
        """Other gateways have replicas of the pool."""
        return self._elsewhere + self._out_elsewhere > 0

    @property
    def out(self) -> list[str]:
        """Replicas that are ejected."""
        return [replica for replica, record in self._records.items() if record.out_until_s is not None]

    @property
    def recovering(self) -> bool:
        """One that is out may be well again soon: it doesn't wait for a key."""
        return any(record.out_until_s is not None and not record.locked for record in self._records.values())

    @property
    def silent(self) -> list[str]:
        """Replicas that are out since they make no tokens, be it that nobody else could take what they had."""
        return [replica for replica, record in self._records.items() if record.silent]

    def good(self, replica: str, now_s: float) -> None:
        """It answered a request, or began to."""
        record = self._records.get(replica)
        if record is None or record.out_until_s is not None:
            return
        record.failures = 0
        record.proven = True
        if now_s - record.readmitted_s >= GOOD_FOR_S:
            record.ejected = 0
        self.suspects.discard(replica)

    def bad(self, replica: str, why: str, now_s: float) -> list[Effect]:
        """It failed a request by a fault of its own."""
        record = self._records.get(replica)
        if record is None or record.out_until_s is not None:
            return []
        record.failures += 1
        self.suspects.add(replica)
        if record.failures < FAILURES_IN_A_ROW:
            return []
        return self._eject(replica, record, why, now_s, stalled=False)

    def gone(self, replica: str, why: str, now_s: float) -> list[Effect]:
        """Nobody listens there."""
        record = self._records.get(replica)
        if record is None or record.out_until_s is not None:
            return []
        record.gone = True
        return self._eject(replica, record, why, now_s, stalled=False)

    def locked(self, replica: str, why: str, now_s: float) -> list[Effect]:
        """It asks for a key that it isn't shown."""
        record = self._records.get(replica)
        if record is None or record.locked:
            return []
        record.gone = record.locked = True
        if record.out_until_s is None:
            return self._eject(replica, record, why, now_s, stalled=False)
        record.ejected = 1
        record.out_until_s = now_s + EJECT_S
        return [Eject(replica, why, EJECT_S, stalled=False, locked=True)]

    def knock(self, now_s: float) -> None:
        """There is another key to show: those that ask for one are probed at the next `advance`."""
        for record in self._records.values():
            if record.locked and record.out_until_s is not None:
                record.out_until_s = min(record.out_until_s, now_s)

    @property
    def asking(self) -> list[str]:
        """Replicas that are out since they ask for a key."""
        return [replica for replica, record in self._records.items() if record.locked]

    def proven(self, replica: str) -> bool:
        """Whether it has answered something since it came: what compiles at its first request takes long for that."""
        record = self._records.get(replica)
        return record is not None and record.proven

    def watch(self, replica: str) -> None:
        """From now on its next success is news."""
        record = self._records.get(replica)
        if record is not None and record.out_until_s is None:
            self.suspects.add(replica)

    def wrong(self, replica: str, why: str, now_s: float) -> list[Effect]:
        """It was asked, and is not what it was attached for: there is nothing to count."""
        record = self._records.get(replica)
        if record is None or record.out_until_s is not None:
            return []
        return self._eject(replica, record, why, now_s, stalled=False)

    def stalled(self, replica: str, why: str, now_s: float) -> list[Effect]:
        """It makes no tokens: none of its streams gets any, or it answers nothing."""
        record = self._records.get(replica)
        if record is None or record.out_until_s is not None:
            return []
        record.silent = self.others
        return self._eject(replica, record, why, now_s, stalled=True)

    def advance(self, now_s: float) -> list[Effect]:
        """Probe those whose time is over."""
        effects: list[Effect] = []
        soon_s = now_s + EJECT_S
        nobody_serves = not self._serves
        for replica, record in self._records.items():
            if nobody_serves and not record.locked and record.out_until_s is not None and record.out_until_s > soon_s:
                record.out_until_s = soon_s
            if record.out_until_s is not None and record.out_until_s <= now_s and not record.probing:
                record.probing = True
                effects.append(Probe(replica))
        return effects

    def probed(self, replica: str, well: bool, now_s: float) -> list[Effect]:
        """How a probe went: back into routing, or out for longer."""
        record = self._records.get(replica)
        if record is None or record.out_until_s is None:
            return []
        record.probing = False
        effects: list[Effect] = []
        if well:
            record.readmitted_s = now_s
            record.proven = True
            self._readmit(replica, record, effects)
        elif record.locked:
            record.ejected += 1
            record.out_until_s = now_s + min(LOCKED_S_MAX, _time_out_s(record.ejected))
        elif record.gone:
            record.out_until_s = now_s + EJECT_S
        else:
            record.ejected += 1
            record.out_until_s = now_s + _time_out_s(record.ejected)
        return effects

    def next_deadline_s(self) -> float | None:
        """When ``advance`` has something to do."""
        due = [record.out_until_s for record in self._records.values() if record.out_until_s is not None and not record.probing]
        return min(due, default=None)

    def check(self) -> None:
        """Raises AssertionError unless few enough are out, and suspects are in routing."""
        assert len(self._wrong) <= self._out_max, f"{len(self._wrong)} of {len(self._records)} are out, and answer"
        assert not self.suspects.intersection(self.out), "an ejected replica is only suspected"
        assert self.suspects <= self._records.keys(), "a replica that left is suspected"
        for replica, record in self._records.items():
            assert record.failures < FAILURES_IN_A_ROW, f"{replica} has failed often enough, and nothing came of it"
            assert record.proven or record.out_until_s is not None or replica in self.suspects, (
                f"nobody will hear of {replica}'s first answer"
            )
            assert not record.probing or record.out_until_s is not None, f"{replica} is probed though it is in routing"
            assert not record.gone or record.out_until_s is not None, f"{replica} is gone though it is in routing"
            assert record.gone or not record.locked, f"{replica} asks for a key, and counts as one that answers wrong"
            assert not record.silent or record.out_until_s is not None, f"{replica} is silent though it is in routing"
        wrong = self._wrong
        assert not wrong or len(wrong) < len(self._records) or self._elsewhere, (
            "all that answers is out, and nobody else has any in routing"
        )

    @property
    def _out_max_here(self) -> int:
        return int(len(self._records) * EJECTED_SHARE_MAX)

    @property
    def _out_max(self) -> int:
        everywhere = len(self._records) + self._elsewhere + self._out_elsewhere
        return max(self._out_max_here, int(everywhere * EJECTED_SHARE_MAX) - self._out_elsewhere)

    @property
    def _wrong(self) -> list[str]:
        """Those that are out, and would answer."""
        return [replica for replica in self.out if not (self._records[replica].gone or self._records[replica].silent)]

    @property
    def _too_many(self) -> list[str]:
        """Of those, the ones that may not be out, from the one that would be probed first."""
        wrong = self._wrong
        return sorted(wrong, key=lambda each: self._records[each].out_until_s or 0.0)[: max(0, len(wrong) - self._out_max)]

    @property
    def _serves(self) -> bool:
        """Something of the pool is in routing, here or elsewhere."""
        return self._elsewhere > 0 or any(record.out_until_s is None for record in self._records.values())

    def _eject(self, replica: str, record: _Record, why: str, now_s: float, *, stalled: bool) -> list[Effect]:
        out_max = self._out_max if now_s >= record.kept_until_s else self._out_max_here
        if len(self._wrong) >= out_max and not (record.gone or record.silent):
            record.failures = min(record.failures, FAILURES_IN_A_ROW - 1)  # its next one asks again
            return []
        record.ejected += 1
        for_s = _time_out_s(record.ejected)
        record.out_until_s = now_s + for_s
        record.failures = 0
        self.suspects.discard(replica)
        self.ejections_total += 1
        return [Eject(replica, why, for_s, stalled, record.locked)]

    def _readmit(self, replica: str, record: _Record, effects: list[Effect]) -> None:
        record.out_until_s = None
        record.probing = record.gone = record.locked = record.silent = False
        record.failures = 0
        if not record.proven:
            self.suspects.add(replica)
        effects.append(Readmit(replica))


def _time_out_s(times: int) -> float:
    return float(min(EJECT_S_MAX, EJECT_S * 2 ** min(times - 1, 16)))
