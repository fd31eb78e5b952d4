"""Why a request was refused, and the one table of what a client is told about it.

429 says that capacity exists and is contended, 503 that there is none, 400 that no waiting would help. Never 408, 504
or 500: clients and proxies take those for faults, and retry them at once.
"""

from enum import StrEnum

import msgspec

RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 60.0
"""Older clients of the OpenAI SDK ignore a longer one and come back within half a second."""
JITTER_FRACTION = 0.25


class Refusal(StrEnum):
    """Low cardinality: these are metric labels."""

    QUEUE_FULL = "queue_full"
    """The pool's queue is full, and nothing less important waits in it."""
    DISPLACED = "displaced"
    """The queue is full, and a more important request took this one's place."""
    EXPIRED = "expired"
    """It waited as long as its tier accepts, or its client."""
    OUT_OF_TIME = "out_of_time"
    """Its client's deadline is over as it comes, or shorter than its prompt alone takes on an idle replica."""
    WOULD_EXPIRE = "would_expire"
    """At the measured pace it would wait longer than that."""
    SHED = "shed"
    """The posture of the pool sheds what can't start at once."""
    NEVER_FITS = "never_fits"
    """Larger than any replica could hold, even alone."""
    OVER_LIMIT = "over_limit"
    """Its team has as much as it may have (`quotas`)."""
    NO_REPLICAS = "no_replicas"
    """No replica can serve it, and none became ready in time."""
    HOLDER_OUT = "holder_out"
    """It goes on from an answer that one replica keeps, which takes no requests now."""
    SHUTTING_DOWN = "shutting_down"
    """The gateway ended before it was answered."""
    HANDED_BACK = "handed_back"
    """Another gateway forwarded it here, and goes on with it: the last replica here has stopped working."""


BACK = frozenset({Refusal.SHUTTING_DOWN, Refusal.HANDED_BACK})
"""Another gateway that has forwarded it may go on with it after these: they are no last word."""


class Shortage(StrEnum):
    """What a request that waits is waiting for."""

    SLOTS = "slots"
    """A sequence slot."""
    KV = "kv"
    """Room in the KV cache, at the peak of all that would run."""
    PREFILL = "prefill"
    """Prompts before it to be prefilled."""
    PACE = "pace"
    """With it, steps would be longer than the inter-token promise."""
    KEPT = "kept"
    """There is room, and it is kept for a larger one that has been passed often enough."""
    TURN = "turn"
    """Requests that go before it."""
    EVENT = "event"
    """A scheduled event that is about to begin: what is preemptible is held back for it."""
    REPLICA = "replica"
    """A replica that it has not tried and that could hold it."""
    ELSEWHERE = "elsewhere"
    """Another replica keeps the answer that it goes on from."""


class Answer(msgspec.Struct, frozen=True):
    """The HTTP status and the OpenAI error object (``type``, ``code``, ``message``) of one refusal."""

    status: int
    type: str
    code: str
    message: str


_BUSY = "rate_limit_exceeded"

ANSWERS: dict[Refusal, Answer] = {
    Refusal.QUEUE_FULL: Answer(
        429, _BUSY, "queue_full", "The queue for this model is full. Please retry after the time given in Retry-After."
    ),
    Refusal.DISPLACED: Answer(
        429, _BUSY, "displaced", "The queue for this model is full and more urgent work took this request's place. Please retry later."
    ),
    Refusal.EXPIRED: Answer(
        429,
        _BUSY,
        "queue_wait_expired",
        "This request waited as long as its service tier or its client's deadline allows and was not started. Please retry later.",
    ),
    Refusal.WOULD_EXPIRE: Answer(
        429,
        _BUSY,
        "queue_too_long",
        "The queue for this model is longer than this request's service tier or its client's deadline would wait. Please retry later.",
    ),
    Refusal.OUT_OF_TIME: Answer(
        429,
        _BUSY,
        "deadline_too_short",
        "This request's deadline is over, or shorter than its prompt alone takes here. Please give it more time.",
    ),
    Refusal.SHED: Answer(
        429, _BUSY, "load_shed", "This model is overloaded and requests of this service tier are not queued now. Please retry later."
    ),
    Refusal.NEVER_FITS: Answer(
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "This request is larger than any replica of this model can hold. Reduce the prompt, max_tokens or n, or send fewer prompts.",
    ),
    Refusal.OVER_LIMIT: Answer(429, _BUSY, _BUSY, "This team is at its limit."),
    Refusal.NO_REPLICAS: Answer(
        503, "service_unavailable", "no_replicas", "No replica of this pool can serve this request now. Please retry later."
    ),
    Refusal.HOLDER_OUT: Answer(
        503,
        "service_unavailable",
        "previous_response_unavailable",
        "The replica that keeps the previous response takes no requests now. Ask again after the time given in Retry-After, or send the "
        "whole conversation as input: if its engine has ended, the response is lost.",
    ),
    Refusal.SHUTTING_DOWN: Answer(
        503, "service_unavailable", "shutting_down", "This gateway is shutting down. Please retry after the time given in Retry-After."
    ),
    Refusal.HANDED_BACK: Answer(
        503, "service_unavailable", "handed_back", "No replica of this model at this gateway works now. Please ask another gateway."
    ),
}


def bounded(retry_after_s: float) -> float:
    """``retry_after_s`` within what clients obey."""
    return min(max(retry_after_s, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)


def jittered(retry_after_s: float, chance: float) -> float:
    """Spread ``retry_after_s`` over a quarter of itself by ``chance`` in [0, 1), within the same bounds.

    Clients obey Retry-After exactly, so all that are told the same time would come back at the same instant. Admission
    draws no chance: the gateway does, with the source it was given. At the upper bound the spread goes downwards.
    """
    low_s = min(bounded(retry_after_s), RETRY_AFTER_S_MAX / (1 + JITTER_FRACTION))
    return low_s * (1 + JITTER_FRACTION * chance)
