"""Which engine failed requests, where, and why: told at once, and then counted for a while, so that a dead one fills no log."""

from collections.abc import Callable

import msgspec

from forebay.ports.clock import Clock

TOLD_EVERY_REAL_S = 30.0
"""Of one replica, as long as it fails."""
KEPT_MAX = 256
"""Replicas of which failures are counted; those told of longest ago are forgotten first."""
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_UNTRUSTED_HINT = "; its certificate is vouched for by nobody trusted here: name the authority's file in SSL_CERT_FILE and start again"


class _Failing(msgspec.Struct):
    told_s: float
    count: int = 0
    why: str = ""


class Failures:
    """Takes each failure; ``tell(kind, message, pool)`` gets those that are to be told."""

    def __init__(self, clock: Clock, tell: Callable[[str, str, str], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._failing: dict[tuple[str, str], _Failing] = {}

    def note(self, pool: str, replica: str, url: str, why: str) -> None:
        """A request failed there: told, unless others were lately."""
        key, now_s = (pool, replica), self._real_s()
        found = self._failing.get(key)
        where = replica if replica.endswith(f"@{url.partition('//')[2]}") else f"{replica} at {url}"
        why += _UNTRUSTED_HINT if _UNTRUSTED in why else ""
        if found is not None and now_s - found.told_s < TOLD_EVERY_REAL_S:
            found.count += 1
            found.why = f"{where}: {why}"
            return
        if found is None and len(self._failing) >= KEPT_MAX:
            del self._failing[next(iter(self._failing))]
        self._failing.pop(key, None)
        self._failing[key] = _Failing(now_s)
        self._tell("engine_failed", f"{where} failed a request: {why}", pool)

    def sweep(self) -> None:
        """Tell what has been counted for long enough; what has not failed since it was told is forgotten."""
        now_s = self._real_s()
        for key, found in list(self._failing.items()):
            if now_s - found.told_s < TOLD_EVERY_REAL_S:
                continue
            del self._failing[key]
            if found.count:
                self._failing[key] = _Failing(now_s)
                noun = "request" if found.count == 1 else "requests"
                words = f"{found.count} more {noun} failed within {TOLD_EVERY_REAL_S:.0f} s; the last by {found.why}"
                self._tell("engine_failed", words, key[0])

    def _real_s(self) -> float:
        return self._clock.now_s() / self._clock.speed
