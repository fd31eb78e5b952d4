"""The parts of a profile, as tables: the law of its steps, how they scatter, how slow the first ones are, and its cold start."""

from forebay.domain.profile import ColdStart, StepLaw, StepSpread, WarmUp
from forebay.spec.kinds import Number, Whole, bandwidth, duration, size
from forebay.spec.records import Field, Record

SPREAD_MOST = 100.0
WARM_UP_PASSES_MOST = 1_000_000
WARM_UP_FACTOR_MOST = 1000.0

STEP = Record(
    "step",
    "Time of one engine step: base + per_sequence·decoding + per_kv_token·KV tokens + per_prefill_token·prompt tokens.",
    (
        Field("base", duration(example="6ms"), "Of every step.", "base_s"),
        Field("per_sequence", duration(example="50us"), "For each decoding sequence.", "per_sequence_s"),
        Field("per_kv_token", duration(example="20ns"), "For each KV token read.", "per_kv_token_s"),
        Field("per_prefill_token", duration(example="40us"), "For each prompt token prefilled.", "per_prefill_token_s"),
    ),
    StepLaw,
)
SPREAD = Record(
    "spread",
    "How steps scatter about the law: quantiles of what a step takes of the time that the law gives it (its prompts left out).",
    tuple(
        Field(
            name, Number(0, SPREAD_MOST, above=True, example=1.0), f"{name[1:]} % of steps take no more than this of the law's time.", name
        )
        for name in StepSpread.__struct_fields__
    ),
    StepSpread,
)
WARM_UP = Record(
    "warm_up",
    "How slow an engine's first steps are, after its start is over: compiling, and caches that fill.",
    (
        Field("passes", Whole(0, WARM_UP_PASSES_MOST, 200), "So many steps, of each engine that starts. 0: none.", "passes"),
        Field("factor", Number(1, WARM_UP_FACTOR_MOST, example=10.0), "They take so many times as long as later ones.", "factor"),
    ),
    WarmUp,
)
COLD_START = Record(
    "cold_start",
    'From "start a replica" to its first answer.',
    (
        Field("provision", duration(example="4m"), "Until the node is there.", "provision_s"),
        Field("weights", size(example="16GB"), "Weights to read.", "weights_bytes"),
        Field("bandwidth", bandwidth(), "How fast they are read.", "weights_bandwidth_bytes_per_s"),
        Field("init", duration(example="45s"), "Engine start after that.", "init_s"),
    ),
    ColdStart,
)
