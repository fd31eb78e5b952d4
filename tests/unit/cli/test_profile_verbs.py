"""``forebay profile list|show|capacity``: tables for people, JSON for scripts, and bad input named with what is allowed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forebay.cli.profile import app
from forebay.domain.errors import BadInput
from forebay.engine.catalogue import PROFILES

runner = CliRunner(env={"COLUMNS": "160"})


def test_every_profile_is_listed() -> None:
    result = runner.invoke(app, ["list"])
    assert result.exit_code == 0
    assert all(name in result.stdout for name in PROFILES)


def test_list_as_json_is_json_only() -> None:
    result = runner.invoke(app, ["list", "--json", "-"])
    assert [profile["name"] for profile in json.loads(result.stdout)] == list(PROFILES)


def test_show_gives_every_coefficient_and_its_source() -> None:
    result = runner.invoke(app, ["show", "llama-3.1-70b-fp8-4xh100"])
    assert result.exit_code == 0
    for text in ("11.02 ms", "55.0 µs", "27.9 µs", "44.6 µs", "665,280 tokens", "silicon_sample.csv", "6m; on a warm node 1m30s"):
        assert text in result.stdout
    shown = json.loads(runner.invoke(app, ["show", "demo", "--json", "-"]).stdout)
    assert shown["law"]["base_s"] == PROFILES["demo"].law.base_s
    assert shown["sources"]


def test_capacity_says_rate_limit_and_where_the_fleet_falls_over() -> None:
    words = ["capacity", "llama-3.1-70b-fp8-4xh100", "--prompt", "1155", "--output", "211", "--replicas", "10", "--rate", "50/s"]
    result = runner.invoke(app, words)
    assert result.exit_code == 0
    for text in (
        "10.86",
        "of 50 ms with 115 sequences",
        "The mean step reaches the ITL of 50 ms",
        "131,072",
        "fall over beyond a context of",
    ):
        assert text in result.stdout


def test_capacity_says_what_a_rate_takes() -> None:
    words = ["capacity", "llama-3.1-70b-fp8-4xh100", "--prompt", "1155", "--output", "211"]
    assert "5 replicas, 20 GPUs, $50.00 per hour" in runner.invoke(app, [*words, "--rate", "50/s"]).stdout
    one = json.loads(runner.invoke(app, [*words, "--json", "-"]).stdout)
    assert (one["replicas_needed"], one["gpus_needed"], one["usd_per_hour"]) == (None, None, None)
    # Three replicas' rate, to the last digit: dust must not make it four.
    exact = json.loads(runner.invoke(app, [*words, "--rate", f"{3 * one['capacity']['requests_per_s']:.15f}/s", "--json", "-"]).stdout)
    assert (exact["replicas_needed"], exact["gpus_needed"], exact["usd_per_hour"]) == (3, 12, 30.0)
    never = runner.invoke(app, [*words, "--rate", "50/s", "--itl", "1ms"])
    assert "no number of replicas keeps this promise" in never.stdout


def test_names_come_through_a_pipe_whole() -> None:
    piped = CliRunner(env={"COLUMNS": None}).invoke(app, ["list"]).stdout
    assert all(f"\n{name} " in piped for name in PROFILES)
    narrow = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["list"]).stdout
    assert all(f"\n{name} " in narrow for name in PROFILES)


def test_capacity_as_json(tmp_path: Path) -> None:
    words = [
        "capacity",
        "demo",
        "--prompt",
        "500",
        "--output",
        "30",
        "--ttft",
        "10s",
        "--itl",
        "500ms",
        "--replicas",
        "4",
        "--rate",
        "90/min",
    ]
    result = json.loads(runner.invoke(app, [*words, "--json", "-"]).stdout)
    assert result["capacity"]["requests_per_s"] == pytest.approx(0.835, abs=0.005)
    assert result["fleet_requests_per_s"] == pytest.approx(4 * result["capacity"]["requests_per_s"])
    assert result["falls_over"]["rate_per_s"] == pytest.approx(1.5)
    assert result["by_context"][-1]["context_tokens"] == 8192
    target = tmp_path / "capacity.json"
    both = runner.invoke(app, [*words, "--json", str(target)])
    assert "requests/s" in both.stdout
    assert json.loads(target.read_text()) == result


def test_the_spread_of_steps_is_shown_where_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(
        "profiles: {mine: {base: demo, spread: {p5: 0.8, p95: 1.3, p99: 1.5}}}\npools: {chat: {profile: mine, engine: {kind: emulated}}}\n"
    )
    assert "80% to 130% of that in nine steps of ten" in runner.invoke(app, ["show", "mine", "-c", str(file)]).stdout
    assert "spread" not in runner.invoke(app, ["show", "demo"]).stdout


def test_a_warm_up_is_shown_where_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(
        "profiles: {mine: {base: demo, warm_up: {passes: 2000, factor: 8}}}\npools: {chat: {profile: mine, engine: {kind: emulated}}}\n"
    )
    assert "the first 2,000 of each engine that starts take 8 times as long" in runner.invoke(app, ["show", "mine", "-c", str(file)]).stdout
    assert "warm-up" not in runner.invoke(app, ["show", "demo"]).stdout


def test_a_profile_of_ones_own_is_taken_from_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "forebay.yaml"
    file.write_text(
        "profiles: {mine: {base: llama-3.1-8b-h100, kv: 32000, context: 16000}}\npools: {chat: {profile: mine, engine: {kind: emulated}}}\n"
    )
    result = runner.invoke(app, ["capacity", "mine", "-c", str(file), "--ttft", "30s", "--itl", "500ms", "--json", "-"])
    assert json.loads(result.stdout)["capacity"]["binding"] == "kv"
    assert "mine" in runner.invoke(app, ["list", "-c", str(file)]).stdout
    with pytest.raises(BadInput, match=r"allowed: .*, mine; did you mean"):
        runner.invoke(app, ["show", "min", "-c", str(file)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "llama-3.1-8b-h10"], r'did you mean "llama-3.1-8b-h100"'),
        (["capacity", "nothing-like-it"], "allowed: llama-3.1-8b-h100"),
        (["capacity", "demo", "--ttft", "5"], "--ttft: '5' is not a duration"),
        (["capacity", "demo", "--itl", "0s"], "--itl: found '0s'"),
        (["capacity", "demo", "--rate", "3"], "--rate: '3' is not a rate"),
        (["capacity", "demo", "--rate", "0/s"], "--rate: found '0/s'"),
        (["capacity", "demo", "--prompt", "9000"], "exceed its context of 8192"),
    ],
)
def test_bad_input_says_what_is_allowed(words: list[str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        runner.invoke(app, words, catch_exceptions=False)


def test_a_file_of_profiles_alone_is_taken(tmp_path: Path) -> None:
    """What `calibrate --write` leaves has no pools, and was refused for that."""
    path = tmp_path / "prof.yaml"
    path.write_text("profiles:\n  mine:\n    base: llama-3.1-8b-h100\n    step: {base: 9ms}\n")
    assert "9.00 ms" in runner.invoke(app, ["show", "mine", "-c", str(path)]).stdout
    assert runner.invoke(app, ["capacity", "mine", "-c", str(path)]).exit_code == 0
    assert "mine" in runner.invoke(app, ["list", "-c", str(path)]).stdout
    path.write_text(path.read_text() + "pools: {chat: {model: m, profile: demo, engine: {kind: emulated}}}\n")
    assert "9.00 ms" in runner.invoke(app, ["show", "mine", "-c", str(path)]).stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profiles: {mine: {base: no-such}}", "profiles.mine.base: found"),
        ("profiles: {mine: {step: {base: 9ms}}}", "profiles.mine.step.per_sequence: found nothing"),
        ("tiers: {}", "pools: found nothing"),
        ("profiles: {mine: {base: demo}}\npools: {chat: {model: m, profile: nix}}", "pools.chat.profile: found"),
    ],
)
def test_what_is_wrong_with_a_file_of_profiles_is_said(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "prof.yaml"
    path.write_text(text)
    result = runner.invoke(app, ["list", "-c", str(path)])
    assert isinstance(result.exception, BadInput)
    assert words in str(result.exception)


def test_capacity_and_show_say_what_was_not_measured(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("profiles: {mine: {base: demo, not_measured: [per_sequence]}}\n")
    result = runner.invoke(app, ["capacity", "mine", "-c", str(file)])
    assert "warning: step.per_sequence of profile mine: not measured" in result.stderr
    told = json.loads(runner.invoke(app, ["capacity", "mine", "-c", str(file), "--json", "-"]).stdout)
    assert told["not_measured"] == ["per_sequence"]
    assert "step.per_sequence" in runner.invoke(app, ["show", "mine", "-c", str(file)]).stdout
    assert "not measured" not in runner.invoke(app, ["capacity", "demo"]).output
