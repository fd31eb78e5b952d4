"""What the admission machine asks its owner to do. It never does anything itself, so whoever owns it needs no lock."""

import msgspec

from forebay.admission.outcomes import Refusal


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Send this ticket's request to ``url`` now: it holds a permit there until ``finish``, ``retry``, ``abandon`` or ``Requeue``."""

    ticket: int
    replica_id: str
    url: str


class Requeue(msgspec.Struct, frozen=True, gc=False):
    """Abort this ticket's exchange with ``replica_id`` now and forget what came of it: its permit is another's, and it waits again.

    Only of preemptible tiers, and never once something of the answer is with the client.
    """

    ticket: int
    replica_id: str


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """Answer this ticket with ``outcomes.ANSWERS[why]``: it has ended, and holds nothing.

    ``retry_after_s``: world seconds, within ``outcomes.RETRY_AFTER_S_MIN`` and ``…_MAX``, without jitter (see
    ``outcomes.jittered``); None where coming back would not help.
    """

    ticket: int
    why: Refusal
    retry_after_s: float | None


Effect = Dispatch | Requeue | Refuse
