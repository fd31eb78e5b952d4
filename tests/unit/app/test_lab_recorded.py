"""What a controller saw come becomes arrivals again: as many, as long, at the same times of day."""

from pathlib import Path

import numpy as np
import pytest

from forebay.adapters.sqlite import SqliteStore
from forebay.app.files import STORE_FILE
from forebay.app.lab.recorded import Buckets, holds_history, is_state, opened, read
from forebay.domain.errors import BadInput
from forebay.ports.store import DemandBucket

BUCKET_S = 300.0
MONDAY_S = 1_750_000_200.0
TIERS = {"interactive": 1.0}


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """An hour: ten minutes at 2/s, ten unknown, forty at 5/s of longer prompts."""
    folder = tmp_path_factory.mktemp("state")
    store = SqliteStore(folder / STORE_FILE)
    for number in range(12):
        if number in {2, 3}:
            continue
        rate, prompt = (2.0, 500.0) if number < 2 else (5.0, 800.0)
        requests = rate * BUCKET_S
        store.append_demand("chat", DemandBucket(MONDAY_S + number * BUCKET_S, BUCKET_S, requests, requests * prompt, requests * 100))
    store.close()
    return folder


def test_buckets_are_read_back_and_what_was_unknown_stays_so(state):
    past = read(state, "chat")
    buckets = Buckets(past)
    assert (past.start_wall_s, past.bucket_s, buckets.duration_s) == (MONDAY_S, BUCKET_S, 3600.0)
    assert buckets.unknown == 2
    np.testing.assert_allclose(buckets.requests[:2], 600)
    np.testing.assert_allclose(buckets.requests[4:], 1500)
    np.testing.assert_allclose(buckets.prompt_means[4:], 800, rtol=1e-6)


def test_the_file_is_as_good_as_its_folder(state):
    assert read(state / STORE_FILE, "chat") == read(state, "chat")
    assert is_state(state)
    assert is_state(state / STORE_FILE)
    (state / "trace.jsonl").write_text('{"at_s": 1}\n')
    assert not is_state(state / "trace.jsonl")
    assert [holds_history(path) for path in (state, state / STORE_FILE, state / "trace.jsonl", state.parent)] == [True, True, False, False]


def test_a_file_that_can_not_be_read_is_no_history(tmp_path, monkeypatch):
    """A trace that may not be read ended with a traceback."""

    def refused(path, mode):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "trace.csv").write_text("")
    monkeypatch.setattr(Path, "open", refused)
    assert not is_state(tmp_path / "trace.csv")


def test_requests_are_drawn_at_the_recorded_rates_and_lengths(state):
    trace = opened(read(state, "chat"), "past", TIERS, (0.0, None), 1.0, 1.0, seed=3)
    chunks = list(trace.source())
    at_s = np.concatenate([chunk.at_s for chunk in chunks])
    prompts = np.concatenate([chunk.prompt_tokens for chunk in chunks])
    assert (np.diff(at_s) >= 0).all()
    assert not ((at_s >= 600) & (at_s < 1200)).any()
    assert len(at_s) == pytest.approx(1200 + 12_000, rel=0.05)
    assert prompts[at_s >= 1200].mean() == pytest.approx(800, rel=0.05)
    assert trace.start_wall_s == MONDAY_S


def test_a_part_of_it_keeps_its_own_hours(state):
    trace = opened(read(state, "chat"), "past", TIERS, (1800.0, 600.0), 2.0, 1.0, seed=3)
    assert trace.duration_s == 600.0
    assert trace.start_wall_s == MONDAY_S + 1800
    (chunk,) = trace.source()
    assert len(chunk.at_s) == pytest.approx(600 * 10, rel=0.05)
    assert chunk.prompt_tokens.mean() == pytest.approx(800, rel=0.05)


def test_the_same_seed_gives_the_same_requests(state):
    drawn = [opened(read(state, "chat"), "past", TIERS, (0.0, None), 1.0, 2.0, seed) for seed in (1, 1, 2)]
    first, again, other = (next(trace.source()) for trace in drawn)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first.at_s, other.at_s)


def test_nothing_recorded_is_said(state):
    with pytest.raises(BadInput, match="no demand of the pool long is recorded"):
        read(state, "long")
    with pytest.raises(BadInput, match="there is no history at"):
        read(state / "nowhere", "chat")
    with pytest.raises(BadInput, match="nothing is recorded from 2h on"):
        opened(read(state, "chat"), "past", TIERS, (7200.0, None), 1.0, 1.0, 0)
    with pytest.raises(BadInput, match="no request is recorded"):
        opened(read(state, "chat"), "past", TIERS, (600.0, 600.0), 1.0, 1.0, 0)
