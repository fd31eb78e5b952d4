"""Whether a replica has stopped working: one whose streams all get nothing has; of one that owes whole answers it is found out by asking.

Nothing tells of the tokens of an answer that comes whole. Where one is overdue by far, its replica is asked for one token. An answer to
that, tokens on its metrics page that grow meanwhile, or any other sign of life: it is slow, and lives. Where it is so full that even one
token may have to wait for a place, and it has no such page, silence says nothing until answers are overdue that are as long as they may
be. One that has answered nothing yet may be compiling.

Looked at once a second, with nothing to keep on any other way; one owner.
"""

from typing import TYPE_CHECKING, Final

from forebay.admission.machine import Admission
from forebay.admission.outliers import Effect as Ejection
from forebay.admission.spill import SpillAdmission

if TYPE_CHECKING:
    from forebay.gateway.pool_desk import Caller, PoolDesk

OVERDUE_FACTOR: Final = 3.0
"""An answer is overdue after so many times what is foreseen for it…"""
OVERDUE_S_MIN: Final = 10.0
"""…and so many world seconds…"""
COLD_S_MIN: Final = 120.0
"""…or so many where its replica has answered nothing yet…"""
LONGEST_SHARE: Final = 0.5
"""…and, where it may be very long, after this share of the time that it has: then it is told 504."""
QUIET_FACTOR: Final = 2.0
"""One that does not answer is hung once there was no sign of life for so many times the longest prefill that it owes, in which it counts
no tokens; and where it counts none for us to see, the longest answer: it may work at fewer than it is sent, one after the other."""
AGAIN_S: Final = 15.0
"""It is asked again after so long, world seconds, as long as something is overdue there; where it lives twice as long each time, to…"""
AGAIN_S_MAX: Final = 300.0

STOPPED: Final = "Its engine has stopped working."
"""What clients are told of it, where nobody else goes on."""

ALIVE: Final = "alive"
HUNG: Final = "hung"
UNSURE: Final = "unsure"


class Listen:
    """Ask this replica for a token of its own, and say by `desk.Desk.listened` what came of it."""

    __slots__ = ("clear_in_s", "replica", "target", "url")

    def __init__(self, replica: str, url: str, target: bytes, clear_in_s: float) -> None:
        """``target``: of what is overdue. ``clear_in_s``: in how many world seconds the prompts before it are prefilled."""
        self.replica, self.url, self.target, self.clear_in_s = replica, url, target, clear_in_s


class _Watch:
    """Of one replica where something is overdue."""

    __slots__ = ("again_s", "alive", "asked_s", "asking", "lived_s", "waits_s")

    def __init__(self, now_s: float) -> None:
        self.asking = self.alive = False
        """It is being asked. It has given a sign of life since the last look."""
        self.asked_s = self.again_s = 0.0
        self.lived_s = now_s
        """When it gave the last one, as of the last look."""
        self.waits_s = AGAIN_S


class Silences:
    """The replicas of one pool; bounded by its roster."""

    __slots__ = ("_last_s", "_watched", "found", "targets")

    def __init__(self) -> None:
        self._watched: dict[str, _Watch] = {}
        self._last_s: dict[str, float] = {}
        """When streams there last got something, as of the last look."""
        self.found = {ALIVE: 0, HUNG: 0, UNSURE: 0}
        """What replicas that were asked were found to be."""
        self.targets: dict[str, bytes] = {}
        """What those that were ejected did not answer: probes ask them that."""

    def look(self, pool: "PoolDesk", now_s: float) -> tuple[list[Ejection], list[Listen]]:
        """Once a second: replicas that have stalled, and those to be asked."""
        if silent := pool.outliers.silent:
            _move_kept(pool, silent, now_s)
        routed, others = pool.routed, pool.outliers.others
        nobody = not routed and not others
        last_s, overdue = self._owing(pool, now_s, nobody, routed[0] if len(routed) == 1 and not others else "")
        self._last_s = last_s
        ejections: list[Ejection] = []
        for replica, at_s in last_s.items():
            if now_s - at_s > pool.stall_s:
                why = f"none of its streams got a token for {now_s - at_s:.0f} s"
                ejections += pool.outliers.stalled(replica, why, now_s)
                if not nobody and not _listed(pool, replica):
                    _take_from(pool, replica)
        return ejections, self._to_ask(pool, overdue, now_s) if overdue or self._watched or self.targets else []

    def _owing(self, pool: "PoolDesk", now_s: float, nobody: bool, alone: str) -> tuple[dict[str, float], dict[str, "Caller"]]:
        """By replica: when its streams last got something, and a whole answer that is overdue, unless ``nobody`` else could give that."""
        last_s: dict[str, float] = {}
        overdue: dict[str, Caller] = {}
        for call in pool.calls.values():
            if call.quiet_until_s > now_s:
                continue
            owed = call.streaming()
            if owed is not None:
                if owed[1] > last_s.get(owed[0], 0.0):
                    last_s[owed[0]] = owed[1]
                continue
            replica = "" if nobody else call.owes_whole()
            if replica and replica != alone and replica not in overdue and self._overdue(pool, call, replica, now_s):
                overdue[replica] = call
        return last_s, overdue

    def alive(self, replica: str) -> None:
        """It has answered something."""
        watch = self._watched.get(replica)
        if watch is not None:
            watch.alive = True

    def wrong(self, pool: "PoolDesk", replica: str, target: bytes, why: str, now_s: float) -> list[Ejection]:
        """It was asked at ``target``, and does not serve what it was attached for."""
        effects = pool.outliers.wrong(replica, why, now_s)
        if effects:
            self.targets[replica] = target
        return effects

    def heard(self, pool: "PoolDesk", replica: str, target: bytes, answered: bool, computed: bool | None, now_s: float) -> list[Ejection]:
        """What came of asking: whether it ``answered``, and ``computed`` meanwhile (None: it doesn't tell)."""
        watch = self._watched.get(replica)
        if watch is None or not watch.asking:
            return []
        watch.asking = False
        watch.again_s = now_s + watch.waits_s
        found = self._finding(pool, replica, watch, answered, computed, now_s)
        self.found[found] += 1
        if found == ALIVE:
            watch.lived_s = now_s
            watch.waits_s = min(AGAIN_S_MAX, 2 * watch.waits_s)
        if found != HUNG:
            return []
        overdue = sum([call.owes_whole() == replica for call in pool.calls.values()])
        what = "1 whole answer is" if overdue == 1 else f"{overdue} whole answers are"
        tokens = "" if computed is None else ", and its metrics count none"
        asked = f"a request for one token got nothing for {now_s - watch.asked_s:.0f} s{tokens}"
        effects = pool.outliers.stalled(replica, f"{what} due from it, and it gives no sign of life: {asked}", now_s)
        if effects:
            self.targets[replica] = target
        elif not _listed(pool, replica):
            _take_from(pool, replica)
        return effects

    def _finding(self, pool: "PoolDesk", replica: str, watch: _Watch, answered: bool, computed: bool | None, now_s: float) -> str:
        lived_s = max(watch.lived_s, self._last_s.get(replica, 0.0))
        if answered or computed or watch.alive or lived_s > watch.asked_s:
            return ALIVE
        admission = pool.admission
        assert not isinstance(admission, SpillAdmission)
        owed = [call for call in pool.calls.values() if call.owes_whole() == replica]
        works = [self._foreseen(pool, admission, call) for call in owed]
        quiet_s = max([prefill_s + (decode_s if computed is None else 0.0) for prefill_s, decode_s in works], default=0.0)
        if now_s - lived_s < QUIET_FACTOR * quiet_s:
            return UNSURE
        if computed is None and admission.crowded(replica, now_s)[0]:
            return HUNG if any(self._overdue(pool, call, replica, now_s, longest=True) for call in owed) else UNSURE
        return HUNG

    def _foreseen(self, pool: "PoolDesk", admission: Admission, call: "Caller", *, longest: bool = False) -> tuple[float, float]:
        """For its prompt and for its tokens, corrected by what was measured of others."""
        prefill_s, decode_s = pool.foreseen_s(admission, call.ticket, longest=longest)
        factor = pool.overruns.factor
        return max(factor * prefill_s, pool.firsts.most_s), factor * decode_s

    def _overdue(self, pool: "PoolDesk", call: "Caller", replica: str, now_s: float, *, longest: bool = False) -> bool:
        last_s, idle_s, total_s = call.last_read()
        passed_s = now_s - last_s
        admission = pool.admission
        if passed_s < OVERDUE_S_MIN or isinstance(admission, SpillAdmission):
            return False
        if passed_s < COLD_S_MIN and not pool.outliers.proven(replica) and _listed(pool, replica):
            return False
        prefill_s, decode_s = self._foreseen(pool, admission, call, longest=longest)
        may_s = total_s if longest else min(idle_s, total_s)
        return passed_s > min(OVERDUE_FACTOR * (prefill_s + decode_s), LONGEST_SHARE * may_s)

    def _to_ask(self, pool: "PoolDesk", overdue: dict[str, "Caller"], now_s: float) -> list[Listen]:
        listed = {replica.id for replica in pool.roster.replicas}
        for replica in [replica for replica in self.targets if replica not in listed]:
            del self.targets[replica]
        for replica in [replica for replica, watch in self._watched.items() if replica not in overdue and not watch.asking]:
            del self._watched[replica]
        asked = []
        for replica, call in overdue.items():
            watch = self._watched.get(replica)
            if watch is None:
                watch = self._watched[replica] = _Watch(now_s)
            if watch.alive:
                watch.alive, watch.lived_s = False, now_s
            pool.outliers.watch(replica)
            if watch.asking or now_s < watch.again_s or (replica in listed and replica not in pool.routed):
                continue
            watch.asking, watch.asked_s = True, now_s
            admission = pool.admission
            clear_in_s = 0.0 if isinstance(admission, SpillAdmission) else admission.crowded(replica, now_s)[1]
            asked.append(Listen(replica, call.asked_at(), call.asked_for(), clear_in_s))
        return asked


def _listed(pool: "PoolDesk", replica: str) -> bool:
    """It is on the roster: not drained, nor failed as the controller sees it, nor another gateway's by now."""
    return any(each.id == replica for each in pool.roster.replicas)


def _take_from(pool: "PoolDesk", replica: str) -> None:
    """There is nothing to eject where it is on no roster any more: what it has goes on elsewhere."""
    for call in list(pool.calls.values()):
        call.moved_from(replica, STOPPED)


def _move_kept(pool: "PoolDesk", silent: list[str], now_s: float) -> None:
    """What these have kept, since nobody could take it when they were ejected, goes on where there is a place now."""
    for call in list(pool.calls.values()):
        owed = call.streaming()
        if owed is not None and now_s - owed[1] <= pool.stall_s:
            continue  # it goes on there after all
        replica = call.owes_whole() if owed is None else owed[0]
        if replica in silent:
            call.moved_from(replica, STOPPED)
