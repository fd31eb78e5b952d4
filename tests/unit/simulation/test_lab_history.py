"""History: whole buckets only, rebuilt once each, with a past before second 0 where one is given."""

import struct

import pytest
from slot_fleet import BATCH, INTERACTIVE, OUTPUT, Watcher, played, scenario, steady

from forebay.domain.errors import BadInput
from forebay.domain.scaling import History
from forebay.simulation.lab_history import HISTORY_S_MAX, Buckets

WALL_S = 1_700_000_100.0


def unpacked(column):
    return list(struct.unpack(f"<{len(column) // 4}f", column))


def packed(*values):
    return struct.pack(f"<{len(values)}f", *values)


def past(*values, bucket_s=300.0, start_wall_s=WALL_S):
    return History(start_wall_s, bucket_s, packed(*values), packed(*values), packed(*values))


def test_history_grows_by_a_bucket_and_is_shared_in_between():
    watcher = Watcher()
    played(scenario(901.0, start_wall_s=WALL_S), watcher, steady(1.0, 901.0))
    seen = {each.now_s: each.history for each in watcher.seen}
    assert seen[285.0] is None
    assert seen[300.0] is seen[585.0]
    assert seen[900.0] is not seen[585.0]
    last = seen[900.0]
    assert (last.start_wall_s, last.bucket_s) == (WALL_S, 300.0)
    # An arrival at the very end of a bucket was seen in it.
    assert unpacked(last.requests) == [301.0, 300.0, 300.0]
    assert unpacked(last.prompt_tokens) == [30_100.0, 30_000.0, 30_000.0]
    assert unpacked(last.output_tokens) == [301.0 * OUTPUT, 300.0 * OUTPUT, 300.0 * OUTPUT]


def test_preemptible_tiers_are_left_out():
    watcher = Watcher()
    played(scenario(301.0, (INTERACTIVE, BATCH)), watcher, steady(1.0, 301.0, tier=1))
    assert unpacked(watcher.seen[-1].history.requests) == [0.0]


def test_the_past_comes_before_and_a_gap_after_it_is_not_known():
    watcher = Watcher()
    played(scenario(301.0, start_wall_s=WALL_S + 900.0), watcher, steady(1.0, 301.0), past=past(5.0, 6.0))
    first, last = watcher.seen[0].history, watcher.seen[-1].history
    assert first.start_wall_s == last.start_wall_s == WALL_S
    assert unpacked(first.requests)[:2] == [5.0, 6.0]
    assert unpacked(first.requests)[2] != unpacked(first.requests)[2], "NaN"
    assert unpacked(last.requests)[3] == 301.0


def test_a_past_that_reaches_beyond_the_beginning_is_cut():
    buckets = Buckets(WALL_S + 600.0, 300.0, past(1.0, 2.0, 3.0))
    assert unpacked(buckets.view.requests) == [1.0, 2.0]


def test_only_four_weeks_and_a_day_are_kept():
    most = int(HISTORY_S_MAX / 300.0)
    buckets = Buckets(WALL_S + 300.0 * (most + 5), 300.0, past(*range(most + 5)))
    assert len(unpacked(buckets.view.requests)) == most
    buckets.end((1.0, 1.0, 1.0))
    view = buckets.view
    assert len(unpacked(view.requests)) == most
    assert unpacked(view.requests)[0] == 6.0
    assert view.start_wall_s + most * 300.0 == WALL_S + 300.0 * (most + 6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (past(1.0, bucket_s=60.0), "buckets of 60 s"),
        (History(WALL_S, 300.0, packed(1.0), packed(1.0, 2.0), packed(1.0)), "one length"),
        (History(WALL_S, 300.0, b"abc", b"abc", b"abc"), "one length"),
        (past(1.0, start_wall_s=WALL_S + 7.0), "whole number of buckets"),
        (past(1.0, start_wall_s=WALL_S + 3000.0), "whole number of buckets"),
    ],
)
def test_a_past_that_does_not_fit_is_refused(given, words):
    with pytest.raises(BadInput, match=words):
        Buckets(WALL_S + 600.0, 300.0, given)
