"""What controller and gateways tell each other: rosters down, acknowledgements and snapshots up, once a second.

A roster is the whole truth for one instant, versioned under a leader's term, so that a late or repeated message can
do no harm: a gateway applies the newest (term, version) it has seen. An engine is told to stop only after every
gateway has acknowledged a roster without it, or that gateway's lease has run out.
"""

from enum import StrEnum

import msgspec

from forebay.domain.due import Due
from forebay.domain.usage import UsageBatch, UsageMark


class Posture(StrEnum):
    """What admission should do with work that can't start at once."""

    OPEN = "open"
    SHED_PREEMPTIBLE = "shed_preemptible"
    SHED_LOW = "shed_low"
    HOLD_PREEMPTIBLE = "hold_preemptible"
    """Preemptible work waits, whatever room there is: a scheduled event is about to need it."""

    @property
    def sheds(self) -> bool:
        """It refuses something."""
        return self in (Posture.SHED_PREEMPTIBLE, Posture.SHED_LOW)


class Capacity(msgspec.Struct, frozen=True):
    """The three budgets of one replica, and its pace, as admission uses them."""

    kv_tokens: int
    """What may be booked at once: the engine's own, corrected by how what it holds compares with what was booked."""
    sequences: int
    prefill_tokens: int
    """Bound on outstanding uncached prefill tokens: the TTFT share of the SLO × the prefill rate."""
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    """Output tokens per second of a full replica at its SLO; ``Retry-After`` is computed from it."""
    context_tokens: int
    itl_s: float = 0.0
    """The promise that a decode step has to keep; 0: none that a step's time is known for."""
    step_base_s: float = 0.0
    """A decode step takes this, and for each sequence and each KV token:"""
    step_per_sequence_s: float = 0.0
    step_per_kv_token_s: float = 0.0
    paced: bool = True
    """Whether the paces are known of the hardware; else they are permissive guesses, and nobody's wait is foretold by them."""
    kv_tokens_alone: int = 0
    """What one request may take that runs there alone: never corrected. 0: as many as ``kv_tokens``."""


class RosterReplica(msgspec.Struct, frozen=True):
    """One replica that gateways may use. A draining one is simply absent."""

    id: str
    url: str
    capacity: Capacity
    gateway: str = ""
    """Under leases: the one gateway that may give permits on it; empty: none may at this instant."""


class RosterPool(msgspec.Struct, frozen=True):
    """The replicas of one pool, what admission should do, and when more capacity is expected."""

    pool: str
    replicas: tuple[RosterReplica, ...]
    posture: Posture = Posture.OPEN
    next_ready_in_s: float | None = None
    """World seconds until the next pending replica is expected ready; None if none is on the way."""
    asking: int = 0
    """Engines that are not among the replicas since they ask for a key that they aren't shown."""


class Roster(msgspec.Struct, frozen=True, tag="roster"):
    """Everything a gateway may route to."""

    term: int
    version: int
    lease_s: float
    """A gateway that has not been heard for this long (world seconds) no longer holds back a stop."""
    pools: tuple[RosterPool, ...]
    leased: bool = False
    """There may be several gateways: each uses only what is leased to it. False: a gateway uses every replica."""


class LimitUse(msgspec.Struct, frozen=True, array_like=True):
    """One limit of one team at one of several gateways, which divide it. Units are the limit's own: requests or tokens."""

    team: str
    cap: str
    limit: int
    """Over all gateways, as this one's configuration has it."""
    units: int
    """Its share: what it lets in at most."""
    used: int
    """In flight of it, which may be more than a share that has just shrunk; 0 for a limit per minute."""
    wants: int
    """What its clients ask for, whether they get it or not."""
    largest: int
    """The largest request of the last minute."""
    freed: float = 0.0
    """What was left of a minute's worth that its share has no more place for, since it was last told."""


class SharesUsed(msgspec.Struct, frozen=True):
    """All limits at one gateway at one instant."""

    session: float
    """See `Hello`."""
    seen: int
    """The last ``SharesGiven.version`` of this connection that it goes by."""
    rows: tuple[LimitUse, ...]


class LimitShare(msgspec.Struct, frozen=True, array_like=True):
    """So many units of a team's limit are this gateway's from now on; ``fill`` of a minute's worth come with them."""

    team: str
    cap: str
    units: int
    fill: float = 0.0


class SharesGiven(msgspec.Struct, frozen=True):
    """The shares that change; others stay as they are."""

    version: int
    rows: tuple[LimitShare, ...]


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A gateway's first words on a new connection."""

    gateway: str
    url: str = ""
    """Where other gateways forward requests to it; empty: it takes none, and is leased nothing."""
    holds: tuple[str, ...] = ()
    """Replicas that it gives permits on: a controller that has just started knows of no leases but these and those it stored."""
    session: float = 0.0
    """Another one for each connection of a process: what is read late of the one before is known by it."""
    continues: bool = False
    """It takes the rest of an answer that another gateway began, and leaves the counting to that one. Older ones would count it too."""


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    """``gateway`` routes by this roster from now on."""

    gateway: str
    term: int
    version: int


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """``gateway`` has drained and leaves for good: its silence from now on is not an outage."""

    gateway: str


class LaneLoad(msgspec.Struct, frozen=True):
    """One lane of one pool: what waits."""

    tier: str
    preemptible: bool
    waiting: int
    waiting_tokens: int
    oldest_wait_s: float
    due: tuple[Due, ...] = ()
    """Of a preemptible tier: how many of those that wait must have been started by when, the soonest first. Older gateways tell nothing."""


class ReplicaLoad(msgspec.Struct, frozen=True):
    """What this gateway has in flight on one replica."""

    replica: str
    streams: int
    kv_tokens: int
    preemptible_streams: int = 0
    preemptible_kv_tokens: int = 0
    kv_tokens_least: int | None = None
    """Of ``kv_tokens``, what the engine must be holding: no prompt that may not be prefilled yet, nothing that may be shared. None:
    an older gateway, which does not tell."""
    kv_tokens_most: int | None = None
    """``kv_tokens`` with what may have come by now of answers that tell nothing until their end."""


CORRECTED_BUCKET_S = 300
CORRECTED_BUCKETS_MAX = 12
"""What a request took is told for the hour before it ended: of one that ran for longer, the estimate stays."""


class Corrected(msgspec.Struct, frozen=True, array_like=True):
    """What requests took, less what was estimated as they came: of those that came in one span and have ended."""

    start_unix_s: int
    """Of the CORRECTED_BUCKET_S in which they came."""
    prompt_tokens: int
    output_tokens: int


class TierCounts(msgspec.Struct, frozen=True):
    """Counters since the gateway started, of one (pool, tier); differences of two snapshots are rates.

    What was refused at a limit of its team is in none of them: no replica would serve it.
    """

    tier: str
    preemptible: bool
    arrived: int
    arrived_prompt_tokens: int
    arrived_output_tokens: int
    """Estimated output tokens of what arrived."""
    completed: int
    shed: int
    failed: int
    truncated: int
    ttft_met: int
    ttft_missed: int
    completed_output_tokens: int | None = None
    """Of the answers that are completed. None: an older gateway, which does not count them."""
    itl_met: int = 0
    itl_missed: int = 0
    """Streams that ended, by their mean inter-token time: over the pool's promise, or broken off, is missed."""
    corrected: tuple[Corrected, ...] = ()
    """By the spans in which they came, the newest CORRECTED_BUCKETS_MAX."""


class PoolLoad(msgspec.Struct, frozen=True):
    """One pool as one gateway sees it."""

    pool: str
    lanes: tuple[LaneLoad, ...]
    replicas: tuple[ReplicaLoad, ...]
    counts: tuple[TierCounts, ...]
    ejected: tuple[str, ...] = ()
    """Replicas of the roster that it gives no requests."""


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """One gateway at one instant."""

    gateway: str
    at_s: float
    """The gateway's own world clock: the receiver stamps its own time."""
    term: int
    version: int
    pools: tuple[PoolLoad, ...]
    shares: SharesUsed | None = None
    """Of teams' limits, under leases. None: an older gateway, which holds all of each limit for its own."""
    refused: str = ""
    """What is wrong with the configuration file, where that is not what it serves by."""


class Finished(msgspec.Struct, frozen=True):
    """One request's decision record, as its gateway tells it."""

    id: str
    team: str
    ended_unix_s: float
    unusual: bool
    """It did not go as it should, or slowly: kept apart from those that are only a sample."""
    record: msgspec.Raw
    """JSON: the gateway's to make, and whoever reads it to understand."""


class FinishedRequests(msgspec.Struct, frozen=True, tag="finished"):
    """Records to be kept, of requests that have ended."""

    gateway: str
    requests: tuple[Finished, ...]


class PeerPool(msgspec.Struct, frozen=True):
    """One pool at another gateway."""

    pool: str
    replicas: int
    """Leased to it, and in routing there."""
    wait_s: float
    """What waits there ÷ the pace of those replicas (world seconds)."""
    tokens_per_s: float
    """That pace."""
    ejected: int = 0
    """Leased to it too, and given no requests there. Older controllers count these among the ``replicas``."""


class Peer(msgspec.Struct, frozen=True):
    """Another gateway, as the controller knows it."""

    gateway: str
    url: str
    pools: tuple[PeerPool, ...]
    continues: bool = False
    """See `Hello`."""


class Residue(msgspec.Struct, frozen=True):
    """What others still have in flight on a replica that is the receiver's now: it ends by itself, and takes no more."""

    replica: str
    streams: int
    kv_tokens: int


class Heard(msgspec.Struct, frozen=True, tag="heard"):
    """The controller's answer to a snapshot: under leases it renews the gateway's, and tells it of the others."""

    said_s: float
    """``at_s`` of the snapshot that it answers: the gateway's own time, so that no two clocks are compared."""
    hop_key: str
    """Shown by gateways that forward a request to one another."""
    peers: tuple[Peer, ...]
    residues: tuple[Residue, ...] = ()
    shares: SharesGiven | None = None
    """None: an older controller, which divides no limits."""


FromGateway = Hello | Ack | Snapshot | Bye | UsageBatch | FinishedRequests
ToGateway = Roster | UsageMark | Heard
