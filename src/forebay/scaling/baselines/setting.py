"""One setting of another autoscaler: the word for it, what it may hold, and what that autoscaler's own users call it.

Values are typed with their units (``10m``, ``70%`` or ``0.7``, ``3``); what they are read by is what reads a configuration.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from forebay.domain.errors import BadInput
from forebay.scaling.baselines.frame import Law
from forebay.scaling.baselines.settings import Targets
from forebay.spec.kinds import Flag, Number, Quantity, Refused, ScalarKind
from forebay.spec.problems import did_you_mean
from forebay.spec.tree import Scalar

NONE = "none"
"""The word for a limit that isn't set."""
DIGITS = 6
"""Of a number, as it is told: a target that was computed is as good as that."""
_PERCENT = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,8})?)%")


@dataclass(frozen=True)
class Share(Number):
    """A fraction, as ``0.7`` or as ``70%``."""

    @property
    def words(self) -> str:  # type: ignore[override]
        least = "above 0 %" if self.above else f"at least {100 * self.least:g} %"
        return f"a share such as 0.7 or 70%, {least}, at most {100 * self.most:g} %"

    def convert(self, scalar: Scalar) -> float:
        percent = _PERCENT.fullmatch(scalar.text)
        if percent is None:
            return super().convert(scalar)
        value = float(f"{percent[1]}e-2")
        if not self.least <= value <= self.most or (self.above and value == self.least):
            raise Refused
        return value


class Setting(msgspec.Struct, frozen=True):
    """``field``: its place in what the law is given (``hpa.tolerance``); ``theirs``: what the autoscaler's users call it."""

    key: str
    field: str
    kind: ScalarKind
    theirs: str
    default: str = ""
    """In words, where it is made from what a replica of the pool serves."""
    optional: bool = False
    """It may be `NONE`."""

    @property
    def words(self) -> str:
        """What is allowed."""
        return f"{self.kind.words}, or {NONE}" if self.optional else self.kind.words

    def read(self, text: str) -> Any:
        """The value of ``text``; raises Refused with a hint, or nothing."""
        if self.optional and text == NONE:
            return None
        return self.kind.convert(Scalar(1, text, True))

    def show(self, value: Any) -> str:
        """``value`` as it would be typed."""
        if value is None:
            return NONE
        if isinstance(self.kind, Quantity):
            return str(self.kind.show(value))
        return str(value).lower() if isinstance(self.kind, Flag) else f"{value:.{DIGITS}g}"


class Settable(msgspec.Struct, frozen=True):
    """What may be set in one law. ``given``: what a law was made with; ``law``: the law made with it."""

    settings: tuple[Setting, ...]
    given: Callable[[Any], Any]
    law: Callable[[Targets, Any], Law[Any]]
    below: tuple[str, str] = ("", "")
    """The first of these two settings may not be above the second: the count would go both ways at once."""
    whole: Callable[[Any], bool] = lambda _: True
    """Whether what is given says all of a law."""

    def known(self, key: str) -> Setting | None:
        """The setting ``key``, or None."""
        return next((setting for setting in self.settings if setting.key == key), None)


def read(option: str, name: str, settable: Settable, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Values by their fields, of ``pairs`` of key and text for the law ``name``.

    Raises BadInput that says what was found, what is allowed and what is near.
    """
    found: dict[str, Any] = {}
    keys = [setting.key for setting in settable.settings]
    for key, text in pairs:
        setting = settable.known(key)
        if setting is None:
            if not keys:
                raise BadInput(f"{option}: found {f'{key}={text}'!r} of {name}, which has no settings; give its name alone")
            hint = did_you_mean(key, keys)
            raise BadInput(f"{option}: found {key!r} of {name}, allowed: {', '.join(keys)}{f'; {hint}' if hint else ''}")
        if setting.field in found:
            raise BadInput(f"{option}: found {key!r} of {name} twice, allowed: each setting once")
        try:
            found[setting.field] = setting.read(text)
        except Refused as refused:
            hint = f"; {refused}" if str(refused) else ""
            raise BadInput(f"{option}: found {f'{key}={text}'!r} of {name}, allowed: {setting.words}{hint}") from None
    return found


def with_values(given: Any, values: Mapping[str, Any]) -> Any:
    """``given`` with ``values`` at their fields."""
    inner: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for field, value in values.items():
        first, _, rest = field.partition(".")
        if rest:
            inner.setdefault(first, {})[rest] = value
        else:
            own[first] = value
    nested = {first: with_values(getattr(given, first), rest) for first, rest in inner.items()}
    return msgspec.structs.replace(given, **own, **nested)


def value_at(given: Any, field: str) -> Any:
    """What stands at ``field``."""
    for part in field.split("."):
        given = getattr(given, part)
    return given


def check_order(option: str, name: str, settable: Settable, given: Any) -> None:
    """Raises BadInput where two thresholds stand the wrong way round."""
    low, high = (settable.known(key) for key in settable.below)
    if low is None or high is None:
        return
    found = [value_at(given, setting.field) for setting in (low, high)]
    if found[0] > found[1]:
        told = f"{low.key}={low.show(found[0])}"
        raise BadInput(f"{option}: found {told!r} of {name}, allowed: at most {high.key}, which is {high.show(found[1])}")
