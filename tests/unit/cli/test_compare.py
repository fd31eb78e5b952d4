"""``forebay compare``: every policy on the same arrivals, for people and for scripts."""

import inspect
import json
import re

import pytest
import typer
from lab_case import SPEC, invoke, said, spec, trace
from typer.testing import CliRunner

from forebay.app.lab import world
from forebay.app.lab.policies import EVERY
from forebay.app.traces import DEFAULT_CV, FORMATS
from forebay.cli import lab_options
from forebay.cli.compare import command
from forebay.domain.errors import BadInput

SCATTERED = """
profiles:
  p: {base: llama-3.1-8b-h100, spread: {p5: 0.9, p25: 0.95, p50: 1.0, p75: 1.05, p90: 1.1, p95: 1.2, p99: 1.5}}
"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """One run with everything, read by several tests."""
    folder = tmp_path_factory.mktemp("compare")
    page, numbers = folder / "page.html", folder / "numbers.json"
    words = [
        "--spec",
        spec(folder),
        "--trace",
        trace(folder),
        "--policies",
        "forebay,static-peak,kpa",
        "--jobs",
        "1",
        "--cold-start",
        "20s",
    ]
    result = invoke(command, *words, "--html", page, "--json", numbers)
    assert result.exception is None, result.exception
    return result, json.loads(numbers.read_text()), page.read_text()


def test_scripts_get_the_keys_they_were_promised(compared):
    _, numbers, _ = compared
    assert numbers["bound_gpu_hours"] > 0
    assert {policy["name"] for policy in numbers["policies"]} == {"forebay", "static-peak", "kpa"}
    hours = [policy["gpu_hours"] for policy in numbers["policies"]]
    assert hours == sorted(hours)
    for policy in numbers["policies"]:
        assert policy["vs_clairvoyant"] == pytest.approx(policy["gpu_hours"] / numbers["bound_gpu_hours"])
        assert set(policy["ttft_attainment"]) == set(policy["itl_attainment"]) == {"interactive"}
        assert isinstance(policy["shed"], int)
        assert isinstance(policy["truncated"], int)
        assert isinstance(policy["breaches"], int)
        assert policy["reversals_per_day"] >= 0


def test_what_is_saved_is_what_the_fixed_fleet_costs_more(compared):
    _, numbers, _ = compared
    fixed = next(policy for policy in numbers["policies"] if policy["name"] == "static-peak")
    other = next(policy for policy in numbers["policies"] if policy["name"] == "forebay")
    # A fixed fleet's own first start is paid too: it begins with what the first minutes need.
    assert other["saved_vs_static_usd"] - fixed["saved_vs_static_usd"] == pytest.approx(fixed["cost_usd"] - other["cost_usd"])


def test_people_get_a_table_and_a_sentence(compared):
    result, numbers, _ = compared
    assert "clairvoyant" in result.stdout
    assert numbers["verdict"] in " ".join(result.stdout.split())
    assert re.search(r"[✓✗]\s+forebay", result.stdout)


def test_the_page_has_all_of_them(compared):
    _, numbers, page = compared
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])
    assert {policy["name"] for policy in data["policies"]} == {"forebay", "static-peak", "kpa"}
    assert all(policy["lines"]["at_s"] for policy in data["policies"])
    assert data["bound_gpu_hours"] == numbers["bound_gpu_hours"]


def test_the_same_seed_gives_the_same_numbers(tmp_path):
    words = ["--spec", spec(tmp_path), "--trace", trace(tmp_path, 40, 60.0), "--policies", "kpa", "--no-bound", "-j", "1"]
    timed = {"decide_ms"}
    runs = []
    for _ in range(2):
        result = invoke(command, *words, "--json", "-")
        (policy,) = json.loads(result.stdout)["policies"]
        runs.append({key: value for key, value in policy.items() if key not in timed})
    assert runs[0] == runs[1]


def test_more_seeds_give_confidence(tmp_path):
    words = ["--spec", spec(tmp_path), "--trace", trace(tmp_path, 40, 60.0), "--policies", "kpa", "--no-bound", "-j", "1"]
    result = invoke(command, *words, "--seeds", "2", "--rate-scale", "0.5", "--json", "-")
    (policy,) = json.loads(result.stdout)["policies"]
    assert policy["seeds"] == [0, 1]
    assert set(policy["confidence"]) == {"gpu_hours", "both_attainment", "cost_usd"}


def test_seeds_that_change_nothing_are_said_to_and_so_are_lengths_that_are_not_used(tmp_path):
    path = trace(tmp_path, 40, 60.0)
    words = ["--spec", spec(tmp_path), "--trace", path, "--policies", "static", "--no-bound", "-j", "1", "--json", "-"]
    once, twice, drawn = (
        json.loads(invoke(command, *words, *more).stdout)["notes"]
        for more in ([], ["--seeds", "2", "--lengths", path], ["--seeds", "2", "--rate-scale", "0.5"])
    )
    assert not [note for note in (*once, *drawn) if "seeds" in note or "--lengths" in note]
    assert [note for note in twice if note.startswith("All seeds gave the same")]
    assert [note for note in twice if note.startswith("--lengths is not used")]


def test_that_seeds_change_nothing_is_said_before_anything_is_played(tmp_path, monkeypatch):
    """It was said in a note below the table, when all of them had been waited for."""
    words = ["--spec", spec(tmp_path), "--trace", trace(tmp_path, 20, 60.0), "--policies", "static", "-j", "1", "--seeds", "3"]
    rates = tmp_path / "rates.csv"
    rates.write_text("minute,rpm\n0,60\n1,60\n")

    (tmp_path / "scattered").mkdir()
    scattered = spec(tmp_path / "scattered", SPEC.replace("llama-3.1-8b-h100", "p") + SCATTERED)

    def unplayed(request, doing, tell):
        raise BadInput("read")

    monkeypatch.setattr(world, "prepared", unplayed)
    for more, told in (
        ([], True),
        (["--seeds", "1"], False),
        (["--rate-scale", "2"], False),
        (["--start-cv", "0.1"], False),
        (["--faults", "crash=1@10s"], False),
        (["--tiers", "interactive=1,batch=1"], False),
        (["--trace", rates], False),
        (["--spec", scattered], False),
    ):
        result = invoke(command, *words, *more)
        assert said(result) == "read"
        assert result.stderr.startswith("--seeds 3: every seed will give the same") == told, more


def test_others_are_played_once_more_as_tuned_before_the_span(tmp_path):
    path = tmp_path / "hour.jsonl"
    path.write_text("".join(f'{{"at_s": {at_s}, "prompt_tokens": 200, "output_tokens": 20}}\n' for at_s in range(0, 3660, 20)))
    words = ["--spec", spec(tmp_path), "--trace", path, "--policies", "static,static-peak,forebay", "-j", "1"]
    result = invoke(command, *words, "--tuned", "--start", "1h", "--no-bound", "--json", "-")
    assert result.exception is None, result.exception
    numbers = json.loads(result.stdout)
    # Forebay's policy and a fleet of a fixed size for the peak have nothing to be tuned for them.
    assert {policy["name"] for policy in numbers["policies"]} == {"static", "static (tuned)", "static-peak", "forebay"}
    (choice,) = numbers["choices"]
    assert choice["name"] == "static"
    assert {"replicas"} == set(choice["settings"])
    assert numbers["train_start_s"] + numbers["train_s"] <= 3600
    assert any("before what is played" in note for note in numbers["notes"])


def test_where_nothing_came_before_it_is_said_that_tuning_flatters(tmp_path):
    words = ["--spec", spec(tmp_path), "--trace", trace(tmp_path, 20, 60.0), "--policies", "static", "--no-bound", "-j", "1"]
    result = invoke(command, *words, "--tuned")
    assert result.exception is None, result.exception
    assert "nothing comes before it: this flatters them" in " ".join(result.stdout.split())
    assert "chosen settings" in result.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--policies", "forbay"], 'did you mean "forebay"?'),
        (["--policies", "nobody"], ", ".join(EVERY)),
        (["--policies", "hpa"], "those that begin so: hpa-gpu, hpa-queue"),
        (["--cold-start", "400d"], "--cold-start: found '400d', allowed: at most 1d"),
        (["--policies", ","], "found none"),
        (["--trace-format", "azur"], 'did you mean "azure"?'),
        (["--duration", "0s"], "--duration: found '0s', allowed: more than 0"),
        (["--duration", "soon"], "--duration: 'soon' is not a duration"),
        (["--start", "1d"], "no row in the span"),
        (["--rate-scale", "0"], "--rate-scale: found 0"),
        (["--tiers", "interactiv=1"], 'did you mean "interactive"?'),
        (["--tiers", "interactive=-1"], "TIER=WEIGHT"),
        (["--pool", "chatt"], 'did you mean "chat"?'),
        (["--faults", "metrics=eror@1m+1m"], 'did you mean "error"?'),
        (["--faults", "crash=1@9h"], "before the end of the run"),
        (["--dispatch", "random"], "least_loaded, round_robin, prefix"),
        (["--queueing", "gatway"], 'did you mean "gateway"?'),
        (["--order", "lifo"], 'did you mean "fifo"?'),
        (["--actuator", "kueue"], "direct, hpa, keda"),
        (["--actuator", "keda,polling=0s"], "--actuator: found 'polling=0s', allowed: 1s to 1h"),
        (["--peers"], "--peers: found no --weights-bandwidth"),
        (["--weights-bandwidth", "10GB"], "such as 10GB/s"),
        (["--scrape-delay", "x"], "--scrape-delay"),
        (["--scrape-delay", "16m"], "--scrape-delay: found '16m', allowed: at most 15m"),
        (["--tiers", "interactive=1e308,batch=1e308"], "--tiers: found 'interactive=1e308', allowed: TIER=WEIGHT"),
        (["--start", "99999999999999999999w"], "longer than any trace"),
        (["--rate-scale", "1e-9"], "found no request from 0s on at --rate-scale 1e-09, allowed: one or more"),
        (["--json", "same", "--html", "same"], "--html: found 'same', which is what --json names"),
        (["--html", "-"], "--html: found '-', allowed: a file"),
        (["--html", "no-such-folder/page.html"], "name a file in a folder that exists"),
        (["--json", "no-such-folder/numbers.json"], "No such file or directory"),
    ],
)
def test_a_mistake_is_one_sentence_with_what_is_allowed(tmp_path, words, sentence):
    result = invoke(command, "--spec", spec(tmp_path), "--trace", trace(tmp_path, 20, 60.0), "-j", "1", *words)
    assert sentence in said(result)
    assert result.stdout == ""


def test_a_broken_row_is_named_and_leniently_skipped(tmp_path):
    path = trace(tmp_path, 20, 60.0)
    lines = path.read_text().splitlines()
    lines[4] = '{"at_s": 3, "prompt_tokens": -5, "output_tokens": 3}'
    path.write_text("\n".join(lines) + "\n")
    words = ["--spec", spec(tmp_path), "--trace", path, "--policies", "static", "--no-bound", "-j", "1"]
    assert "trace.jsonl:5: prompt_tokens: found '-5'" in said(invoke(command, *words))
    assert invoke(command, *words, "--lenient").exception is None


def test_a_pool_that_can_never_keep_its_promise_is_refused_with_the_limit_that_binds(tmp_path):
    hopeless = SPEC.replace("itl: 50ms", "itl: 1ms")
    sentence = said(invoke(command, "--spec", spec(tmp_path, hopeless), "--trace", trace(tmp_path, 20, 60.0)))
    assert "itl binds" in sentence
    assert "The nearest that it can keep is itl: " in sentence


def test_several_pools_ask_which(tmp_path):
    two = SPEC + SPEC.replace("\npools:\n", "").replace("  chat:", "  long:").replace("model: llama-3.1-8b\n", "model: other\n")
    assert "--pool" in said(invoke(command, "--spec", spec(tmp_path, two), "--trace", trace(tmp_path, 20, 60.0)))


def test_a_fleet_that_is_too_small_for_any_policy_is_said_to_be(tmp_path):
    small = SPEC.replace("max: 5", "max: 1")
    result = invoke(
        command, "--spec", spec(tmp_path, small), "--trace", trace(tmp_path, 3000, 8.0), "--policies", "static", "--no-bound", "-j", "1"
    )
    assert "Not even 1 replica, the most allowed, keeps the promise through the busiest hour" in result.stdout


def test_the_option_names_every_format_there_is():
    assert set(lab_options.TRACE_FORMATS) == {"auto", *FORMATS}


def test_the_default_burstiness_is_the_trace_reader_s():
    assert inspect.signature(command).parameters["cv"].default == DEFAULT_CV


def test_ctrl_c_is_one_line_and_the_code_that_shells_know(tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("forebay.app.lab.world.prepared", stopped)
    result = invoke(command, "--spec", spec(tmp_path), "--trace", trace(tmp_path, 20, 60.0))
    assert (result.exit_code, result.stderr.strip().splitlines()[-1]) == (130, "stopped; nothing was written")


@pytest.mark.parametrize(("columns", "seen", "hidden"), [(80, "breaches", "pace"), (120, "pace", "nothing")])
def test_the_table_fits_the_terminal_and_nothing_in_it_is_cut(tmp_path, columns, seen, hidden):
    app = typer.Typer()
    app.command()(command)
    words = ["--spec", spec(tmp_path), "--trace", trace(tmp_path, 20, 60.0), "--policies", "keda-queue-running,static", "-j", "1"]
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, [str(word) for word in words])
    table = result.stdout.split("note:")[0]
    assert "…" not in table
    assert "keda-queue-running" in table
    assert seen in table
    assert hidden not in table
    assert ("columns more" in table) == (columns < 120)
    assert max(map(len, table.splitlines())) <= columns


def test_the_policy_that_somebody_has_is_played_as_it_is_set(tmp_path):
    """Rivals came with their sources' defaults or tuned; the same one twice is told apart in the table, the numbers and the page."""
    app = typer.Typer()
    app.command()(command)
    names = "hpa-queue:target=3,down=10m,static:replicas=1,static:replicas=3"
    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    words = ["--spec", spec(tmp_path), "--trace", trace(tmp_path, 20, 60.0), "--policies", names, "-j", "1", "--no-bound"]
    result = CliRunner(env={"COLUMNS": "60"}).invoke(app, [str(word) for word in [*words, "--html", page, "--json", numbers]])
    table = result.stdout.split("note:")[0]
    assert max(map(len, table.splitlines())) <= 60
    for told in ("static:", "replicas=1", "replicas=3", "hpa-queue:", "target=3", "down=10m"):
        assert told in table
    policies = {policy["name"]: policy for policy in json.loads(numbers.read_text())["policies"]}
    assert set(policies) == {"hpa-queue:target=3,down=10m", "static:replicas=1", "static:replicas=3"}
    assert policies["static:replicas=3"]["replicas_mean"] == pytest.approx(3, abs=0.5)
    assert "hpa-queue:target=3,down=10m" in page.read_text()
    # Without a schedule there is no limit to be a multiple of: its column went after those that say something.
    assert "limit" not in table
    assert "kept" in table


def test_settings_that_can_not_be_are_told_before_anything_is_played(tmp_path):
    words = ["--spec", spec(tmp_path), "--trace", trace(tmp_path, 20, 60.0), "--policies"]
    assert 'did you mean "target"?' in said(invoke(command, *words, "kpa:targt=3"))
    assert "allowed: at most up, which is 0.85" in said(invoke(command, *words, "wva-v2:down=90%"))
