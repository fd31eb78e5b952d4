"""What one comparison is about, as a value: it travels to worker processes, each of which opens the trace anew and streams it."""

import msgspec

from forebay.app.lab.faults import FaultPlan
from forebay.domain.scaling import History
from forebay.simulation.values import Actuator, Dispatch, Order, Queueing
from forebay.spec.types import CalendarEntry, Pool, Tier


class TraceOptions(msgspec.Struct, frozen=True):
    """Which arrivals. Times in seconds of the trace."""

    path: str
    trace_format: str
    lengths: str | None = None
    """A trace whose lengths a rate-only one borrows; None: the pool's declared shape."""
    start_s: float = 0.0
    start_at: str = ""
    """A date or a clock time in place of ``start_s``, which follows from it once the trace's own beginning is known; else empty."""
    duration_s: float | None = None
    """None: to the end."""
    rate_scale: float = 1.0
    tiers: tuple[tuple[str, float], ...] = ()
    """Weights by which rows that name no tier draw one; empty: all of them are of the most important one."""
    lenient: bool = False
    noise: float = 0.0
    """For traces of rates: how much the rate strays from minute to minute, as a fraction."""
    gap_cv: float = 2.0
    """For traces of rates: standard deviation ÷ mean of the gaps between arrivals; 1: Poisson."""
    column: str = ""
    """Which column of a file with several."""
    recorded: History | None = None
    """Instead of a file: demand that a controller saw come, from which requests are drawn; ``path`` says where it is from."""


class LabRequest(msgspec.Struct, frozen=True):
    """One pool, its promises, its arrivals, and the world they are played in."""

    pool: Pool
    tiers: tuple[Tier, ...]
    """Most important first; the first one's TTFT is the pool's own promise."""
    calendar: tuple[CalendarEntry, ...]
    trace: TraceOptions
    faults: FaultPlan = FaultPlan()
    faults_text: str = ""
    """The same as it was written."""
    queueing: Queueing = Queueing.GATEWAY
    """The same for every policy: what is compared is when to scale, not whose load balancer is better."""
    dispatch: Dispatch = Dispatch.LEAST_LOADED
    order: Order = Order.DEADLINE
    actuator: Actuator = Actuator()
    actuator_text: str = "direct"
    """The same as it was written."""
    start_cv: float = 0.0
    """How much the stages of starts vary: standard deviation ÷ mean."""
    shared_bandwidth_bytes_per_s: float | None = None
    """What all weight pulls under way share; None: as much as anyone wants."""
    peer_to_peer: bool = False
    """Ready replicas serve the weights too."""
    scrape_delay_s: float = 0.0
    seed: int = 0
    """The first; seeds of a comparison are counted up from it."""
