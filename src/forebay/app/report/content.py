"""What a report is made of, as values; `report.columns` turns them into the page's data, `report.page` into the page."""

import msgspec

from forebay.simulation.values import PolicySummary, RunResult


def format_hours(hours: float) -> str:
    """GPU-hours for people: small numbers need their decimals."""
    return f"{hours:,.1f}" if hours >= 100 else f"{hours:.3g}"


class Played(msgspec.Struct, frozen=True):
    """One policy: its line in the table, and the run (of the first seed) whose timeline is drawn."""

    summary: PolicySummary
    run: RunResult
    attained: float
    """Requests with every promise kept ÷ requests, of the tier that fares worst among those with a promise."""


class BoundDrawn(msgspec.Struct, frozen=True):
    """The clairvoyant schedule as it is drawn."""

    gpu_hours: float
    steps: tuple[tuple[float, int], ...] = ()
    """``(from_s, replicas)``, rising in time: replicas paid for from then on."""
    note: str = ""
    attained: float | None = None
    """As of a policy, when the schedule was played; None: it was not."""


class FaultDrawn(msgspec.Struct, frozen=True):
    """One fault as it is drawn; ``until_s`` is ``from_s`` for an instant."""

    name: str
    from_s: float
    until_s: float
    blind: bool = False
    """Metrics were wrong: no decision could go by them."""


class Content(msgspec.Struct, frozen=True):
    """Everything a page says. Times are seconds of the trace, money is USD."""

    title: str
    facts: tuple[tuple[str, str], ...]
    """``(name, value)``, shown under the title: the trace, the pool, the promise, the cold start …"""
    verdict: str
    """One or two sentences for whoever reads no further."""
    start_wall_s: float
    """Unix time of second 0; 0: not known, hours are counted from the start."""
    ttft_s: float
    itl_s: float
    attainment: float
    gpus_per_replica: int
    gpu_hour_usd: float
    """0: no price is known, and no cost is drawn."""
    played: tuple[Played, ...]
    """In the order of the table."""
    bound: BoundDrawn | None = None
    notes: tuple[str, ...] = ()
    """What a reader should know before trusting the numbers."""
    zone: str = "UTC"
    """Whose clock times are told by."""
    offsets: tuple[tuple[float, float], ...] = ((0.0, 0.0),)
    """``(from_s, seconds ahead of UTC)`` of that clock: more than one where it is set during the run."""
    faults: tuple[FaultDrawn, ...] = ()
