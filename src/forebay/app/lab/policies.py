"""Policies by name: Forebay's own, and every other autoscaler's that it is compared with."""

from forebay.app.lab.request import LabRequest
from forebay.app.lab.summaries import FAVOURITE
from forebay.app.lab.world import Prepared
from forebay.domain.errors import BadInput
from forebay.domain.scaling import Policy
from forebay.scaling.baselines import ABOUT, ASIDE, named
from forebay.scaling.capacity import pool_capacity
from forebay.scaling.policy import QueueFirst
from forebay.spec.problems import did_you_mean
from forebay.spec.types import Scaling

NAMES = (FAVOURITE, *ABOUT)
"""What ``all`` means."""
EVERY = (*NAMES, *ASIDE)
ALL = "all"
WHAT = {
    FAVOURITE: "Forebay's own: named floors from demand, forecast and cold start.",
    **{name: about.what for name, about in (ABOUT | ASIDE).items()},
}


def chosen(option: str, text: str, alone: bool = False) -> list[str]:
    """The policies that ``text`` names, each once, in its order; ``all``: all. Raises BadInput that lists them where it names none.

    ``alone``: several are of no use to whoever asks, so the list says nothing of ``all``.
    """
    wanted = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not wanted:
        raise BadInput(f"{option}: found none, allowed: all, or some of {', '.join(EVERY)}")
    if ALL in wanted:
        return list(NAMES)
    for name in wanted:
        if name not in EVERY:
            longer = [known for known in EVERY if known.startswith(name)]
            hint = f"those that begin so: {', '.join(longer)}" if longer else did_you_mean(name, EVERY)
            raise BadInput(
                f"{option}: found {name!r}, allowed: {', '.join(EVERY if alone else (ALL, *EVERY))}{f'; {hint}' if hint else ''}"
            )
    return wanted


def make(name: str, ready: Prepared) -> Policy:
    """The policy called ``name`` for the pool of ``ready``; raises KeyError for a name that is none, BadInput where it can't be had."""
    request = ready.request
    if name == FAVOURITE:
        return favourite(request, request.pool.scaling)
    capacity = pool_capacity(request.pool)
    return named(request.pool, capacity, peak_replicas=ready.peak_replicas, calendar=request.calendar)[name]()


def favourite(request: LabRequest, settings: Scaling) -> Policy:
    """Forebay's own with ``settings``, as it runs live for this pool."""
    pool = request.pool
    wake_s = request.tiers[0].longest_wait_s
    return QueueFirst(settings, pool_capacity(pool), request.calendar, pool.name, pool.slo, wake_s)
