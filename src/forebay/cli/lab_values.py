"""What some of the lab's options say, as numbers."""

from forebay.domain.errors import BadInput
from forebay.domain.units import parse_size_bytes

WEIGHT_MAX = 1e9


def bandwidth(option: str, text: str | None) -> float | None:
    """Bytes per second, such as ``10GB/s``; raises BadInput."""
    if text is None:
        return None
    size, _, per = text.partition("/")
    try:
        value = parse_size_bytes(size)
    except ValueError:
        value = 0
    if per != "s" or value <= 0:
        raise BadInput(f"{option}: found {text!r}, allowed: a size per second above 0, such as 10GB/s")
    return float(value)


def weights(option: str, text: str) -> tuple[tuple[str, float], ...]:
    """``interactive=0.8,batch=0.2``; raises BadInput."""
    found: dict[str, float] = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        name, _, value = part.partition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = -1.0
        if not name.strip() or name.strip() in found or not 0 < weight <= WEIGHT_MAX:
            raise BadInput(
                f"{option}: found {part!r}, allowed: TIER=WEIGHT, each tier once, weights above 0 to {WEIGHT_MAX:g}, such as "
                "interactive=0.8,batch=0.2"
            )
        found[name.strip()] = weight
    return tuple(found.items())
