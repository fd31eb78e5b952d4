"""``forebay simulate``: one policy, its numbers, its page."""

import json

import pytest
from lab_case import SPEC, invoke, said, spec, trace

from forebay.adapters.sqlite import SqliteStore
from forebay.app.files import STORE_FILE
from forebay.cli.simulate import command
from forebay.ports.store import DemandBucket


@pytest.fixture
def words(tmp_path):
    return ["--spec", spec(tmp_path), "--trace", trace(tmp_path, 60, 120.0), "-j", "1"]


def test_scripts_get_a_policy_s_keys_and_the_run_s(words):
    result = invoke(command, *words, "--no-bound", "--json", "-")
    assert result.exception is None
    numbers = json.loads(result.stdout)
    assert (numbers["name"], numbers["requests"]) == ("forebay", 60)
    assert numbers["requests_per_s"] == pytest.approx(60 / numbers["wall_s"])
    assert numbers["vs_clairvoyant"] is None
    assert {"gpu_hours", "ttft_attainment", "itl_attainment", "shed", "truncated", "scale_actions", "breaches", "cost_usd"} <= set(numbers)


def test_the_bound_is_found_unless_it_is_left_out(words):
    numbers = json.loads(invoke(command, *words, "--policy", "static", "--json", "-").stdout)
    assert numbers["vs_clairvoyant"] == pytest.approx(numbers["gpu_hours"] / numbers["bound_gpu_hours"])


def test_people_get_times_hours_and_the_page(words, tmp_path):
    result = invoke(command, *words, "--no-bound", "--policy", "kpa", "--html", tmp_path / "page.html")
    assert result.exception is None
    assert "interactive: first token" in result.stdout
    assert "starting" in result.stdout
    assert str(tmp_path / "page.html") in result.stdout
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert not list(tmp_path.glob("*.part"))


def test_faults_reach_the_run(words):
    calm, ill = (
        json.loads(invoke(command, *words, "--no-bound", "--policy", "static", *more, "--json", "-").stdout)
        for more in ([], ["--faults", "crash=1@30s"])
    )
    assert ill["gpu_hours_by_state"]["failed"] > 0 == calm["gpu_hours_by_state"]["failed"]


def test_one_policy_is_one(words):
    assert "`forebay compare` plays several" in said(invoke(command, *words, "--policy", "forebay,kpa"))
    unknown = said(invoke(command, *words, "--policy", "kpaa"))
    assert 'did you mean "kpa"?' in unknown
    assert "allowed: forebay, static" in unknown


def test_what_is_before_the_start_is_history(tmp_path):
    words = ["--spec", spec(tmp_path), "--trace", trace(tmp_path, 200, 900.0), "-j", "1", "--no-bound", "--start", "10m", "--json", "-"]
    assert json.loads(invoke(command, *words).stdout)["duration_s"] == pytest.approx(295, abs=5)


def test_a_state_folder_of_up_is_a_trace_of_what_its_controller_saw(tmp_path):
    """Only `backtest` read it: nobody could tune, or compare with others as tuned, on what their own fleet saw."""
    state = tmp_path / "state"
    state.mkdir()
    store = SqliteStore(state / STORE_FILE)
    for number in range(2):
        store.append_demand("chat", DemandBucket(1_750_000_200.0 + 300 * number, 300.0, 60.0, 12_000.0, 1_200.0))
    store.close()
    words = ["--spec", spec(tmp_path), "--no-bound", "-j", "1", "--policy", "static", "--json", "-", "--start", "5m"]
    for path in (state, state / STORE_FILE):
        assert "--lengths: trace 'nofile.csv': No such file" in said(invoke(command, *words, "--trace", path, "--lengths", "nofile.csv"))
        result = invoke(command, *words, "--trace", path, "--lengths", trace(tmp_path), "--noise", "0.3", "--column", "code")
        assert result.exception is None, result.exception
        assert f"--noise 0.3 is not used: {path} has the rates as they were" in result.stderr
        assert f"--column code is not used: {path} is a state folder" in result.stderr
        numbers = json.loads(result.stdout)
        assert (numbers["duration_s"], 30 < numbers["requests"] < 100) == (300, True)
        assert any(note.startswith("--lengths is not used") for note in numbers["notes"])
    assert "Is a directory; name a file that can be read" in said(invoke(command, *words, "--trace", tmp_path))


def test_rows_that_were_skipped_are_counted_aloud(words, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(path.read_text() + "no row\n" * 3)
    numbers = json.loads(invoke(command, *words, "--lenient", "--no-bound", "--policy", "static", "--json", "-").stdout)
    assert (numbers["skipped_rows"], numbers["requests"]) == (3, 60)
    told = invoke(command, *words, "--lenient", "--no-bound", "--policy", "static").stdout
    assert "trace.jsonl: rows skipped: 3 broken; the first broken one" in told
    assert "trace.jsonl:61" in told


def test_rows_that_were_put_in_order_are_counted_aloud(words, tmp_path):
    """Lenient reading sorted them without a word."""
    path = tmp_path / "trace.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([rows[0], *rows[3:6], rows[1], *rows[6:30], rows[2], *rows[30:]]))
    numbers = json.loads(invoke(command, *words, "--lenient", "--no-bound", "--policy", "static", "--json", "-").stdout)
    assert (numbers["sorted_rows"], numbers["skipped_rows"], numbers["requests"]) == (2, 0, 60)
    assert any("rows put in order: 2; time goes back by up to" in note for note in numbers["notes"])


def test_a_span_past_the_end_of_the_trace_is_said_to_end_there(words):
    whole, past = (
        json.loads(invoke(command, *words, "--no-bound", "--policy", "static", "--duration", duration, "--json", "-").stdout)["notes"]
        for duration in ("60s", "1h")
    )
    assert not any("The trace ends" in note for note in whole)
    assert any(note.startswith("The trace ends at 1m5") and "of the 1h from 0s on are played" in note for note in past)


def test_a_page_for_stdout_is_refused_before_anything_is_played(words):
    assert "--html: found '-'" in said(invoke(command, *words, "--html", "-"))


def dated(folder):
    """200 requests, one every three seconds from 06:00 in Berlin on, their times with that offset."""
    path = folder / "dated.csv"
    rows = (f"2026-11-24T06:{3 * n // 60:02d}:{3 * n % 60:02d}+01:00,200,20" for n in range(200))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return path


CALENDAR = (
    SPEC
    + """
calendar:
  - {name: open, pools: [chat], days: weekdays, from: "06:05", to: "18:00", timezone: Europe/Berlin, min: 2}
"""
)


def test_a_run_tells_why_at_a_time_by_the_clock_of_its_calendar(tmp_path):
    words = ["--spec", spec(tmp_path, CALENDAR), "--trace", dated(tmp_path), "-j", "1", "--no-bound"]
    result = invoke(command, *words, "--start", "2026-11-24T06:02", "--explain", "06:07", "--explain", "1s", "--json", tmp_path / "it.json")
    assert result.exception is None
    assert "from Tue 24 Nov 2026 06:02 Europe/Berlin on" in result.stdout
    assert "chat: 2 replicas at 5m (Tue 24 Nov 2026 06:07 Europe/Berlin)" in result.stdout
    assert "open wants 2 (Europe/Berlin" in result.stdout
    numbers = json.loads((tmp_path / "it.json").read_text())
    assert [next(term["name"] for term in each["terms"] if term["binding"]) for each in numbers["explained"]][-1] == "calendar"
    told = numbers["timeline"]
    assert (told["zone"], told["start_wall_s"]) == ("Europe/Berlin", 1795496520.0)
    assert told["at_s"] == [60.0 * n for n in range(1, len(told["at_s"]) + 1)]
    assert told["desired"][-1] == 2
    assert told["because"][-1].startswith("open wants 2")
    assert len({len(column) for name, column in told.items() if name not in ("zone", "start_wall_s")}) == 1


def test_a_clock_time_needs_a_trace_with_dates(words):
    assert "the trace has no dates" in said(invoke(command, *words, "--start", "14:32"))
    assert "--explain: found '3m', allowed: before the end of the run" in said(invoke(command, *words, "--explain", "3m"))


def test_to_be_judged_without_a_history_is_said_with_what_to_do(tmp_path):
    words = [
        "--spec",
        spec(tmp_path),
        "--trace",
        trace(tmp_path, 400, 4500.0),
        "-j",
        "1",
        "--no-bound",
        "--policy",
        "static",
        "--json",
        "-",
    ]
    blind, knowing = (json.loads(invoke(command, *words, *more).stdout)["notes"] for more in ([], ["--start", "1h"]))
    assert any("are blind for the first hour" in note and "`--start 1d`" in note for note in blind)
    assert not any("blind" in note for note in knowing)


def test_what_faults_account_for_is_told_and_drawn(tmp_path):
    words = ["--spec", spec(tmp_path), "--trace", trace(tmp_path, 200, 600.0), "-j", "1", "--cold-start", "90s"]
    more = ["--no-bound", "--policy", "static", "--faults", "crash=1@60s,metrics=empty@30s+20s", "--html", tmp_path / "page.html"]
    result = invoke(command, *words, *more, "--json", tmp_path / "it.json")
    assert result.exception is None
    near = json.loads((tmp_path / "it.json").read_text())["near_faults"]
    assert near["missed"] == near["missed_near"] > 0
    assert "that static missed, 100 % fell within reach of the faults" in result.stdout
    drawn = json.loads((tmp_path / "page.html").read_text().split('id="data">')[1].split("</script>")[0])["faults"]
    assert drawn == [["metrics empty", 30.0, 50.0, True], ["crash 1", 60.0, 60.0, False]]
