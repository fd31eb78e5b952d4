"""Settings of Forebay's own policy as a name carries them (``forebay:forecast.calm=2m``), and as a configuration has them.

They are the keys of ``scaling:`` that the policy alone goes by; the others (``max``, ``interval``, ``cold_start``) are the world's,
which is the same for every policy.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from forebay.domain.errors import BadInput
from forebay.scaling.baselines.settable import Pair
from forebay.spec.fields_scaling import SCALING
from forebay.spec.kinds import Flag, Quantity, Refused, ScalarKind
from forebay.spec.problems import nearest_key
from forebay.spec.records import Field, Record
from forebay.spec.tree import Scalar
from forebay.spec.types import Scaling

SECTIONS = ("forecast", "prices", "in", "out")
KEYS = ("spare", "domains", "noise", "buffer", "ramp", "ramp_quantile")
DIGITS = 6
"""Of a number, as it is told."""


def _fields(record: Record, path: str = "") -> Iterator[tuple[str, Field]]:
    for field in record.fields:
        if not path and field.key not in (*SECTIONS, *KEYS):
            continue
        if isinstance(field.kind, Record):
            yield from _fields(field.kind, f"{field.key}.")
        else:
            yield f"{path}{field.key}", field


FIELDS: dict[str, Field] = dict(_fields(SCALING))
"""By their path below ``scaling:``."""


def read(option: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Values of `Scaling`, by field. Raises BadInput that says what was found, what is allowed and what is near."""
    found: dict[str, Any] = {}
    for key, text in pairs:
        field = FIELDS.get(key)
        if field is None or field.fills is None or not isinstance(field.kind, ScalarKind):
            hint = nearest_key(key, FIELDS, FIELDS)
            raise BadInput(f"{option}: found {key!r} of forebay, allowed: {', '.join(FIELDS)}{f'; {hint}' if hint else ''}")
        if field.fills in found:
            raise BadInput(f"{option}: found {key!r} of forebay twice, allowed: each setting once")
        try:
            found[field.fills] = field.kind.convert(Scalar(1, text, True))
        except Refused as refused:
            hint = f"; {refused}" if str(refused) else ""
            raise BadInput(f"{option}: found {f'{key}={text}'!r} of forebay, allowed: {field.kind.words}{hint}") from None
    return found


def set_in(option: str, scaling: Scaling, pairs: Sequence[Pair]) -> Scaling:
    """``scaling`` with ``pairs`` set; raises BadInput as `read` does, and where they contradict what is there."""
    found = msgspec.structs.replace(scaling, **read(option, pairs))
    if found.in_kv_usage >= found.out_kv_usage:
        raise BadInput(f"{option}: found in.kv={found.in_kv_usage:g} of forebay, allowed: below out.kv, which is {found.out_kv_usage:g}")
    return found


def changes(scaling: Scaling, before: Scaling) -> dict[str, Any]:
    """What of ``scaling`` differs from ``before``, by path, as a configuration would hold it (as JSON)."""
    found: dict[str, Any] = {}
    for path, field in FIELDS.items():
        if field.fills is not None and getattr(scaling, field.fills) != getattr(before, field.fills):
            value = field.kind.show(getattr(scaling, field.fills))
            found[path] = float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
    return found


def pairs_of(changed: Mapping[str, Any]) -> list[Pair]:
    """``changed`` as a policy's name carries it."""
    return [Pair(path, _text(FIELDS[path], value)) for path, value in changed.items()]


def nested(changed: Mapping[str, Any]) -> dict[str, Any]:
    """``changed`` as what stands below ``scaling:``."""
    found: dict[str, Any] = {}
    for path, value in changed.items():
        section, _, key = path.rpartition(".")
        (found.setdefault(section, {}) if section else found)[key] = value
    return found


def yaml(changed: Mapping[str, Any]) -> str:
    """``changed`` on one line of YAML, to be put into the pool: ``scaling: {forecast: {calm: 2m}}``."""

    def flow(tree: Mapping[str, Any], path: str) -> str:
        cells = [
            f"{key}: {flow(value, f'{path}{key}.') if isinstance(value, Mapping) else _text(FIELDS[path + key], value)}"
            for key, value in tree.items()
        ]
        return "{" + ", ".join(cells) + "}"

    return f"scaling: {flow(nested(changed), '')}"


def _text(field: Field, value: Any) -> str:
    if isinstance(field.kind, Flag):
        return str(value).lower()
    return str(value) if isinstance(field.kind, Quantity) or isinstance(value, int) else f"{value:.{DIGITS}g}"
