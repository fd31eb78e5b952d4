"""The shipped profiles: whole, sourced, and within 5 % of measured time per token where rows to compare with are at hand."""

import csv
import statistics
from pathlib import Path

import pytest

from forebay.domain.profile import Profile
from forebay.engine.catalogue import PROFILES, kv_tokens
from forebay.engine.steptime import step_s, tpot_s

VALIDATION = Path(__file__).resolve().parents[4] / "shared" / "validation"
SILICON = VALIDATION / "aiconfigurator_silicon_sample.csv"
POINTS = VALIDATION / "aiconfigurator_vllm_static_points.csv"
REAL = [profile for profile in PROFILES.values() if profile.name != "demo"]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_a_profile_is_whole_and_every_number_has_its_source(profile: Profile) -> None:
    said = " ".join(source.what for source in profile.sources)
    for what in ("law", "kv_tokens", "sequences_max", "cold_start", "gpu_hour_usd"):
        assert what in said
    assert all(len(source.origin) > 20 for source in profile.sources)
    assert profile.kv_tokens % profile.block_tokens == 0
    assert profile.context_tokens <= profile.kv_tokens
    assert profile.sequences_max <= profile.prefill_chunk_tokens
    law = profile.law
    assert min(law.base_s, law.per_sequence_s, law.per_kv_token_s, law.per_prefill_token_s, profile.gpu_hour_usd) > 0
    assert law.per_prefill_token_s * 1000 < 1


def test_kv_is_what_weights_leave_of_the_memory() -> None:
    # (4·80·0.9 - 70) GB ÷ (2·80·8·128·2 = 327,680 B) = 665,283, in blocks of 16
    profile = PROFILES["llama-3.1-70b-fp8-4xh100"]
    assert profile.kv_bytes_per_token == 327_680
    assert profile.kv_tokens == 665_280
    assert PROFILES["llama-3.1-8b-h100"].kv_bytes_per_token == 131_072
    assert PROFILES["qwen3-32b-2xh100"].kv_bytes_per_token == 262_144
    assert kv_tokens(100.0, 10.0, 1, block_tokens=16) == 80


def test_the_cold_start_of_the_70b_is_six_minutes_and_warm_ninety_seconds() -> None:
    cold = PROFILES["llama-3.1-70b-fp8-4xh100"].cold_start
    assert (cold.total_s, cold.warm_s) == (pytest.approx(360.0), pytest.approx(90.0))
    assert cold.weights_s == pytest.approx(70 / 1.5)
    assert PROFILES["demo"].cold_start.total_s == pytest.approx(300.0)


@pytest.mark.parametrize("profile", [profile for profile in REAL if "70b-fp8" in profile.name], ids=lambda profile: profile.name)
def test_measured_time_per_token_is_met_within_five_percent(profile: Profile) -> None:
    if not SILICON.exists():
        pytest.skip("the measured rows are not part of the repository")
    errors = []
    system = "h100_sxm" if "H100" in profile.hardware else "h200_sxm"
    with SILICON.open() as lines:
        for row in csv.DictReader(lines):
            group = (row["model_path"], row["backend"], row["precision"], row["system"], row["tp_size"])
            if group != ("meta-llama/Llama-3.1-70B", "vllm", "fp8", system, str(profile.gpus)):
                continue
            concurrency, prompt, output = int(row["batch_size"]), int(row["isl"]), int(row["osl"])
            # Where KV can't hold every request at its end, the concurrency asked for did not run.
            if concurrency * (prompt + output) <= profile.kv_tokens:
                errors.append(abs(tpot_s(profile.law, concurrency, prompt, output) * 1e3 / float(row["silicon_tpot_ms"]) - 1))
    if not errors:
        pytest.skip(f"no measured rows for {profile.name}: the group was left out")
    assert len(errors) >= 5
    assert statistics.mean(errors) <= 0.05


@pytest.mark.parametrize(
    ("name", "system", "model", "tp"),
    [
        ("llama-3.1-8b-h100", "h100_sxm", "Meta-Llama-3.1-8B", "1"),
        ("llama-3.1-8b-h200", "h200_sxm", "Meta-Llama-3.1-8B", "1"),
        ("llama-3.1-8b-a100", "a100_sxm", "Meta-Llama-3.1-8B", "1"),
        ("llama-3.1-8b-l40s", "l40s", "Meta-Llama-3.1-8B", "1"),
        ("qwen3-32b-2xh100", "h100_sxm", "Qwen3-32B", "2"),
    ],
)
def test_tabulated_steps_are_met(name: str, system: str, model: str, tp: str) -> None:
    if not POINTS.exists():
        pytest.skip("the tabulated points are not part of the repository")
    law = PROFILES[name].law
    decode, prefill = [], []
    with POINTS.open() as lines:
        for row in csv.DictReader(lines):
            if (row["system"], row["model"].split("/")[-1], row["tp"]) != (system, model, tp):
                continue
            context, batch, measured_s = int(row["ctx"]), int(row["batch"]), float(row["ms"]) * 1e-3
            if row["kind"] == "gen":
                decode.append(abs(step_s(law, batch, batch * context, 0) / measured_s - 1))
            elif context == 2048:
                prefill.append(abs(step_s(law, 0, 0, context) / measured_s - 1))
    assert len(decode) > 5
    assert statistics.mean(decode) <= 0.05
    assert len(prefill) == 1
    assert prefill[0] <= 0.15
