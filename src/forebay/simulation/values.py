"""What goes into a simulated run and what comes out of it, as values: the contract between the fast fleet, its driver, and reports.

Times are seconds of the trace unless a name says otherwise; GPU-hours count from node requested to node released, times
GPUs, whatever the replica did meanwhile: provisioning, loading, draining, failed and warm ones are all paid for.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from forebay.domain.profile import Profile
from forebay.domain.roster import Capacity
from forebay.domain.scaling import Decision


class Dispatch(StrEnum):
    """Which replica a request goes to."""

    LEAST_LOADED = "least_loaded"
    ROUND_ROBIN = "round_robin"
    PREFIX = "prefix"
    """To the replica that served its prefix group last, unless that one is loaded well above the mean; else least loaded."""


class Queueing(StrEnum):
    """Where requests wait."""

    GATEWAY = "gateway"
    """In one queue with lanes; a replica gets what fits its budgets (Forebay)."""
    ENGINE = "engine"
    """In the engines: a request is sent on as it comes (a plain load balancer)."""


class Order(StrEnum):
    """Who goes first within a lane."""

    DEADLINE = "deadline"
    """By deadline, and what can no longer meet its TTFT goes behind what still can."""
    FIFO = "fifo"


class TierRules(msgspec.Struct, frozen=True):
    """One tier, most important first in `FleetRules.tiers`; the index is what `Arrivals.tier` names."""

    name: str
    ttft_s: float
    itl_s: float
    """Promise on the mean inter-token time of one request (TPOT)."""
    longest_wait_s: float
    """Waited longer in the lane: shed."""
    preemptible: bool = False


class FleetRules(msgspec.Struct, frozen=True):
    """Everything about a fleet that does not change during a run."""

    profile: Profile
    capacity: Capacity
    """Budgets of a replica at the gateway (`engine.capacity.roster_capacity`)."""
    tiers: tuple[TierRules, ...]
    queueing: Queueing = Queueing.GATEWAY
    dispatch: Dispatch = Dispatch.LEAST_LOADED
    order: Order = Order.DEADLINE
    queued_max: int = 100_000
    """Requests in all lanes; beyond it the least important newest is shed."""
    prefix_groups_max: int = 4096
    """Prefix groups a replica remembers, least recently used forgotten first; 0: no prefix cache."""
    replicas_max: int = 4096
    seed: int = 0


class ReplicaReadings(msgspec.Struct, frozen=True):
    """What a scrape of one replica would show at one instant."""

    waiting: int
    running: int
    kv_usage: float
    """Blocks taken ÷ blocks, net of preemptible tiers where the driver asks for that."""
    queued_tokens: int
    live_tokens: int
    busy_s: float
    """Seconds in which a step ran, since the replica was added; its difference is what a GPU-utilisation meter shows."""
    preemptions: int
    passes: int = 0
    """Forward passes that ended since the replica was added, and below what they took and did, all told; of all tiers."""
    passes_s: float = 0.0
    prefilled_tokens: int = 0
    kv_tokens_read: int = 0


class TierTotals(msgspec.Struct, frozen=True):
    """Counters since the start of the run, one tier."""

    arrived: int = 0
    arrived_prompt_tokens: int = 0
    arrived_output_tokens: int = 0
    completed: int = 0
    completed_output_tokens: int = 0
    shed: int = 0
    cut: int = 0
    """Answers that were under way when their replica was stopped or crashed (after their first token)."""
    retried: int = 0
    """Requests that lost their replica before their first token and went back to the head of their lane."""
    ttft_met: int = 0
    ttft_missed: int = 0
    """First tokens too late; shed requests are missed too, and are counted here."""
    itl_met: int = 0
    itl_missed: int = 0
    both_met: int = 0
    """Completed with TTFT and ITL both kept."""
    preempted: int = 0
    waiting: int = 0
    """A gauge: in the lane now."""
    waiting_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that a replica had cached when it was given the request."""


class Minute(msgspec.Struct, frozen=True, array_like=True):
    """One row of the timeline, ``at_s`` its end; counts are of the time since the row before."""

    at_s: float
    arrived: int
    arrived_tokens: int
    both_met: int
    missed: int
    """Interactive-like (not preemptible) requests that missed TTFT or ITL or were shed."""
    shed: int
    lanes_waiting: int
    engines_waiting: int
    running: int
    kv_usage: float
    gpu_usage: float
    ttft_p95_s: float
    itl_p95_s: float
    desired: int
    ready: int
    starting: int
    draining: int
    reason: str
    """The binding term."""
    because: str = ""
    """Its sentence, with the numbers it was computed from."""


class NearFaults(msgspec.Struct, frozen=True):
    """Requests with a promise that ended in a run (``judged``), those that missed it, and of both what fell within reach of faults."""

    missed: int
    judged: int
    missed_near: int
    judged_near: int


class TierResult(msgspec.Struct, frozen=True):
    """What a tier got over a run; quantiles in seconds."""

    totals: TierTotals
    ttft_attainment: float
    """First tokens in time ÷ requests that arrived (and should have had one)."""
    itl_attainment: float
    both_attainment: float
    ttft_s: dict[str, float] = {}
    """By quantile name: p50, p90, p95, p99, mean, max."""
    itl_s: dict[str, float] = {}
    """Over tokens: times between consecutive tokens."""
    tpot_s: dict[str, float] = {}
    """Over requests: their mean inter-token times."""
    wait_s: dict[str, float] = {}


class RunResult(msgspec.Struct, frozen=True):
    """One policy over one trace and seed."""

    policy: str
    seed: int
    duration_s: float
    requests: int
    tiers: dict[str, TierResult]
    gpu_hours: float
    gpu_hours_by_state: dict[str, float]
    """starting, ready, draining, failed; where warm nodes may be held also warm, at their share of the price."""
    cost_usd: float
    replicas_mean: float
    replicas_peak: int
    scale_actions: int
    """Changes of the desired count."""
    reversals: int
    """Changes of direction within 30 minutes of the change before."""
    starts: int
    breaches: int
    """Runs of consecutive minutes in which attainment (both, not preemptible tiers) was under the promise."""
    longest_breach_s: float
    preemptions: int
    alerts: dict[str, int]
    """Times each kind of alert began."""
    first_alert_s: dict[str, float]
    decisions: int
    decide_s: float
    """Seconds of CPU inside ``decide``."""
    wall_s: float
    """Seconds the run took, decisions excluded."""
    timeline: tuple[Minute, ...] = ()
    notes: tuple[str, ...] = ()
    witnessed: tuple[tuple[float, Decision], ...] = ()
    """``(moment_s, decision)``: what was in force at the times that were asked about."""
    near_faults: NearFaults | None = None


class ColdStartModel(msgspec.Struct, frozen=True):
    """How long starts take. Stages vary lognormally with ``cv``; weights share ``bandwidth_bytes_per_s`` among concurrent pulls."""

    provision_s: float
    weights_bytes: float
    init_s: float
    cv: float = 0.0
    node_bandwidth_bytes_per_s: float = 1.5e9
    """What one puller can take at most."""
    shared_bandwidth_bytes_per_s: float | None = None
    """The registry's, shared by all pulls of the fleet; None: as much as anyone wants (a regional cache)."""
    peer_to_peer: bool = False
    """Each ready replica serves the weights too, with its node's bandwidth."""
    starts_max: int | None = None
    """Starts under way at once; None: the policy's own limit only."""

    @property
    def unshared_s(self) -> float:
        """A start that shares nothing and varies not."""
        return self.provision_s + self.weights_bytes / self.node_bandwidth_bytes_per_s + self.init_s


class MetricFault(msgspec.Struct, frozen=True):
    """Metrics of ``share`` of the sources are wrong between the two times: ``error`` | ``empty`` | ``frozen`` | ``nan`` | ``renamed``."""

    kind: str
    from_s: float
    until_s: float
    share: float = 1.0


class Outage(msgspec.Struct, frozen=True):
    """At ``at_s`` ``replicas`` (a number, or a share below 1) are lost: ``kind`` is ``crash`` or ``reclaim`` (spot, with notice)."""

    kind: str
    at_s: float
    replicas: float
    notice_s: float = 0.0


class Shortage(msgspec.Struct, frozen=True):
    """Between the two times no more than ``replicas_max`` nodes can be had: starts beyond it stay requested."""

    from_s: float
    until_s: float
    replicas_max: int


class Actuator(msgspec.Struct, frozen=True):
    """What stands between decision and fleet: ``direct``, or an ``hpa`` (also KEDA's, above zero) fed with the decision as a metric."""

    kind: str = "direct"
    sync_s: float = 15.0
    tolerance: float = 0.1
    up_stabilisation_s: float = 0.0
    """Up to the lowest, down to the highest recommendation of so long."""
    down_stabilisation_s: float = 300.0
    up_percent: float = 1.0
    up_replicas: int = 4
    period_s: float = 15.0
    polling_s: float = 30.0
    """KEDA's own polling, for 0 ↔ 1."""
    cooldown_s: float = 300.0
    steered: bool = True
    """The victims are those with the fewest live tokens, by their pods' deletion cost; else Kubernetes' own choice, the newest."""


class Scenario(msgspec.Struct, frozen=True):
    """The world one policy is played in, beside its arrivals."""

    rules: FleetRules
    cold_start: ColdStartModel
    duration_s: float
    start_wall_s: float = 0.0
    """Unix time of second 0: calendars and seasons hang on it."""
    interval_s: float = 15.0
    """A decision each."""
    initial_replicas: int = 1
    initial_warm: bool = True
    """Whether those have served for long; else all have just been started, and their warm-up is still to come."""
    min_replicas: int = 1
    max_replicas: int = 100
    scrape_delay_s: float = 0.0
    """Age of the readings a decision sees."""
    drain_s_max: float = 600.0
    promise_attainment: float = 0.99
    history_bucket_s: float = 300.0
    timeline_s: float = 60.0
    actuator: Actuator = Actuator()
    metric_faults: tuple[MetricFault, ...] = ()
    outages: tuple[Outage, ...] = ()
    shortages: tuple[Shortage, ...] = ()
    crashes_per_replica_day: float = 0.0
    gpu_hour_usd: float = 0.0
    seed: int = 0
    warm_max: int = 0
    """Warm nodes that may be held at most, whatever a decision says."""
    warm_share: float = 1.0
    """GPU-hours that one GPU-hour of a warm node counts as."""


class PolicySummary(msgspec.Struct, frozen=True):
    """One line of `forebay compare`: means over seeds, and half-widths of 95 % confidence where there are several."""

    name: str
    gpu_hours: float
    vs_clairvoyant: float | None
    ttft_attainment: Mapping[str, float]
    itl_attainment: Mapping[str, float]
    both_attainment: Mapping[str, float]
    shed: int
    truncated: int
    scale_actions: int
    reversals_per_day: float
    breaches: int
    longest_breach_s: float
    preemptions: int
    cost_usd: float
    saved_vs_static_usd: float | None
    holds_slo: bool
    confidence: Mapping[str, float] = {}
