"""What a client is told when admission refuses it, or its team is at a limit."""

import random

from forebay.admission.effects import Refuse
from forebay.admission.outcomes import ANSWERS, Refusal
from forebay.admission.quotas import OverCap
from forebay.gateway.answers import RETRY_AFTER_OVERLOAD_S, ErrorReply, retry_after_real_s

NO_RETRY = b"x-should-retry: false\r\n"
"""SDKs of OpenAI and Anthropic heed it before anything else."""


ENGINE_ASKS_KEY = "The engine refuses the gateway, which it asks for a key. That is for the operator to mend, who has been told."

ASKS_KEY_REPLY = ErrorReply(503, "service_unavailable", "engine_asks_key", ENGINE_ASKS_KEY, retry_after_s=RETRY_AFTER_OVERLOAD_S)


_LATE = ANSWERS[Refusal.OUT_OF_TIME]
OUT_OF_TIME_REPLY = ErrorReply(_LATE.status, _LATE.type, _LATE.code, _LATE.message)
"""For what needs no permit, so that admission doesn't say it."""


def broke_off(why: Refusal, pool: str) -> str:
    """What a client is told that has the beginning of its answer already."""
    return f"The engine's answer broke off, and no other could go on with it: {_said(why, pool)}"


def _said(why: Refusal, pool: str) -> str:
    """Of several pools that serve a model, in as many regions, only ``pool`` need be without a replica."""
    said = ANSWERS[why].message
    return said.replace("this pool", f"pool {pool}", 1) if why is Refusal.NO_REPLICAS else said


def refusal_reply(effect: Refuse, pool: str, speed: float, chance: random.Random, *, asks_key: bool = False) -> ErrorReply:
    """In OpenAI's shape, with a jittered ``Retry-After`` in real seconds where coming back helps.

    ``pool``: of which it was asked. ``asks_key``: where there is no replica, that is since engines ask for a key.
    """
    answer, wait_s = ANSWERS[effect.why], effect.retry_after_s
    retry_after_s = None if wait_s is None else retry_after_real_s(wait_s, speed, chance)
    if asks_key and effect.why is Refusal.NO_REPLICAS:
        return ErrorReply(answer.status, answer.type, "engine_asks_key", ENGINE_ASKS_KEY, retry_after_s=retry_after_s)
    return ErrorReply(answer.status, answer.type, answer.code, _said(effect.why, pool), retry_after_s=retry_after_s)


def over_limit_reply(over: OverCap, speed: float, chance: random.Random) -> tuple[ErrorReply, bytes]:
    """The same, and a header line more that says so where coming back won't help."""
    answer, wait_s = ANSWERS[Refusal.OVER_LIMIT], over.retry_after_s
    kind = "tokens" if "tokens" in over.cap else "requests"
    share = "" if over.share is None else f" ({over.share} of them at this gateway)"
    message = f"{answer.message[:-1]} of {over.limit} {over.cap.replace('_', ' ')}{share}."
    if wait_s is None:
        return ErrorReply(answer.status, kind, answer.code, f"{message} This request alone is larger."), NO_RETRY
    return ErrorReply(answer.status, kind, answer.code, message, retry_after_s=retry_after_real_s(wait_s, speed, chance)), b""
