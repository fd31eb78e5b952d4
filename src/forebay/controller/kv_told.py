"""Whether engines hold as much KV as their pool's profile says: a wrong number there is seen by nobody, and costs places or preemptions.

Each replica's word is the capacity on its metrics page. What is off is an event once, and stays in the status until it is right.
"""

from forebay.controller.ward import Ward
from forebay.domain.signal import Known
from forebay.ports import EngineSignals

KV_TOLERANCE = 0.1
"""Of the profile's `kv`. Engines of one kind differ by a few percent from start to start, and by whole blocks."""


class KvTold:
    """Of all pools; bounded by the replicas there are."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, str]] = {}

    def look(self, ward: Ward) -> list[str]:
        """What is newly seen to be off, in words."""
        before, now = self._of.get(ward.pool.name, {}), {}
        profile = ward.pool.profile
        for view in ward.views if profile is not None else ():
            told = ward.signals.get(view.id, EngineSignals()).kv_tokens
            if not isinstance(told, Known):  # an engine that is silent for a moment has not changed
                if view.id in before:
                    now[view.id] = before[view.id]
            elif profile is not None and abs(told.value - profile.kv_tokens) > KV_TOLERANCE * profile.kv_tokens:
                now[view.id] = _words(profile.name, profile.kv_tokens, view.id, int(told.value))
        self._of[ward.pool.name] = now
        return [words for replica, words in now.items() if before.get(replica) != words]

    def differs(self, pool: str) -> tuple[str, ...]:
        """What is off at present, in words."""
        return tuple(self._of.get(pool, {}).values())


def _words(profile: str, declared: int, replica: str, told: int) -> str:
    what = "places are left empty" if declared < told else "it is sent more than it holds, and preempts"
    return f"kv of profile {profile} is {declared}, but {replica} holds {told} tokens: {what}; set it to {told}"
