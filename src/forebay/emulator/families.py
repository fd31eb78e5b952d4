"""What vLLM 0.32 says on ``/metrics``: its families in its order, with its types, labels, buckets and help texts.

Data, not logic: each row names the number of ``stats.Stats`` that it shows, so the page and the counting can't drift
apart. Names, types, labels and order are an interface that scrapers and dashboards depend on.
"""

from typing import NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

_PHASE_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_TOKENS_SCALE = (1, 2, 5)


def _tokens(context_tokens: int) -> tuple[float, ...]:
    """1, 2, 5, 10 … up to the context limit: the buckets of the token histograms depend on it."""
    bounds: list[float] = []
    decade = 1
    while True:
        for scale in _TOKENS_SCALE:
            if scale * decade > context_tokens:
                return tuple(bounds)
            bounds.append(float(scale * decade))
        decade *= 10


class Family(NamedTuple):
    """One metric family. ``numbers`` maps the values of ``label`` (or ``""`` where there is none) to names in ``Stats``."""

    name: str
    kind: str
    help: str
    numbers: dict[str, str]
    label: str = ""
    engine_label: bool = True


class HistogramFamily(NamedTuple):
    """One histogram; ``number`` is its name in ``Stats``. Empty ``bounds``: token counts up to the context limit."""

    name: str
    help: str
    number: str
    bounds: tuple[float, ...] = ()

    def upper_bounds(self, context_tokens: int) -> tuple[float, ...]:
        """The finite ``le`` values."""
        return self.bounds or _tokens(context_tokens)


_FLOPS = "(for Model Flops Utilization calculations)."
_CACHED = (
    "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, p2p "
    "(transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + "
    "vllm:external_prefix_cache_hits."
)

SCALARS: tuple[Family, ...] = (
    Family("estimated_flops_per_gpu", COUNTER, f"Estimated number of floating point operations per GPU {_FLOPS}", {"": "zero"}),
    Family("estimated_read_bytes_per_gpu", COUNTER, f"Estimated number of bytes read from memory per GPU {_FLOPS}", {"": "zero"}),
    Family("estimated_write_bytes_per_gpu", COUNTER, f"Estimated number of bytes written to memory per GPU {_FLOPS}", {"": "zero"}),
    Family("num_requests_running", GAUGE, "Number of requests in model execution batches.", {"": "running"}),
    Family("num_requests_waiting", GAUGE, "Number of requests waiting to be processed.", {"": "waiting"}),
    Family(
        "num_requests_waiting_by_reason",
        GAUGE,
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by "
        "transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.",
        {"capacity": "waiting", "deferred": "zero"},
        "reason",
    ),
    Family(
        "engine_sleep_state",
        GAUGE,
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means sleep "
        "level 1; discard_all = 1 means sleep level 2.",
        {"awake": "one", "weights_offloaded": "zero", "discard_all": "zero"},
        "sleep_state",
    ),
    Family("kv_cache_usage_perc", GAUGE, "KV-cache usage. 1 means 100 percent usage.", {"": "kv_usage"}),
    Family("prefix_cache_queries", COUNTER, "Prefix cache queries, in terms of number of queried tokens.", {"": "cache_queries"}),
    Family("prefix_cache_hits", COUNTER, "Prefix cache hits, in terms of number of cached tokens.", {"": "zero"}),
    Family(
        "external_prefix_cache_queries",
        COUNTER,
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried tokens.",
        {"": "zero"},
    ),
    Family(
        "external_prefix_cache_hits",
        COUNTER,
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached tokens.",
        {"": "zero"},
    ),
    Family("mm_cache_queries", COUNTER, "Multi-modal cache queries, in terms of number of queried items.", {"": "zero"}),
    Family("mm_cache_hits", COUNTER, "Multi-modal cache hits, in terms of number of cached items.", {"": "zero"}),
    Family("num_preemptions", COUNTER, "Cumulative number of preemption from the engine.", {"": "preemptions"}),
    Family("prompt_tokens", COUNTER, "Number of prefill tokens processed.", {"": "prompt_tokens"}),
    Family(
        "prompt_tokens_by_source",
        COUNTER,
        "Number of prompt tokens by source.",
        {"local_compute": "prompt_tokens", "local_cache_hit": "zero", "external_kv_transfer": "zero"},
        "source",
    ),
    Family("prompt_tokens_cached", COUNTER, "Number of cached prompt tokens (local + external).", {"": "zero"}),
    Family(
        "prompt_tokens_cached_by_source",
        COUNTER,
        _CACHED,
        {"device": "zero", "host": "zero", "p2p": "zero", "disk": "zero", "external_unspecified": "zero"},
        "source",
    ),
    Family("generation_tokens", COUNTER, "Number of generation tokens processed.", {"": "generation_tokens"}),
    Family(
        "request_success",
        COUNTER,
        "Count of successfully processed requests.",
        {"stop": "ended_stop", "length": "ended_length", "abort": "ended_abort", "error": "ended_error", "repetition": "zero"},
        "finished_reason",
    ),
    Family(
        "admission_rejections",
        COUNTER,
        "Number of admission attempts rejected by a queue limit, by reason.",
        {"max_num_queued_reqs": "rejected", "max_num_queued_tokens": "zero"},
        "reason",
        engine_label=False,
    ),
)

HISTOGRAMS: tuple[HistogramFamily, ...] = (
    HistogramFamily("request_prompt_tokens", "Number of prefill tokens processed.", "request_prompt"),
    HistogramFamily("request_generation_tokens", "Number of generation tokens processed.", "request_generation"),
    HistogramFamily("iteration_tokens_total", "Histogram of number of tokens per engine_step.", "step_tokens", _STEP_TOKENS),
    HistogramFamily(
        "request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.", "request_max_generation"
    ),
    HistogramFamily("request_params_n", "Histogram of the n request parameter.", "params_n", (1.0, 2.0, 5.0, 10.0, 20.0)),
    HistogramFamily("request_params_max_tokens", "Histogram of the max_tokens request parameter.", "params_max_tokens"),
    HistogramFamily("time_to_first_token_seconds", "Histogram of time to first token in seconds.", "ttft_s", _TTFT_S),
    HistogramFamily("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", "itl_s", _ITL_S),
    HistogramFamily(
        "request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", "per_output_token_s", _ITL_S
    ),
    HistogramFamily("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", "e2e_s", _PHASE_S),
    HistogramFamily("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", "queue_s", _PHASE_S),
    HistogramFamily("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", "inference_s", _PHASE_S),
    HistogramFamily("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", "prefill_s", _PHASE_S),
    HistogramFamily("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", "decode_s", _PHASE_S),
    HistogramFamily(
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        "request_preemptions",
        (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    ),
    HistogramFamily(
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        "request_prefill_computed",
    ),
)

CACHE_CONFIG_HELP = "Information of the LLMEngine CacheConfig"
CACHE_CONFIG: dict[str, str] = {
    "_block_size_resolved": "True",
    "block_size": "{block_size}",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "effective_attention_block_size": "{block_size}",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "engine": "{engine}",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_max_concurrency": "{concurrency}",
    "kv_cache_memory_bytes": "{memory_bytes}",
    "kv_cache_size_tokens": "{kv_tokens}",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "auto",
    "num_cpu_blocks": "None",
    "num_gpu_blocks": "{blocks}",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "True",
}
"""Labels of ``vllm:cache_config_info``; the braces are filled in from the profile."""
