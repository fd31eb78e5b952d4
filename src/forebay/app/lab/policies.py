"""Policies by name: Forebay's own, and every other autoscaler's that it is compared with, as its source has it or as it is set.

A name may carry settings, ``hpa-queue:target=3,down=10m``; then the whole of it is the policy's name, in all that is told of it.
"""

from collections.abc import Sequence

from forebay.app.lab import own_settings
from forebay.app.lab.request import LabRequest
from forebay.app.lab.summaries import FAVOURITE
from forebay.app.lab.world import Prepared
from forebay.domain.errors import BadInput
from forebay.domain.scaling import Policy
from forebay.scaling.baselines import ABOUT, ASIDE, named, settable, targets
from forebay.scaling.baselines.settable import Pair
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
OPTION = "--policies"


def chosen(option: str, text: str, alone: bool = False) -> list[str]:
    """The policies that ``text`` names, each once, in its order; ``all``: all. Raises BadInput that lists them where it names none.

    ``name:key=value,key=value`` is one with settings: what has a ``=`` belongs to the policy before it. ``alone``: several are of
    no use to whoever asks, so the list says nothing of ``all``.
    """
    wanted: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        name, colon, first = (piece.strip() for piece in part.partition(":"))
        if colon:
            wanted += [f"{name}:{_pair_text(option, name, first)}"]
        elif "=" in part:
            if not wanted:
                raise BadInput(f"{option}: found {part!r} first, allowed: a policy, then its settings, such as hpa-queue:target=3,down=10m")
            before = wanted.pop()
            wanted.append(f"{before}{',' if ':' in before else ':'}{_pair_text(option, parted(before)[0], part)}")
        elif part:
            wanted.append(part)
    if not wanted:
        raise BadInput(f"{option}: found none, allowed: all, or some of {', '.join(EVERY)}")
    found = [name for each in wanted for name in (NAMES if each == ALL else (each,))]
    for each in found:
        _check(option, *parted(each), alone)
    return list(dict.fromkeys(found))


def parted(name: str) -> tuple[str, list[Pair]]:
    """A policy's bare name, and the settings that its name carries."""
    bare, _, told = name.partition(":")
    return bare, [Pair(*pair.split("=", 1)) for pair in told.split(",") if pair]


def typed(name: str, pairs: Sequence[Pair]) -> str:
    """The inverse of `parted`."""
    told = ",".join(f"{pair.key}={pair.text}" for pair in pairs)
    return f"{name}:{told}" if told else name


def fitting(names: Sequence[str], request: LabRequest, option: str = OPTION) -> None:
    """Raises BadInput where settings of ``names`` don't fit the pool, before anything is played."""
    for name in names:
        if parted(name)[1]:
            _made(name, request, None, option)


def make(name: str, ready: Prepared) -> Policy:
    """The policy called ``name`` for the pool of ``ready``; raises KeyError for a name that is none, BadInput where it can't be had."""
    return _made(name, ready.request, ready.peak_replicas, OPTION)


def favourite(request: LabRequest, settings: Scaling) -> Policy:
    """Forebay's own with ``settings``, as it runs live for this pool."""
    pool = request.pool
    wake_s = request.tiers[0].longest_wait_s
    return QueueFirst(settings, pool_capacity(pool), request.calendar, pool.name, pool.slo, wake_s)


def _made(name: str, request: LabRequest, peak_replicas: int | None, option: str) -> Policy:
    bare, pairs = parted(name)
    pool = request.pool
    if bare == FAVOURITE:
        return favourite(request, own_settings.set_in(option, pool.scaling, pairs))
    capacity = pool_capacity(pool)
    policy = named(pool, capacity, peak_replicas=peak_replicas, calendar=request.calendar)[bare]()
    return settable.set_in(option, bare, policy, targets(pool, capacity), pairs)


def _pair_text(option: str, name: str, part: str) -> str:
    key, equals, value = (piece.strip() for piece in part.partition("="))
    if not (key and equals and value):
        raise BadInput(f"{option}: found {part!r} of {name}, allowed: KEY=VALUE, such as hpa-queue:target=3,down=10m")
    return f"{key}={value}"


def _check(option: str, name: str, pairs: Sequence[Pair], alone: bool) -> None:
    if name not in EVERY:
        if name == ALL:
            raise BadInput(f"{option}: found settings of all, allowed: settings of one policy, such as hpa-queue:target=3")
        longer = [known for known in EVERY if known.startswith(name)]
        hint = f"those that begin so: {', '.join(longer)}" if longer else did_you_mean(name, EVERY)
        raise BadInput(f"{option}: found {name!r}, allowed: {', '.join(EVERY if alone else (ALL, *EVERY))}{f'; {hint}' if hint else ''}")
    if name == FAVOURITE:
        own_settings.read(option, pairs)
    else:
        settable.check(option, name, pairs)
