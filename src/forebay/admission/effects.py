"""What the admission machine asks its owner to do. It never does anything itself, so whoever owns it needs no lock."""

import msgspec

from forebay.admission.outcomes import Refusal


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Send this ticket's request to ``url`` now: it holds a permit there until ``finish``, ``retry``, ``abandon`` or ``Requeue``."""

    ticket: int
    replica_id: str
    url: str


class Requeue(msgspec.Struct, frozen=True, gc=False):
    """Abort this ticket's exchange with ``replica_id`` now: its permit is another's, and it waits again.

    Only of preemptible tiers. What came of the answer is forgotten, unless it is with the client: then the answer is gone on with from
    there, as its owner has just said that it can be, and ``more_prompt_tokens`` of it are prompt to whoever does.
    """

    ticket: int
    replica_id: str
    more_prompt_tokens: int = 0


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """Answer this ticket with ``outcomes.ANSWERS[why]``: it has ended, and holds nothing.

    ``retry_after_s``: world seconds, within ``outcomes.RETRY_AFTER_S_MIN`` and ``…_MAX``, without jitter (see
    ``outcomes.jittered``); None where coming back would not help.
    """

    ticket: int
    why: Refusal
    retry_after_s: float | None


Effect = Dispatch | Requeue | Refuse
