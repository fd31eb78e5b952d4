"""The configuration, as tables: what may be written where, what it means, and which field of `spec.types` it fills.

The decoder, the JSON Schema and the reference in docs/configuration.md are all made from these tables.
"""

from forebay.domain.profile import Profile
from forebay.spec import formats
from forebay.spec.fields_engine import ATTACHED, ENGINE, LOOSE_TEXT
from forebay.spec.fields_estimate import ESTIMATE, LONG_CONTEXT
from forebay.spec.fields_keys import POOL_KEY_MISTAKES
from forebay.spec.fields_overflow import OVERFLOW, REGION
from forebay.spec.fields_profile import COLD_START, SPREAD, STEP, WARM_UP
from forebay.spec.fields_scaling import REPLICAS_MAX, SCALING, TOKENS_MAX
from forebay.spec.kinds import Choice, Flag, Number, Text, Whole, duration, size
from forebay.spec.records import Either, Field, ListOf, MapOf, Record
from forebay.spec.types import CalendarEntry, Hardware, Limits, Model, Pool, Slo, Spec, Team, TeamLimits, Tier, Tls

_COUNT = 10**9
WEIGHT_LEAST = 0.001
"""What a team was given is divided by it: by next to nothing that is more than a number holds, and the order of who goes next is lost."""
_URL = Text("a URL with http:// or https://", r"https?://[^\s/]+\S{0,2000}", "http://127.0.0.1:9093/hook")


def _name(example: str) -> Text:
    return Text("a name: letters, digits, . _ and -", r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", example)


POOL_NAME = _name("chat")
TIER_NAME = _name("interactive")
TEAM_NAME = _name("search")
PROFILE_NAME = _name("llama-3.1-8b-h100")
HARDWARE_NAME = _name("h100")
MODEL_NAME = Text("a model's name: letters, digits, . _ : / @ + and -", r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}", "llama-3.1-8b")
GRANT_NAME = Text("a team's name, or * for any other", r"\*|[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "search")
SECRET = Text("a key of 8 to 256 visible characters", r"[!-~]{8,256}", "sk-demo-interactive", secret=True)

SLO = Record(
    "slo",
    "The pool's promise. What one replica can serve is computed for it.",
    (
        Field("ttft", duration(above=True, example="1s"), "Time to first token.", "ttft_s"),
        Field("itl", duration(above=True, example="50ms"), "Time between tokens.", "itl_s"),
        Field("attainment", Number(0, 1, above=True, example=0.99), "Fraction of requests that must get it.", "attainment"),
    ),
    Slo,
)

QUEUE = Record(
    "queue", "The pool's queue.", (Field("max", Whole(1, 10**6, 10_000), "Most requests that wait; more get 429.", "queued_max"),), Pool
)

ROUTING = Record(
    "routing",
    "How a replica of the pool is chosen.",
    (
        Field(
            "prefix",
            Flag(),
            "Prefer the one that was sent the same beginning before, if it isn't much more loaded; what running ones share counts once.",
            "prefix_routing",
        ),
    ),
    Pool,
)

POOL = Record(
    "pool",
    "The replicas that serve one model on one profile. Say how its engines come to be with `engine` or with `attach`.",
    (
        Field("model", MODEL_NAME, "What clients ask for.", "model", default="the only one of `models`, or the pool's name"),
        Field(
            "profile", PROFILE_NAME, "What one replica can do: a shipped profile or one of `profiles`. Only attached pools can do without."
        ),
        Field("hardware", HARDWARE_NAME, "One of `hardware`: its price replaces the profile's."),
        Field(
            "attach",
            ListOf(
                Either(f"{formats.ENGINE_URL.words}, or a mapping with url", formats.ENGINE_URL, mapping=ATTACHED),
                "a list of http://host:port",
                least=1,
            ),
            "Engines that already run; scaling only advises. Taken while Forebay runs.",
        ),
        Field("engine", ENGINE, ENGINE.doc),
        Field("slo", SLO, SLO.doc),
        Field("scaling", SCALING, SCALING.doc),
        Field("queue", QUEUE, QUEUE.doc),
        Field("routing", ROUTING, ROUTING.doc),
        Field("estimate", ESTIMATE, ESTIMATE.doc),
        Field("long_context", LONG_CONTEXT, LONG_CONTEXT.doc),
        Field("overflow", OVERFLOW, OVERFLOW.doc),
        Field(
            "adapters",
            ListOf(MODEL_NAME, "a list of names"),
            "LoRA adapters that engines of the pool have loaded: clients ask for them as for models.",
        ),
        Field("region", REGION, "Where its engines are: teams with a `residency` are served here only if it is one of theirs.", "region"),
        Field("labels", MapOf(_name("cluster"), LOOSE_TEXT, "label"), "Labels for your own use."),
    ),
    Pool,
    mistakes=POOL_KEY_MISTAKES,
)

MODEL = Record(
    "model",
    "What a client names in a request.",
    (
        Field(
            "context",
            Whole(1, TOKENS_MAX, 131_072),
            "Longest prompt and output together, in tokens.",
            "context_tokens",
            default="the profile's, or 8192",
        ),
        Field("aliases", ListOf(MODEL_NAME, "a list of names"), "Further names for it."),
    ),
    Model,
)
HARDWARE = Record(
    "hardware",
    "A device shape that can be rented.",
    (
        Field("memory", size(1, example="80GB"), "Memory of one GPU.", "memory_bytes", required=True),
        Field("gpus", Whole(1, 1024, 1), "GPUs of one node.", "gpus"),
        Field("price", Number(0, 1e5, example=3.0), "US dollars per GPU-hour.", "gpu_hour_usd"),
    ),
    Hardware,
)
PROFILE = Record(
    "profile",
    "What one replica can do. Give a `base` and what differs, or everything.",
    (
        Field("base", PROFILE_NAME, "A shipped profile, or one further up in this file."),
        Field("model", MODEL_NAME, "The model it was measured with.", "model"),
        Field("hardware", Text("text", example="H100"), "The device it was measured on.", "hardware"),
        Field("gpus", Whole(1, 1024, 1), "GPUs of one replica.", "gpus"),
        Field("step", STEP, STEP.doc),
        Field(
            "not_measured",
            ListOf(Choice(tuple(field.key for field in STEP.fields)), "a list of keys of `step`", most=len(STEP.fields)),
            "Of `step`, what measurements could not tell (`forebay calibrate` writes it): whatever is sized by it says so.",
            default="what the base says so of and this one does not set",
        ),
        Field("spread", SPREAD, SPREAD.doc, default="none: steps take exactly what the law says"),
        Field("warm_up", WARM_UP, WARM_UP.doc, default="none: the first steps are like all others"),
        Field("sequences", Whole(1, 100_000, 256), "Most sequences at once (vLLM: max_num_seqs).", "sequences_max"),
        Field("kv", Whole(1, _COUNT, 400_000), "KV cache, in tokens.", "kv_tokens"),
        Field("block", Whole(1, 4096, 16), "Tokens of one KV block.", "block_tokens"),
        Field("prefill_chunk", Whole(1, 10**6, 8192), "Token budget of a step (vLLM: max_num_batched_tokens).", "prefill_chunk_tokens"),
        Field("kv_per_token", size(1, example="131072B"), "KV cache of one token.", "kv_bytes_per_token"),
        Field("context", Whole(1, TOKENS_MAX, 131_072), "Longest sequence, in tokens (vLLM: max_model_len).", "context_tokens"),
        Field("cold_start", COLD_START, COLD_START.doc),
        Field("front_end", duration(example="8ms"), "HTTP, tokenising and scheduling before the first token.", "front_end_s"),
        Field("front_end_per_token", duration(example="20us"), "Detokenising and sending one token.", "front_end_per_token_s"),
        Field("price", Number(0, 1e5, example=3.0), "US dollars per GPU-hour.", "gpu_hour_usd"),
    ),
    Profile,
)
TIER = Record(
    "tier",
    "The promise made to a request. Tiers with a usual name (interactive, standard, batch) take what is left out from the defaults.",
    (
        Field("rank", Whole(0, 1000, 0), "Lower goes first; each tier has its own.", "rank"),
        Field("ttft", duration(above=True, example="1s"), "Time to first token.", "ttft_s"),
        Field("longest_wait", duration(above=True, example="30s"), "A request that would wait longer is refused.", "longest_wait_s"),
        Field(
            "preemptible",
            Flag(),
            "Gives its place up, to start anew or to go on with its stream later; a reason to scale only where it would expire.",
            "preemptible",
        ),
        Field(
            "min_share",
            Number(0, 0.5, example=0.05),
            "Fraction of the tokens started that it gets while it waits, whatever comes of tiers above it; nothing for the top tier.",
            "min_share",
        ),
        Field(
            "idle", duration(above=True, example="1m"), "Longest silence of an engine inside an answer.", "idle_s", default="`limits.idle`"
        ),
        Field("total", duration(above=True, example="1h"), "Longest answer.", "total_s", default="`limits.total`"),
        Field(
            "aliases",
            ListOf(TIER_NAME, "a list of names"),
            "Further values of a request's `service_tier` that mean it, such as OpenAI's `flex` and `priority`.",
        ),
    ),
    Tier,
)
PROMISE = Record(
    "promise",
    "A team's own promise within a tier; what is left out is the tier's.",
    (
        Field("ttft", duration(above=True, example="1s"), "Time to first token."),
        Field("longest_wait", duration(above=True, example="30s"), "A request that would wait longer is refused."),
    ),
)
KEY = Record(
    "key",
    "An API key.",
    (
        Field("key", SECRET, "The key itself, as the client sends it.", required=True),
        Field("tier", TIER_NAME, "Tier of requests made with it.", default="the team's highest"),
    ),
    secret=True,
)
TEAM_LIMITS = Record(
    "team limits",
    "What a team may have, over all pools and gateways; more gets 429 at once. Without one there is no limit but fairness.",
    (
        Field("requests_per_minute", Whole(1, _COUNT, 600), "Requests that come in a minute.", "requests_per_minute"),
        Field("tokens_per_minute", Whole(1, _COUNT, 200_000), "Prompt and output tokens in a minute.", "tokens_per_minute"),
        Field("requests_in_flight", Whole(1, _COUNT, 64), "Requests inside at once, waiting or running.", "requests_in_flight"),
        Field("tokens_in_flight", Whole(1, _COUNT, 500_000), "Their prompt and output tokens, as estimated.", "tokens_in_flight"),
    ),
    TeamLimits,
    mistakes=(
        ("rpm", 'did you mean "requests_per_minute"?'),
        ("tpm", 'did you mean "tokens_per_minute"?'),
        ("concurrency", 'did you mean "requests_in_flight"?'),
        ("max_parallel_requests", 'did you mean "requests_in_flight"?'),
    ),
)
TEAM = Record(
    "team",
    "Who is charged.",
    (
        Field("weight", Number(WEIGHT_LEAST, 1e6, example=1), "Its share beside other teams that wait in the same tier.", "weight"),
        Field(
            "tiers",
            Either(
                "a list of tiers, or a mapping of tiers to promises",
                sequence=ListOf(TIER_NAME, "a list of tiers"),
                mapping=MapOf(TIER_NAME, PROMISE, "tier"),
            ),
            "Tiers it may use; as a mapping, with promises of its own.",
            default="all",
        ),
        Field(
            "overflow",
            ListOf(Choice(("degrade", "spill")), "a list of degrade and spill", most=2),
            "What may be done with its requests rather than refuse them: answer by a smaller model, or send them to other engines "
            "(of the same model in another `region`, and those of `spill`).",
            default="neither",
        ),
        Field(
            "residency",
            ListOf(REGION, "a list of regions"),
            "Regions its requests may be served in: by pools that name a `region`, and by `spill`.",
            default="any",
        ),
        Field("limits", TEAM_LIMITS, TEAM_LIMITS.doc),
        Field("keys", ListOf(KEY, "a list of keys, each {key: …, tier: …}", most=10_000, secret=True), "API keys.", default="none"),
    ),
    Team,
)
TIER_GRANT = Record(
    "tier grant",
    "How far a team's own promise may go.",
    (
        Field("ttft_min", duration(above=True, example="500ms"), "No shorter time to first token than this.", default="the tier's `ttft`"),
        Field("longest_wait_max", duration(above=True, example="60s"), "No longer wait than this.", default="the tier's `longest_wait`"),
    ),
)
GRANT = Record(
    "grant",
    "What a team may set for itself in teams/*.yaml.",
    (
        Field(
            "tiers",
            MapOf(TIER_NAME, TIER_GRANT, "tier"),
            "Tiers it may use, and how far its own promises may go.",
            default="all tiers, as they are",
        ),
        Field("limits", TEAM_LIMITS, "Its limits; its own may only be lower.", default="none"),
        Field("weight_max", Number(WEIGHT_LEAST, 1e6, example=2), "Highest weight.", default="1"),
        Field("keys_max", Whole(0, 10_000, 10), "Most keys.", default="10"),
    ),
)
CALENDAR = Record(
    "calendar entry",
    "A scheduled minimum of replicas.",
    (
        Field("name", _name("office-hours"), "Shown by `forebay explain`.", "name", required=True),
        Field("pools", ListOf(POOL_NAME, "a list of pools", least=1), "Pools it holds for.", default="all"),
        Field(
            "days",
            Either(
                "all, weekdays, weekends, or a list of days",
                Choice(("all", "weekdays", "weekends", *formats.DAY_NAMES)),
                ListOf(Choice(formats.DAY_NAMES), "a list of days", 1, 7),
            ),
            "Days on which it begins.",
            default="all",
        ),
        Field("date", formats.DATE, "In place of `days`: the one day on which it begins, for what comes once.", "date"),
        Field("from", formats.TIME_OF_DAY, "When it begins.", "start_s", required=True),
        Field("to", formats.TIME_OF_DAY, "When it ends; earlier than `from` is on the next day.", "end_s", required=True),
        Field("timezone", formats.TIMEZONE, "Where these times hold.", default="UTC"),
        Field("min", Whole(1, REPLICAS_MAX, 6), "Never fewer replicas.", "min_replicas", required=True),
    ),
    CalendarEntry,
)
LIMITS = Record(
    "limits",
    "Bounds of the gateway.",
    (
        Field("body", size(1024, 2**30, "8MiB"), "Largest request body that is held, so that it can be tried elsewhere.", "body_bytes_max"),
        Field(
            "streamed_body",
            size(1024, 2**34, "64MiB"),
            "Largest request body; beyond `body` it is passed on as it comes.",
            "streamed_body_bytes_max",
        ),
        Field("bodies", size(1024, 2**40, "512MiB"), "All request bodies held at once.", "bodies_bytes_max"),
        Field("head", size(1024, 2**20, "64KiB"), "Largest request head.", "head_bytes_max"),
        Field("connections", Whole(1, 10**6, 20_000), "Most client connections.", "connections_max"),
        Field(
            "client_buffer",
            size(4096, 2**30, "256KiB"),
            "Held for a client that reads slowly; then its engine is paused.",
            "client_buffer_bytes_max",
        ),
        Field("idle", duration(above=True, example="10m"), "Longest silence of an engine inside an answer.", "idle_s"),
        Field("total", duration(above=True, example="2h"), "Longest answer.", "total_s"),
        Field("drain", duration(example="2m"), "How long SIGTERM waits for streams.", "drain_s"),
    ),
    Limits,
)
_FILE = Text("a file's path", r"[^\x00-\x1f]{1,4096}", "tls/cert.pem")
TLS = Record(
    "tls",
    "Clients connect by HTTPS. The files are read again when they change; paths are relative to this file.",
    (
        Field("cert", _FILE, "Certificate and chain, in PEM.", "cert", required=True),
        Field("key", _FILE, "Its private key, in PEM, without a passphrase.", "key", required=True),
    ),
    Tls,
)
GATEWAY = Record(
    "gateway",
    "Where clients connect.",
    (
        Field("listen", formats.LISTEN, "Port 0 takes a free one.", "gateway"),
        Field("tls", TLS, TLS.doc, default="plain HTTP"),
        Field("count", Whole(1, 16, 2), "Processes of `forebay up` that share the address, each with replicas of its own.", "gateways"),
        Field(
            "own_port",
            Whole(1, 65_520, 8090),
            "Port of the first gateway's own address (`/metrics`, `/health`), where several share `listen`; the others' are the next ones.",
            "own_port",
            default="free ones, anew at each start",
        ),
        Field("workers", Whole(0, 16, 2), "Relay processes behind each gateway, for more cores; 0: it relays itself.", "relay_workers"),
        Field("join", formats.LISTEN, "Where `forebay gateway --join` of other machines connects.", "join", default="nobody joins"),
        Field(
            "join_secret_env",
            Text("a variable's name", r"[A-Za-z_][A-Za-z0-9_]{0,127}", "FOREBAY_JOIN_SECRET"),
            "Environment variable of controller and gateways with a secret that each must know to be talked to.",
            "join_secret_env",
            default="whoever reaches `join` joins",
        ),
    ),
    Spec,
)
ADMIN = Record("admin", "Where operators connect.", (Field("listen", formats.LISTEN, "Port 0 takes a free one.", "admin"),), Spec)
ALERTS = Record(
    "alerts", "Where alerts go, besides the log.", (Field("webhook", _URL, "Gets a POST when an alert begins and ends.", "webhook"),), Spec
)

TEAMS = Field("teams", MapOf(TEAM_NAME, TEAM, "team"), "Teams and their API keys. Without any, no key is asked for.", default="none")
ROOT = Record(
    "forebay.yaml",
    "Everything but `pools` has a default.",
    (
        Field("pools", MapOf(POOL_NAME, POOL, "pool"), "The replicas.", required=True),
        Field("models", MapOf(MODEL_NAME, MODEL, "model"), "Models that clients may ask for.", default="those of the pools"),
        Field("hardware", MapOf(HARDWARE_NAME, HARDWARE, "hardware"), "Devices and prices.", default="none"),
        Field("profiles", MapOf(PROFILE_NAME, PROFILE, "profile"), "Profiles of your own, besides the shipped ones.", default="none"),
        Field("tiers", MapOf(TIER_NAME, TIER, "tier"), "Promises.", default="interactive, standard, batch"),
        TEAMS,
        Field("grants", MapOf(GRANT_NAME, GRANT, "team"), "What teams may set in teams/*.yaml beside this file.", default="nothing"),
        Field("calendar", ListOf(CALENDAR, "a list of scheduled minimums"), "Scheduled minimums.", default="none"),
        Field("gateway", GATEWAY, GATEWAY.doc),
        Field("admin", ADMIN, ADMIN.doc),
        Field("limits", LIMITS, LIMITS.doc),
        Field("state", Text("a folder", example=".forebay"), "Where history is kept.", "state_dir"),
        Field("alerts", ALERTS, ALERTS.doc),
        Field("speed", Number(0, 1000, above=True, example=1), "World seconds per real second; real engines need 1.", "speed"),
    ),
    Spec,
)
TEAM_FILE = Record(
    "teams/*.yaml", "A product team's file, within what `grants` allows.", (Field("teams", TEAMS.kind, TEAMS.doc, required=True),)
)
