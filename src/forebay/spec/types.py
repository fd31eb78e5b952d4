"""What the user declares, decoded: frozen values in SI units. `spec.decode` makes them from YAML, or says why not.

The platform owns policy (this file's root); product teams own their tiers, weights and keys in ``teams/*.yaml``, only
within the bounds that the platform's file grants.
"""

import datetime

import msgspec

from forebay.domain.profile import Profile


class Hardware(msgspec.Struct, frozen=True):
    """A device shape that can be rented."""

    name: str
    memory_bytes: int
    gpus: int = 1
    gpu_hour_usd: float = 0.0


class Model(msgspec.Struct, frozen=True):
    """What a client names in a request. ``aliases`` are further names for it."""

    name: str
    context_tokens: int = 8192
    aliases: tuple[str, ...] = ()
    context_written: bool = True
    """The configuration says so; else it is a profile's, or the default."""


class Slo(msgspec.Struct, frozen=True):
    """The pool's promise: shape the capacity per replica is computed for."""

    ttft_s: float = 1.0
    itl_s: float = 0.05
    attainment: float = 0.99


class Tier(msgspec.Struct, frozen=True):
    """The promise made to a request. Lower ``rank`` goes first; preemptible tiers are a reason to scale by their longest wait alone."""

    name: str
    rank: int
    ttft_s: float
    longest_wait_s: float
    preemptible: bool = False
    min_share: float = 0.05
    """Fraction of the tokens that it is given while it waits, however much comes of more important tiers. Nothing for the top tier."""
    idle_s: float | None = None
    """Longest silence of an engine inside an answer; None: the gateway's ``limits``."""
    total_s: float | None = None
    """Longest answer; None: the gateway's ``limits``."""
    aliases: tuple[str, ...] = ()
    """Further values of a request's ``service_tier`` that mean it."""


class TeamLimits(msgspec.Struct, frozen=True):
    """What a team may have, over all pools and gateways; None: as much as it gets. Tokens are prompt and output."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    requests_in_flight: int | None = None
    """Inside the gateway, waiting or running."""
    tokens_in_flight: int | None = None


class Spill(msgspec.Struct, frozen=True):
    """Somebody else's OpenAI-compatible engines, for what a pool can't start in time: another region, or a provider."""

    name: str
    url: str
    """Up to and with ``/v1``."""
    model: str = ""
    """What it is called there; empty: as here."""
    key_env: str = ""
    """The environment variable of the gateway that holds its API key."""
    region: str = ""
    """Teams with a ``residency`` only go where it is one of theirs."""
    usd_per_hour: float = 0.0
    prompt_usd_per_mtok: float = 0.0
    output_usd_per_mtok: float = 0.0
    streams_max: int = 64


class Overflow(msgspec.Struct, frozen=True):
    """Where requests of a pool go that would wait longer than ``…_after_s``: a smaller sibling first, then other people's engines."""

    degrade_to: str = ""
    """A model that another pool serves; empty: none."""
    degrade_after_s: float = 5.0
    spill: tuple[Spill, ...] = ()
    """In order of preference."""
    spill_after_s: float = 15.0


class LongContext(msgspec.Struct, frozen=True):
    """Where requests of a pool go of which more than ``above_tokens`` have to be prefilled."""

    pool: str
    """Serves the same model."""
    above_tokens: int = 32_000


class Estimate(msgspec.Struct, frozen=True):
    """How the size of a prompt is told before it runs."""

    tokenizer: str = ""
    """Path of the model's ``tokenizer.json``; empty: from bytes."""
    image_tokens: int = 1000
    """Of each image."""
    audio_tokens_per_s: float = 25.0


class Team(msgspec.Struct, frozen=True):
    """Who is charged. A key is ``(secret, tier)``: the tier is the default of requests made with it."""

    name: str
    keys: tuple[tuple[str, str], ...]
    weight: float = 1.0
    tiers: tuple[str, ...] = ()
    """Tiers this team may use (``service_tier`` in a request may lower, never raise); empty: all."""
    promises: tuple[Tier, ...] = ()
    """The tiers for which this team has a promise (TTFT, longest wait) of its own, whole: name and rank are the platform's."""
    overflow: tuple[str, ...] = ()
    """What may be done with its requests rather than refuse them: ``degrade``, ``spill``. Empty: neither."""
    residency: tuple[str, ...] = ()
    """Regions its requests may be served in; empty: any. A pool that names no region is in all."""
    limits: TeamLimits = TeamLimits()


class EngineKey(msgspec.Struct, frozen=True):
    """Where the key stands that the engine at ``url`` asks for: in an environment variable or a file, or nowhere. Never the key."""

    url: str
    key_env: str = ""
    key_file: str = ""


class EngineKind(msgspec.Struct, frozen=True):
    """How a pool's engines come to be: started from ``command``, or attached at URLs that already run.

    ``kind``: ``emulated`` | ``command`` | ``attach``. In ``command`` (an argument list) ``{port}``, ``{replica}``,
    ``{model}`` and ``{speed}`` are filled in.
    """

    kind: str
    command: tuple[str, ...] = ()
    attach: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    metrics: str = "vllm"
    """Whose metric names the engine's page uses: ``vllm`` | ``llamacpp``."""
    health_path: str = "/health"
    continues: bool | None = None
    """Whether an answer that is cut is continued on another replica, from the token ids that vLLM tells
    (``return_token_ids``). None: where the engine's metrics are vLLM's."""
    abort_by_id: bool = False
    """Whether an engine that doesn't notice a client's leaving is told by ``POST /abort_requests``, as vLLM takes it."""
    key_env: str = ""
    """The environment variable that holds the key which its engines ask for…"""
    key_file: str = ""
    """…or the file, where an engine has none of its own in…"""
    keys: tuple[EngineKey, ...] = ()
    ready_timeout_s: float = 900.0
    stop_grace_s: float = 10.0
    """From SIGTERM to the second SIGTERM, and again to SIGKILL."""

    @property
    def tells_ids(self) -> bool:
        """Token ids may be asked of it."""
        return self.tells_running_usage if self.continues is None else self.continues

    @property
    def tells_running_usage(self) -> bool:
        """It knows ``continuous_usage_stats``."""
        return self.metrics == "vllm"


class Scaling(msgspec.Struct, frozen=True):
    """Every threshold of the policy; defaults are the field's, and what the benchmarks' traces taught."""

    min_replicas: int = 1
    max_replicas: int = 1
    spare_replicas: int = 0
    interval_s: float = 1.0
    out_waiting_per_replica: float = 3.0
    out_waiting_for_s: float = 60.0
    out_kv_usage: float = 0.85
    in_kv_usage: float = 0.50
    in_calm_s: float = 900.0
    in_step_fraction: float = 0.10
    in_margin: float = 0.15
    """N−1 replicas must hold the load with this fraction to spare."""
    in_known_fraction: float = 0.95
    in_step_every_s: float = 60.0
    """Least time between two steps of a scale-in, once the calm has lasted."""
    noise_sigmas: float = 3.7
    """Chance that demand is allowed before it counts: arrivals within this many standard deviations prove nothing;
    0 trusts every reading."""
    buffer: bool = True
    ramp_per_s2: float = 0.0
    """Declared ramp: requests per second per second."""
    ramp_quantile: float = 0.95
    cold_start_s: float | None = None
    """Assumed until the first measured one; default: the profile's."""
    replica_rate_per_s: float | None = None
    """Requests per second one replica serves at its SLO; default: computed from the profile and shape."""
    prompt_tokens: int = 1000
    output_tokens: int = 200
    """The declared shape, used until traffic shows its own."""
    starts_max: int = 4
    """Concurrent starts: weights share bandwidth."""
    drain_s_max: float = 600.0
    pending_alert_s: float = 300.0
    unknown_alert_s: float = 90.0
    """With the half minute after which a page that stands still gives itself away, every outage is told within two minutes."""
    forecast: bool = True
    """Hold what demand will be worth when a start is over, once there is an hour of history."""
    forecast_calm_s: float | None = None
    """The calm before a scale-in where the forecast sees as far as a start takes; default: two cold starts, from one minute to five."""
    forecast_timezone: str = "UTC"
    """Whose clock the pool's days follow: the same hour of past days is meant in it."""
    miss_usd: float | None = None
    """What a replica-hour of requests not served in time costs; default: the fair price (`scaling.economics`)."""
    idle_usd: float | None = None
    """What an idle replica-hour costs; default: the replica's price."""
    start_share: float | None = None
    """The band about the price of a miss: from price × (1 - it), which starts a replica, to price ÷ (1 - it), which lets one go.

    Default: by the cold start, and wider where the forecast hardly strays (`scaling.economics`)."""
    domains: int = 1
    """Failure domains the replicas are spread over; one of them may fail. 1: nothing is spared for that."""
    budget_usd_per_hour: float | None = None
    ask_above: int | None = None
    """Growth within an hour, in replicas, that nobody has to approve; None: any."""
    ask_above_usd: float | None = None
    """The same in US dollars an hour."""
    approved_replicas: int = 0
    """Up to this many are approved already."""
    warm_max: int = 0
    """Most warm nodes, provisioned and without an engine; how many are worth it, `scaling.warm` says. 0: none."""
    warm_share: float = 1.0
    """Price of a warm node ÷ that of a running replica."""


class CalendarEntry(msgspec.Struct, frozen=True):
    """A scheduled minimum. ``days``: 0 = Monday; ``start_s``/``end_s``: seconds of the local day (end may pass midnight)."""

    name: str
    pools: tuple[str, ...]
    days: tuple[int, ...]
    start_s: float
    end_s: float
    timezone: str
    min_replicas: int
    date: str = ""
    """The one day it begins on, such as 2026-11-27, in place of ``days``; empty: week by week."""

    def begins_on(self, day: datetime.date) -> bool:
        """Whether a window begins on ``day`` (of the entry's own time zone)."""
        return day.isoformat() == self.date if self.date else day.weekday() in self.days


class Pool(msgspec.Struct, frozen=True):
    """The replicas that serve one model on one profile, with one scaling policy."""

    name: str
    model: str
    engine: EngineKind
    profile: Profile | None = None
    """None only for attached engines: their capacity is read from the engines, within defaults."""
    slo: Slo = Slo()
    scaling: Scaling = Scaling()
    queued_max: int = 10_000
    adapters: tuple[str, ...] = ()
    """Names of LoRA adapters that engines of the pool have loaded: clients ask for them as for models."""
    labels: tuple[tuple[str, str], ...] = ()
    overflow: Overflow = Overflow()
    estimate: Estimate = Estimate()
    long_context: LongContext | None = None
    region: str = ""
    """Where it is: teams with a ``residency`` are served there only if it is one of theirs; empty: nobody minds."""
    prefix_routing: bool = True
    """Requests go where their prompt's beginning was sent before, within a bound of load."""


class Limits(msgspec.Struct, frozen=True):
    """Bounds of the gateway: every buffer and queue has one."""

    body_bytes_max: int = 8 * 2**20
    """Held, so that it can be sent again; larger ones are passed on as they come, and can't."""
    streamed_body_bytes_max: int = 64 * 2**20
    bodies_bytes_max: int = 512 * 2**20
    """All bodies held at once."""
    head_bytes_max: int = 64 * 2**10
    connections_max: int = 20_000
    client_buffer_bytes_max: int = 256 * 2**10
    idle_s: float = 600.0
    """Longest silence of an engine inside a response (world seconds)."""
    total_s: float = 7200.0
    drain_s: float = 120.0
    """How long the gateway waits for its streams at SIGTERM."""


class Listen(msgspec.Struct, frozen=True):
    """Host and port; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 0


class Tls(msgspec.Struct, frozen=True):
    """Files in PEM that the gateway's connections are encrypted by. ``cert`` has the whole chain."""

    cert: str
    key: str


class Spec(msgspec.Struct, frozen=True):
    """A whole ``forebay.yaml`` with its team files."""

    pools: tuple[Pool, ...]
    models: tuple[Model, ...]
    tiers: tuple[Tier, ...]
    teams: tuple[Team, ...] = ()
    """Empty: no keys are asked for, and everything is charged to the team ``anonymous`` at the top tier."""
    hardware: tuple[Hardware, ...] = ()
    calendar: tuple[CalendarEntry, ...] = ()
    gateway: Listen = Listen(port=8080)
    tls: Tls | None = None
    """None: clients speak plain HTTP."""
    gateways: int = 1
    own_port: int = 0
    """Of the first gateway's own address, where several share one; the others' follow. 0: free ones."""
    """Processes of `forebay up` that share the address."""
    relay_workers: int = 0
    """Processes behind each gateway that streams are lent to; 0: it relays them itself."""
    join: Listen | None = None
    """Where gateways on other machines join; None: there are none."""
    join_secret_env: str = ""
    """Name of the environment variable with what gateways and controller prove to each other; empty: nothing is proved."""
    admin: Listen = Listen(port=8081)
    limits: Limits = Limits()
    state_dir: str = ".forebay"
    webhook: str = ""
    speed: float = 1.0

    @property
    def leases(self) -> bool:
        """Whether there may be several gateways, which share replicas by leases."""
        return self.gateways > 1 or self.join is not None

    def pool(self, name: str) -> Pool:
        """The pool called ``name``; raises KeyError."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)

    def tier(self, name: str, team: str = "") -> Tier:
        """The tier called ``name`` as promised to ``team``: its own promise, or else the platform's; raises KeyError."""
        own = next((each.promises for each in self.teams if each.name == team), ())
        for tier in (*own, *self.tiers):
            if tier.name == name:
                return tier
        raise KeyError(name)


DEFAULT_TIERS = (
    Tier("interactive", rank=0, ttft_s=1.0, longest_wait_s=30.0),
    Tier("standard", rank=1, ttft_s=5.0, longest_wait_s=120.0, min_share=0.1),
    Tier("batch", rank=2, ttft_s=3600.0, longest_wait_s=86_400.0, preemptible=True),
)
