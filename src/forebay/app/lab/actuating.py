"""``--actuator`` in words: what stands between a decision and the fleet, and how it was set up.

A kind, then its settings, parted by commas: ``keda,polling=10s,tolerance=0,down_window=2m``. ``hpa`` and ``keda`` are the
same, since KEDA acts through an HPA; what is not said has the source's default (Kubernetes' and KEDA's own).

| word | Kubernetes' or KEDA's name | default |
|---|---|---|
| ``sync=15s`` | ``--horizontal-pod-autoscaler-sync-period`` | 15 s |
| ``tolerance=0.1`` | ``behavior.scaleUp/scaleDown.tolerance`` | 0.1 |
| ``up_window=0s`` | ``behavior.scaleUp.stabilizationWindowSeconds`` | 0 s |
| ``down_window=5m`` | ``behavior.scaleDown.stabilizationWindowSeconds`` | 5 min |
| ``polling=30s`` | ``pollingInterval``: between zero and one alone | 30 s |
| ``cooldown=5m`` | ``cooldownPeriod``: down to zero alone | 5 min |
| ``victims=fewest`` | pod deletion cost, by live tokens; ``newest``: nobody sets it | fewest |
"""

import msgspec

from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration, parse_duration_s
from forebay.simulation.actuators import PERIOD_S, TOLERANCE_MAX, WINDOW_S_MAX
from forebay.simulation.values import Actuator
from forebay.spec.problems import did_you_mean

KINDS = {"direct": "direct", "hpa": "hpa", "keda": "hpa"}
"""By the words for them."""
COOLDOWN_S_MAX = 86_400.0
_TIMES: dict[str, tuple[str, float, float]] = {
    "sync": ("sync_s", *PERIOD_S),
    "up_window": ("up_stabilisation_s", 0.0, WINDOW_S_MAX),
    "down_window": ("down_stabilisation_s", 0.0, WINDOW_S_MAX),
    "polling": ("polling_s", *PERIOD_S),
    "cooldown": ("cooldown_s", 0.0, COOLDOWN_S_MAX),
}
"""Field, least and most seconds of each word."""
VICTIMS = {"fewest": True, "newest": False}
"""Whether somebody steers which pods go."""
WORDS = (*_TIMES, "tolerance", "victims")


def parse_actuator(text: str) -> Actuator:
    """The actuator that ``text`` describes. Raises BadInput saying which part is not understood, and what is."""
    kind, *parts = (part.strip() for part in text.split(","))
    if kind not in KINDS:
        raise BadInput(f"--actuator: found {kind!r}, allowed: {', '.join(KINDS)}{_hint(kind, tuple(KINDS))}")
    settings: dict[str, float | bool] = {}
    for part in parts:
        word, _, value = (side.strip() for side in part.partition("="))
        if word not in WORDS:
            allowed = ", ".join(f"{name}=…" for name in WORDS)
            raise BadInput(f"--actuator: found {part!r}, allowed: {allowed}{_hint(word, WORDS)}; such as keda,polling=10s,tolerance=0")
        if kind == "direct":
            raise BadInput(f"--actuator: found {part!r} beside direct, allowed: settings of hpa or keda; direct has none")
        field, meant = _setting(part, word, value)
        if field in settings:
            raise BadInput(f"--actuator: found {word!r} twice, allowed: each setting once")
        settings[field] = meant
    return msgspec.structs.replace(Actuator(KINDS[kind]), **settings)


def unused(actuator: Actuator, least: int) -> str:
    """What to tell of settings that can't matter to a pool of at least ``least`` replicas; else empty."""
    of_zero = (actuator.polling_s, actuator.cooldown_s)
    if actuator.kind == "direct" or least == 0 or of_zero == (Actuator().polling_s, Actuator().cooldown_s):
        return ""
    return f"polling and cooldown of --actuator change nothing here: KEDA has them between zero and one replica, and `min` is {least}."


def _setting(part: str, word: str, value: str) -> tuple[str, float | bool]:
    if word == "tolerance":
        return "tolerance", _tolerance(part, value)
    if word != "victims":
        return _time(part, word, value)
    if value not in VICTIMS:
        raise BadInput(
            f"--actuator: found {part!r}, allowed: {', '.join(f'victims={name}' for name in VICTIMS)}{_hint(value, tuple(VICTIMS))}"
        )
    return "steered", VICTIMS[value]


def _time(part: str, word: str, text: str) -> tuple[str, float]:
    field, least_s, most_s = _TIMES[word]
    try:
        found_s = parse_duration_s(text)
    except ValueError as error:
        raise BadInput(f"--actuator: {part!r}: {error}") from None
    if not least_s <= found_s <= most_s:
        allowed = f"{format_duration(least_s)} to {format_duration(most_s)}" if least_s else f"at most {format_duration(most_s)}"
        raise BadInput(f"--actuator: found {part!r}, allowed: {allowed}")
    return field, found_s


def _tolerance(part: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= TOLERANCE_MAX:
        raise BadInput(f"--actuator: found {part!r}, allowed: a fraction of 0 to {TOLERANCE_MAX:g}, such as tolerance=0.1")
    return found


def _hint(word: str, known: tuple[str, ...]) -> str:
    hint = did_you_mean(word, known)
    return f"; {hint}" if hint else ""
