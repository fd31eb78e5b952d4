"""What a scaling policy sees and says. Values only: frozen in, frozen out, both serialise.

``Policy.decide(observation) -> Decision`` is synchronous, total and silent. Its memory is ``decision.memory``, which
comes back unopened as the next ``observation.memory``. The answer carries its own explanation: the *terms* it was
made of, with their numbers, and which of them binds.
"""

from enum import StrEnum
from typing import Protocol

import msgspec

from forebay.domain.due import Due
from forebay.domain.replica import ReplicaState
from forebay.domain.roster import Posture
from forebay.domain.signal import Signal, Unknown

MEMORY_BYTES_MAX = 64 * 1024


class Passes(msgspec.Struct, frozen=True, tag="passes", gc=False):
    """Forward passes of one engine that ended between two scrapes: means over ``count`` of them, all 0 where none did.

    Where a pass takes a time that is linear in its tokens, the mean time is the time of the mean tokens.
    """

    at_s: float
    """When it was scraped, in world seconds."""
    before: int
    """Passes of the same engine since its start, before these."""
    count: int
    mean_s: float
    prefill_tokens: float
    """Prompt tokens of a pass."""
    kv_tokens: float
    """KV tokens that a pass read."""


class ReplicaObservation(msgspec.Struct, frozen=True, gc=False):
    """One replica at one instant. Unknown is per replica: one dead scrape must not freeze a fleet."""

    id: str
    state: ReplicaState
    since_s: float
    requested_s: float
    waiting: Signal = Unknown()
    """Requests waiting inside the engine."""
    running: Signal = Unknown()
    kv_usage: Signal = Unknown()
    """Fraction 0..1 of KV tokens in use, net of preemptible work where the gateways know it."""
    queued_tokens: Signal = Unknown()
    """Prompt tokens that wait in the engine or are not prefilled yet; only drivers that can see them tell."""
    gpu_usage: Signal = Unknown()
    """Fraction 0..1 of time in which a kernel ran: ~1 at almost any load. No policy of Forebay's reads it; a baseline does."""
    live_tokens: float = 0.0
    """KV tokens in flight from the gateways: the victim of a scale-in is the replica with the fewest."""
    expected_ready_s: float | None = None
    """World time at which a pending replica should be ready, from the measured cold start."""
    overdue: bool = False
    """Pending for longer than it should be: it no longer counts as supply."""
    passes: Passes | Unknown = Unknown()
    """What passes took since the last scrape; only drivers that can see them tell. No policy of Forebay's reads it; a baseline does."""


class History(msgspec.Struct, frozen=True):
    """Demand of the past weeks in buckets of equal width, oldest first: a read-only view of the Store, shared by reference.

    Each column is packed little-endian float32, one value a bucket; NaN: not known (an outage is no idle time).
    """

    start_wall_s: float
    """Unix time at which the first bucket begins."""
    bucket_s: float
    requests: bytes
    """Requests that arrived in each bucket, net of preemptible tiers."""
    prompt_tokens: bytes
    output_tokens: bytes


class Observation(msgspec.Struct, frozen=True):
    """All that a policy may look at: one pool at one instant, times in world seconds, rates per second."""

    pool: str
    now_s: float
    wall_s: float
    """Unix time, for calendars."""
    desired: int
    """The replicas wanted by the last decision (or the pool's min at the start)."""
    replicas: tuple[ReplicaObservation, ...]
    lanes_waiting: Signal = Unknown()
    """Requests waiting in lanes over all gateways, net of preemptible tiers."""
    arrival_per_s: Signal = Unknown()
    """Arrivals over the last ~30 s, net of preemptible tiers."""
    arrival_prompt_tokens_per_s: Signal = Unknown()
    arrival_output_tokens_per_s: Signal = Unknown()
    ttft_attainment: Signal = Unknown()
    """Fraction of the first contents of the last minutes that came within the tier's TTFT, net of preemptible tiers."""
    cold_start_s: Signal = Unknown()
    """Measured: a high quantile of recent cold starts of this pool; Unknown before the first."""
    past_ramps_per_s2: tuple[float, ...] = ()
    """Largest ramp of each past period from the Store (read-only view), newest last; may be empty."""
    running: Signal = Unknown()
    """Requests in flight on engines, over all gateways, net of preemptible tiers."""
    completed_per_s: Signal = Unknown()
    """Requests finished per second over the last ~30 s, net of preemptible tiers."""
    completed_output_tokens_per_s: Signal = Unknown()
    ttft_p95_s: Signal = Unknown()
    """Over the last minute."""
    itl_p95_s: Signal = Unknown()
    """Per request mean inter-token time, 95th percentile over the last minute."""
    itl_attainment: Signal = Unknown()
    """Fraction of the requests finished in the last minutes whose mean inter-token time was within the pool's promise."""
    history: History | None = None
    """Ends at the last whole bucket; None where there is none."""
    memory: bytes = b""
    warm: int = 0
    """Warm nodes held, ready or on their way: provisioned for this pool, and no engine on them."""
    warm_start_s: Signal = Unknown()
    """Measured: a high quantile of recent starts on warm nodes; Unknown before the first."""
    preemptible_due: tuple[Due, ...] = ()
    """Of the requests of preemptible tiers that wait in lanes, over all gateways: how many must have been started by when, the soonest
    first. Of a silent gateway it is what it said last: that the load is not known is told by the signals."""
    ttft_missed: Signal = Unknown()
    """How many first contents of the minutes of ``ttft_attainment`` came late: where too few came for a fraction, that none was late is
    known all the same."""


class TermKind(StrEnum):
    """What a term does to the number of replicas."""

    FLOOR = "floor"
    TRIGGER = "trigger"
    HOLD = "hold"
    CAP = "cap"
    SCALE_IN = "scale_in"


class Term(msgspec.Struct, frozen=True):
    """One named reason for a number of replicas, with the numbers it was computed from."""

    name: str
    kind: TermKind
    replicas: int
    because: str
    numbers: dict[str, float] = {}
    binding: bool = False


class AlertKind(StrEnum):
    """Alerts have low cardinality: they are metric labels and webhook routes."""

    PENDING_TOO_LONG = "pending_too_long"
    SIGNALS_UNKNOWN = "signals_unknown"
    SLO_BREACH = "slo_breach"
    POOL_EXHAUSTED = "pool_exhausted"
    APPROVAL_WANTED = "approval_wanted"
    REPLICAS_FAILED = "replicas_failed"
    NO_REPLICAS = "no_replicas"


class Alert(msgspec.Struct, frozen=True):
    """A condition that holds now; whoever notifies does so when it begins and when it ends."""

    kind: AlertKind
    pool: str
    message: str
    since_s: float


class Decision(msgspec.Struct, frozen=True):
    """Replicas wanted, and why. Exactly one term is binding."""

    pool: str
    at_s: float
    replicas: int
    reason: str
    """The binding term's name."""
    terms: tuple[Term, ...]
    posture: Posture = Posture.OPEN
    alerts: tuple[Alert, ...] = ()
    look_again_at_s: float = 0.0
    memory: bytes = b""
    warm: int = 0
    """Warm nodes to hold beside the replicas."""
    posture_because: str = ""
    """Why the posture isn't open."""


class Policy(Protocol):
    """The one question that the live loop, the simulators, KEDA and ``explain`` all ask."""

    def decide(self, observation: Observation) -> Decision:
        """Never raises; an ill observation gets a decision that holds, with its reason."""
        ...
