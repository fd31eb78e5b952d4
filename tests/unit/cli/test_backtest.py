"""``forebay backtest``: policies on what this fleet has really seen."""

import json

import pytest
from lab_case import SPEC, invoke, said, spec, trace

from forebay.adapters.sqlite import SqliteStore
from forebay.app.wiring import STORE_FILE
from forebay.cli.backtest import command
from forebay.ports.store import DemandBucket

WALL_S = 1_750_000_200.0


def remembered(folder, buckets=3, rate=0.5):
    """A state folder of `forebay up` with so many times five minutes of history."""
    folder.mkdir()
    store = SqliteStore(folder / STORE_FILE)
    for number in range(buckets):
        requests = 300 * rate
        store.append_demand("chat", DemandBucket(WALL_S + 300 * number, 300.0, requests, requests * 200, requests * 20))
    store.close()


def test_it_finds_the_state_of_its_spec_and_plays_its_end(tmp_path):
    remembered(tmp_path / ".forebay")
    result = invoke(command, "--spec", spec(tmp_path), "--last", "5m", "--no-bound", "-j", "1", "--json", "-")
    assert result.exception is None, result.exception
    numbers = json.loads(result.stdout)
    assert numbers["duration_s"] == 300
    assert {policy["name"] for policy in numbers["policies"]} == {"forebay", "static-peak"}
    assert numbers["mean_per_s"] == pytest.approx(0.5, rel=0.4)


def test_the_state_may_be_elsewhere_as_the_spec_says(tmp_path):
    remembered(tmp_path / "state", buckets=1)
    words = ["--spec", spec(tmp_path, SPEC + "state: state\n"), "--policies", "static", "--no-bound", "-j", "1"]
    assert invoke(command, *words).exception is None


def test_a_ledger_of_requests_is_history_too(tmp_path):
    words = ["--spec", spec(tmp_path), "--history", trace(tmp_path, 60, 200.0), "--last", "100s", "--policies", "static", "--no-bound"]
    result = invoke(command, *words, "-j", "1", "--json", "-")
    assert json.loads(result.stdout)["duration_s"] == pytest.approx(100, abs=2)


def test_no_history_is_a_sentence(tmp_path):
    assert "run `forebay up` with this configuration first" in said(invoke(command, "--spec", spec(tmp_path)))
    assert "--last" in said(invoke(command, "--spec", spec(tmp_path), "--last", "0s"))


def test_what_nobody_saw_is_told(tmp_path):
    remembered(tmp_path / ".forebay", buckets=2)
    store = SqliteStore(tmp_path / ".forebay" / STORE_FILE)
    store.append_demand("chat", DemandBucket(WALL_S + 900, 300.0, 150.0, 30_000.0, 3_000.0))
    store.close()
    result = invoke(command, "--spec", spec(tmp_path), "--policies", "static", "--no-bound", "-j", "1")
    assert "Nothing is known of 1 of the recorded spans of 5m" in result.stdout
