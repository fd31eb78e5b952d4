"""The tables of `scaling:`: when a pool grows and shrinks, and what more or fewer replicas are worth."""

from forebay.spec import formats
from forebay.spec.kinds import Flag, Number, Whole, duration, ramp, rate
from forebay.spec.records import Field, Record
from forebay.spec.types import Scaling

REPLICAS_MAX = 10_000
TOKENS_MAX = 100_000_000
BAND_MAX = 0.95
"""At 1 nothing would ever be started, or let go."""
TOKENS = Whole(1, TOKENS_MAX, 1000)

SCALE_OUT = Record(
    "out",
    "When to add replicas.",
    (
        Field(
            "waiting_per_replica", Number(0, 1e6, above=True, example=3), "More waiting than this per replica …", "out_waiting_per_replica"
        ),
        Field("for", duration(example="60s"), "… for this long adds replicas.", "out_waiting_for_s"),
        Field("kv", Number(0, 1, above=True, example=0.85), "So does a KV cache fuller than this fraction.", "out_kv_usage"),
    ),
    Scaling,
)
SCALE_IN = Record(
    "in",
    "When to remove replicas: all of these must hold.",
    (
        Field("kv", Number(0, 1, example=0.5), "The KV cache is emptier than this fraction, and nothing waits …", "in_kv_usage"),
        Field("calm", duration(example="15m"), "… for this long.", "in_calm_s"),
        Field("step", Number(0, 1, above=True, example=0.1), "Remove at most this fraction at once (one at least).", "in_step_fraction"),
        Field("every", duration(example="1m"), "Least time between two such removals.", "in_step_every_s"),
        Field("margin", Number(0, 10, example=0.15), "The remaining replicas must hold the load with this fraction to spare.", "in_margin"),
        Field("known", Number(0, 1, above=True, example=0.95), "Fraction of replicas whose metrics must be known.", "in_known_fraction"),
    ),
    Scaling,
)
SHAPE = Record(
    "shape",
    "The size of a typical request, used until traffic shows its own.",
    (
        Field("prompt", TOKENS, "Prompt tokens.", "prompt_tokens"),
        Field("output", Whole(1, TOKENS_MAX, 200), "Output tokens.", "output_tokens"),
    ),
    Scaling,
)
FORECAST = Record(
    "forecast",
    "Demand at the end of a start, from the level, the seasons, and how far both were off before. Needs an hour of history.",
    (
        Field("on", Flag(), "Hold what that demand is worth.", "forecast"),
        Field(
            "calm",
            duration(example="5m"),
            "Replaces `in.calm` where the forecast sees as far as a start takes.",
            "forecast_calm_s",
            default="two cold starts, from 1m to 5m",
        ),
        Field(
            "timezone",
            formats.TIMEZONE,
            "Whose clock the users' days follow: where it is set forward or back, so is what is expected of an hour.",
            "forecast_timezone",
            default="UTC",
        ),
    ),
    Scaling,
)
PRICES = Record(
    "prices",
    "What to weigh: a replica is held while what it is expected to serve is worth more than its idle time.",
    (
        Field(
            "miss",
            Number(0, 1e6, above=True, example=24),
            "US dollars for a replica-hour of requests that are not served in time.",
            "miss_usd",
            default="the fair price: just the allowed share is expected to miss",
        ),
        Field(
            "idle",
            Number(0, 1e6, above=True, example=4),
            "US dollars for an idle replica-hour.",
            "idle_usd",
            default="the replica's price",
        ),
        Field(
            "band",
            Number(0, BAND_MAX, example=0.6),
            "One more is started at `miss` × (1 − band), one let go at `miss` ÷ (1 − band). Wider: fewer changes, a few more GPU-hours.",
            "start_share",
            default="0.42 to 0.65, by the cold start and the forecast's errors",
        ),
    ),
    Scaling,
)
ASK = Record(
    "ask",
    "Growth that somebody has to approve: until then the count is held there, with an alert.",
    (
        Field("above", Whole(0, REPLICAS_MAX, 10), "More replicas than this on top of the last hour's fewest.", "ask_above"),
        Field("usd", Number(0, 1e7, example=40), "The same in US dollars an hour.", "ask_above_usd"),
        Field("approved", Whole(0, REPLICAS_MAX, 40), "Approved: up to this many replicas nobody is asked.", "approved_replicas"),
    ),
    Scaling,
)
WARM = Record(
    "warm",
    "Warm nodes: provisioned already and without an engine, so that a start skips the node's part of it. In the lab and `plan size` only.",
    (
        Field("max", Whole(0, REPLICAS_MAX, 10), "Hold at most so many; how many is worked out by their worth.", "warm_max"),
        Field(
            "share",
            Number(0, 1, above=True, example=0.3),
            "Price of a warm node ÷ that of a running replica. At 1 a running one is never worse, and none is held.",
            "warm_share",
        ),
    ),
    Scaling,
)
SCALING = Record(
    "scaling",
    "How many replicas, and when that changes.",
    (
        Field("min", Whole(0, REPLICAS_MAX, 1), "Never fewer replicas.", "min_replicas"),
        Field(
            "max",
            Whole(1, REPLICAS_MAX, 4),
            "Never more replicas: the cost ceiling.",
            "max_replicas",
            default="the same as `min`, at least 1",
        ),
        Field("spare", Whole(0, REPLICAS_MAX, 0), "Replicas on top of demand, for the failure of as many.", "spare_replicas"),
        Field("domains", Whole(1, 1000, 3), "Failure domains that replicas are spread over; the rest serves if one fails.", "domains"),
        Field("budget", Number(0, 1e7, above=True, example=100), "US dollars an hour, never more.", "budget_usd_per_hour"),
        Field("ask", ASK, ASK.doc),
        Field("forecast", FORECAST, FORECAST.doc),
        Field("prices", PRICES, PRICES.doc),
        Field("interval", duration(least=0.1, example="1s"), "Time between two decisions.", "interval_s"),
        Field("out", SCALE_OUT, SCALE_OUT.doc),
        Field("in", SCALE_IN, SCALE_IN.doc),
        Field(
            "noise",
            Number(0, 100, example=3.7),
            "Arrivals within this many standard deviations prove nothing; 0 trusts every reading.",
            "noise_sigmas",
        ),
        Field("buffer", Flag(), "Keep replicas warm for the demand that arrives during a cold start.", "buffer"),
        Field("ramp", ramp(), "The steepest growth to be ready for; past ramps are used where they were steeper.", "ramp_per_s2"),
        Field("ramp_quantile", Number(0, 1, above=True, example=0.95), "Which of the past ramps counts.", "ramp_quantile"),
        Field("cold_start", duration(example="5m"), "Assumed until one was measured.", "cold_start_s", default="the profile's"),
        Field("replica_rate", rate(above=True), "Requests one replica serves at its SLO.", "replica_rate_per_s", default="computed"),
        Field("shape", SHAPE, SHAPE.doc),
        Field("warm", WARM, WARM.doc),
        Field("starts", Whole(1, 1000, 4), "Most replicas that start at once: they share bandwidth.", "starts_max"),
        Field("drain", duration(example="10m"), "A draining replica may finish its streams for this long.", "drain_s_max"),
        Field("pending_alert", duration(above=True, example="5m"), "Alert when a start takes longer.", "pending_alert_s"),
        Field("unknown_alert", duration(above=True, example="2m"), "Alert when metrics are missing for longer.", "unknown_alert_s"),
    ),
    Scaling,
)
