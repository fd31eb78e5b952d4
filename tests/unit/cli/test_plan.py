"""``forebay plan size``: the worked figures through the command line, words for people, and bad input named with what is allowed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forebay.app.lab import replica_rate
from forebay.cli import plan_inputs
from forebay.cli.plan import app
from forebay.domain.errors import BadInput

runner = CliRunner(env={"COLUMNS": "160"})
WORKED = [
    "size",
    "--qps-per-replica",
    "12",
    "--target",
    "0.7",
    "--peak",
    "400",
    "--trough",
    "80",
    "--average-replicas",
    "25",
    "--gpus-per-replica",
    "4",
    "--gpu-hour-usd",
    "2.5",
    "--ramp-per-min",
    "7",
    "--cold-start",
    "6m",
]


def planned(words):
    result = runner.invoke(app, [*words, "--json", "-"], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)


def test_the_worked_case_as_json_is_exact():
    plan = planned(WORKED)
    wanted = {
        "peak_replicas": 48,
        "trough_replicas": 10,
        "peak_gpus": 192,
        "trough_gpus": 40,
        "static_month_usd": 350_400,
        "autoscaled_month_usd": 182_500,
        "saved_month_usd": 167_900,
        "headroom_qps": 42,
        "headroom_ratio": 5.0,
        "buffer_replicas": 5,
    }
    assert {key: plan[key] for key in wanted} == wanted


def test_a_shorter_cold_start_needs_a_smaller_buffer():
    plan = planned([*WORKED[:-1], "90s"])
    assert (plan["headroom_qps"], plan["headroom_ratio"], plan["buffer_replicas"]) == (10.5, 1.25, 2)


@pytest.mark.parametrize("ramp", [["--rise", "100/min..400/min/10m"], ["--ramp-per-min", "30/min"], ["--ramp-per-min", "0.5"]])
def test_a_rise_by_the_minute_however_it_is_said(ramp):
    plan = planned(["size", "--qps-per-replica", "50/min", *ramp, "--cold-start", "5m", "--gpu-hour-usd", "3"])
    assert (plan["buffer_replicas"], plan["buffer_hour_usd"], plan["buffer_day_usd"]) == (3, 9, 216)


def test_the_table_says_how_each_number_comes_about():
    text = runner.invoke(app, WORKED).stdout
    for words in (
        "48 replicas, 192 GPUs",
        "400/s ÷ 8.4/s = 47.62, rounded up",
        "42/s",
        "a rise of 7/s a minute × the 6m",
        "$350,400/month",
        "$182,500/month",
        "$167,900/month",
        "48% of the static bill",
        "scaling.max",
        "go back to their provider",
    ):
        assert words in text
    assert "give --gpu-hour-usd" in runner.invoke(app, ["size", "--qps-per-replica", "50/min"]).stdout


def test_json_into_a_file_leaves_the_table_on_the_screen(tmp_path: Path):
    target = tmp_path / "plan.json"
    result = runner.invoke(app, [*WORKED, "--json", str(target)])
    assert "48 replicas" in result.stdout
    assert json.loads(target.read_text()) == planned(WORKED)


def test_a_share_may_be_said_in_percent():
    assert planned(["70%" if word == "0.7" else word for word in WORKED]) == planned(WORKED)


def test_spares_for_a_failure_domain():
    plan = planned([*WORKED, "--failure-domains", "3"])
    assert (plan["spare_replicas"], plan["floor_replicas"], plan["ceiling_replicas"]) == (24, 34, 77)


def test_a_configurations_pool_gives_what_the_words_leave_out(tmp_path: Path):
    file = tmp_path / "forebay.yaml"
    file.write_text(
        "pools:\n"
        "  chat: {profile: llama-3.1-70b-fp8-4xh100, engine: {kind: emulated}, scaling: {replica_rate: 50/min, ramp: 30/min/min, spare: 2, max: 9}}\n"
        "  long: {profile: llama-3.1-70b-fp8-4xh100, engine: {kind: emulated}}\n"
    )
    words = ["size", "--spec", str(file), "--pool", "chat", "--peak", "400/min"]
    plan = planned(words)
    assert (plan["peak_replicas"], plan["peak_gpus"], plan["spare_replicas"]) == (8, 32, 2)
    assert planned([*words, "--cold-start", "5m"])["buffer_replicas"] == 3
    assert planned([*words, "--gpu-hour-usd", "3", "--cold-start", "5m"])["buffer_hour_usd"] == 36
    assert planned(["size", "--spec", str(file), "--pool", "long", "--peak", "100"])["peak_replicas"] > 1
    with pytest.raises(BadInput, match="several pools; name one with --pool: chat, long"):
        runner.invoke(app, ["size", "--spec", str(file)], catch_exceptions=False)
    with pytest.raises(BadInput, match="found 'chap', allowed: chat, long; did you mean"):
        runner.invoke(app, ["size", "--spec", str(file), "--pool", "chap"], catch_exceptions=False)


@pytest.fixture
def rising(tmp_path: Path) -> Path:
    """Half an hour: 1 request a second for ten minutes, then 2, then 6."""
    file = tmp_path / "rising.jsonl"
    rates = [(0, 1), (600, 2), (1200, 6)]
    rows = [{"at_s": start + n / rate, "prompt_tokens": 9, "output_tokens": 9} for start, rate in rates for n in range(600 * rate)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_lenient_reading_is_counted_aloud_and_its_lengths_are_read_leniently_too(rising: Path):
    """Broken rows were skipped without a word; with --spec they then broke the measurement of a replica."""
    lines = rising.read_text().splitlines(keepends=True)
    rising.write_text("".join([lines[0], *lines[2:5], lines[1], "no row\n", *lines[5:]]))
    words = ["size", "--qps-per-replica", "2", "--trace", str(rising), "--lenient"]
    told = runner.invoke(app, words).stderr
    assert "rows skipped: 1 broken; the first broken one" in told
    assert "rows put in order: 1; time goes back by up to 3s" in told
    with pytest.raises(BadInput, match="time goes back"):
        plan_inputs.measured_rate(spec_of(rising.parent), None, rising, None, False, 1.0)
    assert plan_inputs.measured_rate(spec_of(rising.parent), None, rising, None, True, 1.0).prompt_tokens == 9


def spec_of(folder: Path) -> Path:
    file = folder / "forebay.yaml"
    file.write_text("pools:\n  chat: {profile: llama-3.1-8b-h100, engine: {kind: emulated}}\n")
    return file


def test_lengths_that_would_not_be_looked_at_are_refused(rising: Path):
    for more in ([], ["--spec", str(spec_of(rising.parent)), "--no-measure"]):
        rate = [] if more else ["--qps-per-replica", "2"]
        with pytest.raises(BadInput, match="--lengths: found nothing to measure, allowed: beside --spec"):
            runner.invoke(app, ["size", *rate, "--peak", "9", "--lengths", "none.csv", *more], catch_exceptions=False)


def test_a_trace_gives_peak_trough_average_and_ramp(rising: Path):
    words = ["size", "--qps-per-replica", "2", "--trace", str(rising), "--cold-start", "5m", "--gpu-hour-usd", "1"]
    plan = planned(words)
    assert (plan["peak_replicas"], plan["trough_replicas"]) == (3, 1)
    # From 2/s to 6/s between two buckets of five minutes.
    assert (plan["headroom_qps"], plan["buffer_replicas"]) == (4, 2)
    assert plan["average_replicas"] == pytest.approx(5 / 3 + 2)
    assert plan["saved_month_usd"] == pytest.approx(730 * (3 - 5 / 3 - 2))
    assert planned([*words, "--duration", "20m"])["peak_replicas"] == 1
    assert planned([*words, "--rate-scale", "2"])["peak_replicas"] == 6
    assert planned([*words, "--peak", "20"])["peak_replicas"] == 10
    assert "give --cold-start" in runner.invoke(app, words[:5]).stdout


@pytest.mark.parametrize(
    "words", [["--bucket", "0s"], ["--bucket", "1ms"], ["--start", "2h"], ["--rate-scale", "0"], ["--trace-format", "cvs"]]
)
def test_a_bad_part_of_a_trace_is_named(rising: Path, words):
    with pytest.raises(BadInput, match=r"allowed|in the span"):
        runner.invoke(app, ["size", "--qps-per-replica", "2", "--trace", str(rising), *words], catch_exceptions=False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "give --qps-per-replica, or a configuration with --spec"),
        ("--qps-per-replica 0", "--qps-per-replica: found 0"),
        ("--qps-per-replica twelve", "found 'twelve', allowed: a number"),
        ("--qps-per-replica nan", "found 'nan'"),
        ("--qps-per-replica 1e9", "found '1e9'"),
        ("--qps-per-replica 12/parsec", "found '12/parsec', allowed: a number .per second., or one per s, min, h or d"),
        ("--qps-per-replica 12/", "found '12/'"),
        ("--qps-per-replica -3", "found '-3'"),
        ("--qps-per-replica 12 --target 0", "--target: found '0', allowed: a share above 0"),
        ("--qps-per-replica 12 --target 70", "--target: found '70', allowed: .* such as 0.7 or 70%"),
        ("--qps-per-replica 12 --peak 10 --trough 20", "--trough: found 20/s, allowed: at most the peak of 10/s"),
        ("--qps-per-replica 1/d --peak 400", "more than 1,000,000 replicas"),
        ("--qps-per-replica 12 --ramp-per-min 7", "without --cold-start"),
        ("--qps-per-replica 12 --ramp-per-min 7 --rise 1..2/1m --cold-start 6m", "--ramp-per-min and --rise both say"),
        ("--qps-per-replica 12 --rise 1/1m --cold-start 6m", "found '1/1m', allowed: two rates"),
        ("--qps-per-replica 12 --rise 2..1/1m --cold-start 6m", "the second rate the higher one"),
        ("--qps-per-replica 12 --rise 1..2/0s --cold-start 6m", "found '1..2/0s'"),
        ("--qps-per-replica 12 --cold-start 6", "--cold-start: '6' is not a duration"),
        ("--qps-per-replica 12 --spares 1 --failure-domains 3 --peak 9", "--spares and --failure-domains both say"),
        ("--qps-per-replica 12 --failure-domains 3", "counted at the peak; give --peak"),
        ("--qps-per-replica 12 --peak 24 --average-replicas 3", "--average-replicas: found 3, allowed: at most 2"),
        ("--qps-per-replica 12 --hours-per-month 0", "--hours-per-month: found 0"),
        ("--qps-per-replica 12 --pool chat", "give it with --spec"),
        ("--qps-per-replica 12 --json /nowhere/plan.json", "--json: can't write"),
    ],
)
def test_bad_input_says_what_is_allowed(words, says):
    with pytest.raises(BadInput, match=says):
        runner.invoke(app, ["size", *words.split()], catch_exceptions=False)


def test_a_plan_without_a_peak_says_what_to_give():
    text = runner.invoke(app, ["size", "--qps-per-replica", "12"]).stdout
    assert "give --peak and --trough, or a --trace" in text


def test_a_replica_is_measured_where_lengths_are_at_hand(tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.app.lab.replica_rate.SPAN_S", 3.0)
    monkeypatch.setattr("forebay.app.lab.replica_rate.HALVINGS", 2)
    spec, trace = tmp_path / "forebay.yaml", tmp_path / "trace.jsonl"
    spec.write_text(
        "pools:\n  chat:\n    model: llama-3.1-8b\n    profile: llama-3.1-8b-h100\n    engine: {kind: emulated}\n"
        "    scaling: {min: 1, max: 5, shape: {prompt: 200, output: 20}}\n"
    )
    trace.write_text("".join(f'{{"at_s": {at_s}, "prompt_tokens": 200, "output_tokens": 20}}\n' for at_s in range(5)))
    words = ["size", "--spec", str(spec), "--trace", str(trace), "--bucket", "1s"]
    plan = planned(words)
    assert plan["replica_qps"] == plan["measured_replica_qps"] > 0
    assert plan["formula_replica_qps"] > 0
    assert "keep the whole promise" in " ".join(runner.invoke(app, words).stdout.split())
    assert "measured_replica_qps" not in planned([*words, "--no-measure"])
    assert "measured_replica_qps" not in planned([*words, "--qps-per-replica", "12"])


def test_part_of_the_buffer_may_wait_warm(tmp_path: Path):
    """30/min a minute at 50/min a replica: 3.6 in six minutes, 0.9 in the 90 s of a start on a warm node; (1 + 3 × 0.3) × $3.2."""
    file = tmp_path / "forebay.yaml"
    pool = "pools: {chat: {profile: llama-3.1-70b-fp8-1xh200, engine: {kind: emulated}, scaling: {max: 20, replica_rate: 50/min%s}}}"
    file.write_text(pool % ", ramp: 30/min/min, warm: {max: 10, share: 0.3}")
    words = ["size", "--spec", str(file), "--cold-start", "6m"]
    plan = planned(words)
    assert (plan["buffer_replicas"], plan["warm_replicas"], plan["running_buffer_replicas"], plan["warm_hour_usd"]) == (4, 3, 1, 6.08)
    text = runner.invoke(app, words, catch_exceptions=False).stdout
    assert "warm nodes" in text
    assert "1 replica for the 1m30s of a start on one run" in text
    file.write_text(pool % ", ramp: 30/min/min, warm: {max: 2, share: 0.3}")
    assert (planned(words)["warm_replicas"], planned(words)["running_buffer_replicas"]) == (2, 2)
    file.write_text(pool % ", warm: {max: 2, share: 0.3}")
    assert "give the ramp" in runner.invoke(app, words, catch_exceptions=False).stdout
    file.write_text(pool % ", ramp: 30/min/min")
    assert "warm_replicas" not in planned(words)


def test_a_fleet_that_costs_more_than_a_fixed_one_is_not_said_to_save():
    words = [each if each != "25" else "53" for each in WORKED]
    assert planned(words)["saved_month_usd"] < 0
    told = runner.invoke(app, words).stdout
    assert "costs more" in told
    assert "saved" not in told
    assert "$-" not in told
    assert "a buffer of 5" in " ".join(told.split())


def test_a_trace_with_names_of_its_own_gives_rates_and_lengths(tmp_path, monkeypatch):
    own = tmp_path / "own.csv"
    own.write_text("when,in,out\n" + "".join(f"{157 * at + at % 7},9,3\n" for at in range(200)))
    names = "at_s=when,prompt_tokens=in,output_tokens=out"
    result = runner.invoke(app, ["size", "--qps-per-replica", "2", "--trace", str(own), "--column", names], catch_exceptions=False)
    assert result.exit_code == 0
    assert "its times look like milliseconds" in result.stderr
    part = plan_inputs.TracePart(own, "auto", None, None, 1.0, names, None, False)
    monkeypatch.setattr(replica_rate, "measured", lambda pool, tiers, lengths, replicas, clock: lengths.prompt_tokens_mean)
    assert plan_inputs.measured_rate(spec_of(tmp_path), None, None, part, False, 1.0) == 9


def test_what_is_missing_is_told_for_each_figure(tmp_path):
    """With a spec and a cold start it said `give --peak`, and nothing of the ramp that the warm buffer hangs on."""
    path = tmp_path / "forebay.yaml"
    path.write_text("pools:\n  chat: {model: llama-3.1-8b, profile: llama-3.1-8b-h100, engine: {kind: emulated}}\n")
    told = runner.invoke(app, ["size", "--spec", str(path), "--cold-start", "6m"]).stdout
    assert "warm buffer   not known  give --ramp-per-min or --rise, `ramp` in the --spec, or a --trace" in told
    assert "a bound, for the mean pace at a steady rate; --trace or --lengths measure it" in told
    bare = runner.invoke(app, ["size", "--qps-per-replica", "12", "--peak", "400"]).stdout
    assert "give --ramp-per-min or --rise and --cold-start" in bare
    assert "give --trough, or a --trace" in bare
    assert "peak and spares, without the warm buffer" in bare
    assert "a bound" not in bare
    assert "not known" not in runner.invoke(app, WORKED).stdout


def test_a_rate_that_was_declared_is_no_bound(tmp_path):
    path = tmp_path / "forebay.yaml"
    spec = "pools:\n  chat: {model: llama-3.1-8b, profile: llama-3.1-8b-h100, engine: {kind: emulated}, scaling: {replica_rate: 3/s, ramp: 7/s/min}}\n"
    path.write_text(spec)
    told = runner.invoke(app, ["size", "--spec", str(path), "--peak", "30"]).stdout
    assert "a bound" not in told
    assert "headroom" in told
