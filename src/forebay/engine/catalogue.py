"""The profiles that ship, each number with its source. Copy one, change what you measured, and put it in your spec.

Coefficients are written here in the units of their sources (milliseconds; microseconds per 1,000 KV tokens;
microseconds per prompt token) and turned into seconds in one place. Most are fits to measured or tabulated points:
how good they are stands in each ``Source``.
"""

from forebay.domain.profile import ColdStart, Profile, Source, StepLaw

UTILISATION = 0.9
"""vLLM's default share of a device's memory. The ~6 % by which a device has more than its nominal gigabytes
pays for activations and CUDA graphs, so nominal bytes × this − weights is what KV gets."""

WEIGHTS_BYTES_PER_S = 1.5e9
PROVISION_S = 270.0
COLD_70B_S = 360.0
WARM_70B_S = 90.0
CHUNK_TOKENS = 2048
BLOCK_TOKENS = 16

_SILICON = (
    "non-negative least squares on relative error over measured closed-loop TPOT of Llama-3.1-70B FP8 on vLLM "
    "(InferenceMAX runs of 2025-10-29, published in ai-dynamo/aiconfigurator, silicon_sample.csv, Apache-2.0)"
)
_DATABASE = "fit to 15 decode and 4 prefill points of AIConfigurator 0.12's vLLM database (ai-dynamo/aiconfigurator, Apache-2.0)"
_PREFILL_2048 = (
    "; per prompt token: p1 + 2.048·p2 of the quadratic p0 + p1·k + p2·k² (k = 1,000 tokens), so right at 2,048 tokens and low far beyond"
)
_QWEN_7B_LAW = (
    "base, per prompt token and 60 µs per decoding sequence: published fit to vLLM on A100 (inference-sim/inference-sim at 90522ded^, "
    "defaults.yaml, Apache-2.0), which has no KV term; its 60 µs are split here into 30 µs per sequence (Llama-3.1-8B on A100) and "
    "36.7 µs per 1,000 KV tokens (that model's 83.9 × 57,344 ÷ 131,072 bytes), which meet at 820 tokens of context; "
    "not checked against measured rows"
)
_FRONT_END = Source(
    "front_end_s, front_end_per_token_s",
    "inference-sim/inference-sim defaults.yaml (Apache-2.0): 15,563 µs a request and 45.9 µs an output token outside the engine's steps",
)


def ms_law(base_ms: float, per_sequence_ms: float, us_per_1000_kv_tokens: float, us_per_prefill_token: float) -> StepLaw:
    """The step law in seconds from the units in which such fits are published."""
    return StepLaw(
        base_s=base_ms * 1e-3,
        per_sequence_s=per_sequence_ms * 1e-3,
        per_kv_token_s=us_per_1000_kv_tokens * 1e-9,
        per_prefill_token_s=us_per_prefill_token * 1e-6,
    )


def kv_tokens(memory_bytes: float, weights_bytes: float, kv_bytes_per_token: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """KV tokens of a replica with ``memory_bytes`` over all its devices: the rest after weights, in whole blocks."""
    tokens = int((memory_bytes * UTILISATION - weights_bytes) / kv_bytes_per_token)
    return tokens - tokens % block_tokens


class _Model:
    """What does not depend on the hardware: KV bytes per token are 2 · layers · KV heads · head size · 2 bytes."""

    def __init__(self, name: str, weights_bytes: float, layers: int, kv_heads: int, context_tokens: int, precision: str) -> None:
        self.name = name
        self.weights_bytes = weights_bytes
        self.layers = layers
        self.kv_heads = kv_heads
        self.context_tokens = context_tokens
        self.precision = precision
        self.kv_bytes_per_token = 2 * layers * kv_heads * 128 * 2


class _Device:
    """``gpu_hour_usd`` is an assumption (a rented price of the kind one gets on a year's contract), to be replaced by your own."""

    def __init__(self, name: str, memory_bytes: float, gpu_hour_usd: float) -> None:
        self.name = name
        self.memory_bytes = memory_bytes
        self.gpu_hour_usd = gpu_hour_usd


_LLAMA_8B = _Model("meta-llama/Llama-3.1-8B-Instruct", 16.06e9, layers=32, kv_heads=8, context_tokens=131_072, precision="bf16")
_LLAMA_70B = _Model(
    "meta-llama/Llama-3.1-70B-Instruct", 70e9, layers=80, kv_heads=8, context_tokens=131_072, precision="FP8 weights, 16-bit KV"
)
_QWEN_7B = _Model("Qwen/Qwen2.5-7B-Instruct", 15.23e9, layers=28, kv_heads=4, context_tokens=32_768, precision="bf16")
_QWEN_32B = _Model("Qwen/Qwen3-32B", 65.5e9, layers=64, kv_heads=8, context_tokens=40_960, precision="bf16")

_H100 = _Device("H100 80GB", 80e9, 2.5)
_H200 = _Device("H200 141GB", 141e9, 3.2)
_A100 = _Device("A100 80GB", 80e9, 1.6)
_L40S = _Device("L40S 48GB", 48e9, 1.0)


def _profile(name: str, model: _Model, device: _Device, gpus: int, law: StepLaw, law_origin: str, sequences_max: int = 256) -> Profile:
    """A profile with the sources that all of them share."""
    memory_bytes = device.memory_bytes * gpus
    tokens = kv_tokens(memory_bytes, model.weights_bytes, model.kv_bytes_per_token)
    init_s = WARM_70B_S - _LLAMA_70B.weights_bytes / WEIGHTS_BYTES_PER_S
    sources = (
        Source("law", law_origin),
        Source(
            "kv_tokens",
            f"{memory_bytes / 1e9:g} GB × {UTILISATION} − {model.weights_bytes / 1e9:g} GB of weights ({model.precision}), "
            f"÷ {model.kv_bytes_per_token:,} bytes, in blocks of {BLOCK_TOKENS}",
        ),
        Source("kv_bytes_per_token", f"2 × {model.layers} layers × {model.kv_heads} KV heads × 128 × 2 bytes (the model's config.json)"),
        Source(
            "sequences_max, prefill_chunk_tokens",
            f"a choice, to be given to vLLM as --max-num-seqs {sequences_max} --max-num-batched-tokens {CHUNK_TOKENS}: a larger chunk "
            "prefills a little faster and makes running requests stutter",
        ),
        Source(
            "cold_start",
            "assumed from one fleet's figures for the 70B model: cold 6 min, warm 90 s, weights at 1.5 GB/s; provisioning and engine start "
            "are taken to be the same for every model, weights by their size; Forebay replaces the total by what it measures",
        ),
        _FRONT_END,
        Source("gpu_hour_usd", "an assumption; put your own price in the spec"),
    )
    return Profile(
        name=name,
        model=model.name,
        hardware=device.name if gpus == 1 else f"{gpus}x {device.name}",
        gpus=gpus,
        law=law,
        sequences_max=sequences_max,
        kv_tokens=tokens,
        block_tokens=BLOCK_TOKENS,
        prefill_chunk_tokens=CHUNK_TOKENS,
        kv_bytes_per_token=model.kv_bytes_per_token,
        context_tokens=min(model.context_tokens, tokens),
        cold_start=ColdStart(
            provision_s=PROVISION_S,
            weights_bytes=model.weights_bytes,
            weights_bandwidth_bytes_per_s=WEIGHTS_BYTES_PER_S,
            init_s=init_s,
        ),
        front_end_s=0.015563,
        front_end_per_token_s=45.9e-6,
        gpu_hour_usd=device.gpu_hour_usd,
        sources=sources,
    )


def _llama_70b(name: str, device: _Device, gpus: int, law: StepLaw, points: int, error_percent: float) -> Profile:
    origin = f"{_SILICON}: {points} points, mean error {error_percent} %; attention cost moves with engine versions"
    return _profile(name, _LLAMA_70B, device, gpus, law, origin)


def _demo() -> Profile:
    """A replica slow and small enough for a laptop to emulate a fleet of them at 20 times the speed."""
    made_up = "made up for the demo: it is nobody's hardware"
    return Profile(
        name="demo",
        model="demo-model",
        hardware="made-up GPU",
        gpus=1,
        law=ms_law(249.0, 0.2, 100.0, 2.0),
        sequences_max=8,
        kv_tokens=8192,
        block_tokens=16,
        prefill_chunk_tokens=2048,
        kv_bytes_per_token=131_072,
        context_tokens=8192,
        cold_start=ColdStart(provision_s=200.0, weights_bytes=70e9, weights_bandwidth_bytes_per_s=1.4e9, init_s=50.0),
        gpu_hour_usd=3.0,
        sources=(
            Source(
                "law, sequences_max, kv_tokens",
                f"{made_up}; chosen so that a replica serves 50 requests a minute (500 in, 30 out) at TTFT 10 s",
            ),
            Source("cold_start", f"{made_up}; five minutes: node 200 s, 70 GB of weights at 1.4 GB/s 50 s, engine start 50 s"),
            Source("gpu_hour_usd", f"{made_up}; $3 an hour makes a buffer of three replicas $9 an hour"),
        ),
    )


def _all() -> tuple[Profile, ...]:
    return (
        _profile(
            "llama-3.1-8b-h100",
            _LLAMA_8B,
            _H100,
            1,
            ms_law(6.26988, 0.01189, 41.27266, 16.85),
            _DATABASE + ": decode 2.2 %, prefill 5.9 %" + _PREFILL_2048,
        ),
        _profile(
            "llama-3.1-8b-h200",
            _LLAMA_8B,
            _H200,
            1,
            ms_law(4.85487, 0.01171, 30.29412, 18.00),
            _DATABASE + ": decode 1.7 %, prefill 4.2 %" + _PREFILL_2048,
        ),
        _profile(
            "llama-3.1-8b-a100",
            _LLAMA_8B,
            _A100,
            1,
            ms_law(11.74861, 0.0301, 83.92965, 57.66),
            _DATABASE + ": decode 3.1 %, prefill 0.2 %" + _PREFILL_2048,
        ),
        _profile(
            "llama-3.1-8b-l40s",
            _LLAMA_8B,
            _L40S,
            1,
            ms_law(21.92953, 0.03533, 193.56555, 53.19),
            _DATABASE + ": decode 2.8 %, prefill 8.0 %" + _PREFILL_2048,
        ),
        _llama_70b("llama-3.1-70b-fp8-2xh100", _H100, 2, ms_law(16.53, 0.039, 58.6, 70.0), 13, 0.9),
        _llama_70b("llama-3.1-70b-fp8-4xh100", _H100, 4, ms_law(11.02, 0.055, 27.9, 44.6), 15, 2.2),
        _llama_70b("llama-3.1-70b-fp8-8xh100", _H100, 8, ms_law(8.82, 0.063, 11.5, 29.8), 15, 2.5),
        _llama_70b("llama-3.1-70b-fp8-1xh200", _H200, 1, ms_law(19.99, 0.062, 87.5, 110.3), 13, 2.4),
        _llama_70b("llama-3.1-70b-fp8-2xh200", _H200, 2, ms_law(13.16, 0.038, 37.6, 70.4), 15, 3.6),
        _llama_70b("llama-3.1-70b-fp8-4xh200", _H200, 4, ms_law(9.18, 0.046, 20.8, 42.4), 15, 3.7),
        _llama_70b("llama-3.1-70b-fp8-8xh200", _H200, 8, ms_law(7.74, 0.047, 9.0, 26.2), 15, 2.7),
        _profile(
            "qwen2.5-7b-a100",
            _QWEN_7B,
            _A100,
            1,
            ms_law(10.042, 0.030, 36.7, 81.1),
            _QWEN_7B_LAW,
        ),
        _profile(
            "qwen3-32b-2xh100",
            _QWEN_32B,
            _H100,
            2,
            ms_law(13.42133, 0.02522, 42.95595, 41.71),
            _DATABASE + ": decode 1.0 %, prefill 5.6 %" + _PREFILL_2048,
        ),
        _demo(),
    )


PROFILES: dict[str, Profile] = {profile.name: profile for profile in _all()}
