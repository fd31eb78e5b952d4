"""Whether a gateway may still use the replicas that are leased to it: the side of the lease that stops in time. (`leases` grants.)

Each answer of the controller renews the lease, counted from when the question was sent, by the gateway's own clock alone; it is over
for the gateway well before it is for the controller. A gateway whose lease runs out asks the others. Where one of them hears the
controller, the controller lives and will give the replicas away: they are used no more. Where none does, nobody can give
anything away, and the leases stand for as long as that is so: a fleet without its controller goes on serving. One that finds out
too late that its time was over (its process was stopped) asks nobody: what it held may have been given away by a controller that has
died since, of which nobody will tell.

Calls in, effects out, no I/O; times are world seconds and never go backwards.
"""

import math
from collections.abc import Iterable
from enum import StrEnum

import msgspec

HELD_FRACTION = 0.6
"""Of the controller's time for a silent gateway: what is left is for asking, and for clocks that differ in pace."""
FRESH_FRACTION = 0.3
"""News of the controller that is younger means that it lives: where it died with everybody's last answer, all news are twice as old."""
ASK_FRACTION = 0.1
"""How long answers are waited for, and how often is asked while leases stand, which they do for a few of these at a time."""
STAND_ASKS = 2.5
LATE_FRACTION = 0.25
"""So much later than it was due, and a gateway was stopped. What it held is not given away by then, at any pace of its clock: not within
0.4 of the end of a lease that was held, nor within a whole one of the last time that nobody heard the controller."""


class State(StrEnum):
    """Where it is."""

    NEW = "new"
    """Nothing was ever leased to it."""
    HELD = "held"
    """The controller answers."""
    ASKING = "asking"
    """It doesn't, the time is over, and the others are being asked: nothing is used meanwhile."""
    STANDING = "standing"
    """Nobody hears the controller: used on."""
    YIELDED = "yielded"
    """Another one hears it, or this one was stopped for too long: not used until it answers here too."""


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Ask every other gateway how long ago it heard the controller; answers come in by ``told``."""


class Use(msgspec.Struct, frozen=True, tag="use"):
    """What is leased may be used from now on, or (False) may not."""

    may: bool


Effect = Ask | Use


class Lessee:
    """One gateway's lease on all that it holds. ``lease_s``: after such a silence the controller gives its replicas away."""

    def __init__(self) -> None:
        self.state = State.NEW
        self.until_s = -math.inf
        """Until then replicas may be used: whoever sends compares, as a process that was stopped finds out too late by its timers."""
        self.renewed_s = -math.inf
        """When what the controller last answered was said."""
        self._lease_s = 0.0
        self._ask_at_s = math.inf
        self._answer_by_s = math.inf
        self._awaited: set[str] = set()

    @property
    def _ask_s(self) -> float:
        return ASK_FRACTION * self._lease_s

    def renewed(self, said_s: float, lease_s: float, now_s: float) -> list[Effect]:
        """The controller has answered what was said at ``said_s``."""
        if said_s <= self.renewed_s:
            return self.advance(now_s)
        self.renewed_s, self._lease_s = said_s, lease_s
        until_s = said_s + HELD_FRACTION * lease_s
        if until_s <= now_s:
            return self.advance(now_s)  # an answer that was long on its way
        began = self.state not in {State.HELD, State.STANDING}
        self.state, self.until_s = State.HELD, until_s
        self._awaited.clear()
        self._ask_at_s = self._answer_by_s = math.inf
        return [Use(True)] if began else []

    def advance(self, now_s: float) -> list[Effect]:
        """Everything that is due."""
        if self._stopped(now_s):
            return self._yielded()
        effects: list[Effect] = []
        if self.state in {State.HELD, State.STANDING} and now_s >= self.until_s:
            self.state = State.ASKING
            effects.append(Use(False))
            if not self._awaited:
                effects.append(self._ask(now_s))
        elif self.state is State.STANDING and now_s >= self._ask_at_s and not self._awaited:
            effects.append(self._ask(now_s))
        if now_s >= self._answer_by_s and self.state in {State.ASKING, State.STANDING}:
            effects += self._stand(now_s)  # who does not answer is no witness
        return effects

    def asked(self, peers: Iterable[str], now_s: float) -> list[Effect]:
        """They are being asked; with nobody to ask, leases stand."""
        self._awaited = set(peers)
        return self._stand(now_s) if not self._awaited else []

    def told(self, peer: str, heard_ago_s: float | None, now_s: float) -> list[Effect]:
        """``peer`` heard the controller so long ago; None: it can't be reached, or never did."""
        if peer not in self._awaited or self.state not in {State.ASKING, State.STANDING} or self._stopped(now_s):
            return self.advance(now_s)
        if heard_ago_s is not None and heard_ago_s <= FRESH_FRACTION * self._lease_s:
            return self._yielded()
        self._awaited.discard(peer)
        return self._stand(now_s) if not self._awaited else self.advance(now_s)

    def _stopped(self, now_s: float) -> bool:
        due_s = self.next_deadline_s()
        return due_s is not None and now_s - due_s > LATE_FRACTION * self._lease_s

    def _yielded(self) -> list[Effect]:
        used = self.state in {State.HELD, State.STANDING}
        self.state, self.until_s = State.YIELDED, -math.inf
        self._awaited.clear()
        self._ask_at_s = self._answer_by_s = math.inf
        return [Use(False)] if used else []

    def _ask(self, now_s: float) -> Effect:
        self._answer_by_s = now_s + self._ask_s
        self._ask_at_s = math.inf
        return Ask()

    def _stand(self, now_s: float) -> list[Effect]:
        began = self.state is State.ASKING
        self.state, self.until_s = State.STANDING, now_s + STAND_ASKS * self._ask_s
        self._ask_at_s, self._answer_by_s = now_s + self._ask_s, math.inf
        self._awaited.clear()
        return [Use(True)] if began else []

    def next_deadline_s(self) -> float | None:
        """When ``advance`` has something to do; None: only a call can change anything."""
        if self.state in {State.NEW, State.YIELDED}:
            return None
        return min(self.until_s if self.state is not State.ASKING else math.inf, self._ask_at_s, self._answer_by_s)

    def check(self) -> None:
        """Raises AssertionError unless there is a time exactly where there is something to wait for."""
        assert self.state not in {State.NEW, State.YIELDED} or self.until_s == -math.inf, "it may use what it does not have"
        assert self.state is not State.ASKING or self._answer_by_s < math.inf, "it waits for answers without an end"
        assert self.state is not State.HELD or self._ask_at_s == self._answer_by_s == math.inf, "it asks though it is answered"
