"""What a controller kept of demand is read from its file, beside it, and without touching it."""

import numpy as np
import pytest

from forebay.adapters.sqlite import SqliteStore
from forebay.app.lab.kept import kept
from forebay.app.wiring import STORE_FILE
from forebay.domain.errors import BadInput
from forebay.ports import DemandBucket


@pytest.fixture
def state(tmp_path):
    store = SqliteStore(tmp_path / STORE_FILE)
    for start_wall_s in (600.0, 900.0, 1500.0):
        store.append_demand("chat", DemandBucket(start_wall_s, 300.0, start_wall_s, 2.0, 3.0))
    yield tmp_path
    store.close()


def test_buckets_are_laid_out_and_a_missing_one_is_not_known(state):
    for path in (state, state / STORE_FILE):
        past = kept(path, "chat")
        assert (past.start_wall_s, past.bucket_s) == (600.0, 300.0)
        np.testing.assert_array_equal(np.frombuffer(past.requests, "<f4"), [600, 900, np.nan, 1500])
        np.testing.assert_array_equal(np.frombuffer(past.prompt_tokens, "<f4"), [2, 2, np.nan, 2])
        np.testing.assert_array_equal(np.frombuffer(past.output_tokens, "<f4"), [3, 3, np.nan, 3])


def test_nothing_is_kept_of_a_pool_that_never_ran(state):
    assert kept(state, "other") is None


def test_a_folder_without_history_is_said(tmp_path):
    with pytest.raises(BadInput, match="there is no history"):
        kept(tmp_path, "chat")


def test_only_the_last_four_weeks_are_laid_out(state):
    with_future = SqliteStore(state / STORE_FILE)
    with_future.append_demand("chat", DemandBucket(3e9, 300.0, 1.0, 2.0, 3.0))
    with_future.close()
    assert np.frombuffer(kept(state, "chat").requests, "<f4").tolist() == [1.0]
