"""Past demand: what gateways told becomes five-minute buckets, an outage becomes nothing, a restart forgets nothing."""

import math

import numpy as np
import pytest

from forebay.controller.demand import BUCKET_S, Demand
from forebay.ports import DemandBucket
from forebay.testing.store import MemoryStore

WALL_S = 1_767_571_200.0
"""A whole bucket begins here."""


class Watched:
    """A demand that a test feeds second by second."""

    def __init__(self, store=None):
        self.store = store or MemoryStore()
        self.now_s = 50.0
        self.wall_s = WALL_S
        self.came = (0.0, 0.0, 0.0)
        self.demand = Demand(self.store, ["chat"])

    def again(self):
        """The same world with a new controller, whose clock begins anew."""
        later = Watched(self.store)
        later.wall_s = self.wall_s
        return later

    def pass_s(self, seconds, per_s=None, every_s=1.0, heard=True):
        for _ in range(round(seconds / every_s)):
            self.take(None if per_s is None or not heard else self.came)
            self.now_s += every_s
            self.wall_s += every_s
            self.came = tuple(sum + every_s * factor * (per_s or 0.0) for sum, factor in zip(self.came, (1, 1000, 100), strict=True))

    def take(self, came, corrections=None):
        self.demand.take("chat", came, corrections or {}, self.now_s, self.wall_s)

    def column(self, name="requests"):
        history = self.demand.history("chat")
        return [] if history is None else np.frombuffer(getattr(history, name), "<f4").tolist()


def test_a_bucket_is_shown_and_kept_once_it_is_over():
    world = Watched()
    world.pass_s(BUCKET_S, 2.0)
    assert world.demand.history("chat") is None
    assert list(world.store.demand("chat")) == []
    world.pass_s(BUCKET_S + 1, 4.0)
    assert world.column() == pytest.approx([600, 1200])
    assert world.column("prompt_tokens") == pytest.approx([600_000, 1_200_000])
    assert world.column("output_tokens") == pytest.approx([60_000, 120_000])
    assert world.demand.history("chat").start_wall_s == WALL_S
    assert world.demand.history("chat").bucket_s == BUCKET_S
    assert [bucket.start_wall_s for bucket in world.store.demand("chat")] == [WALL_S, WALL_S + BUCKET_S]


def test_the_same_object_is_shown_until_a_bucket_is_over():
    world = Watched()
    world.pass_s(BUCKET_S + 1, 2.0)
    shown = world.demand.history("chat")
    world.pass_s(100, 2.0)
    assert world.demand.history("chat") is shown


def test_looking_seldom_changes_nothing():
    world = Watched()
    world.pass_s(2 * BUCKET_S + 10, 3.0, every_s=10.0)
    assert world.column() == pytest.approx([900, 900])


def test_silent_gateways_leave_a_bucket_unknown_and_a_short_silence_is_filled_up():
    world = Watched()
    world.pass_s(BUCKET_S, 2.0)
    world.pass_s(70, 2.0, heard=False)
    world.pass_s(BUCKET_S - 70, 2.0)
    world.pass_s(50, 2.0, heard=False)
    world.pass_s(BUCKET_S - 50 + 1, 2.0)
    first, second, third = world.column()
    assert (first, third) == pytest.approx((600, 600))
    assert math.isnan(second)


def test_trailing_unknown_buckets_belong_to_the_history():
    world = Watched()
    world.pass_s(BUCKET_S, 2.0)
    world.pass_s(2 * BUCKET_S + 1)
    assert [math.isnan(value) for value in world.column()] == [False, True, True]


def test_a_restart_within_a_bucket_loses_no_bucket():
    world = Watched()
    world.pass_s(BUCKET_S + 200, 2.0)
    after = world.again()
    after.wall_s += 5
    after.pass_s(BUCKET_S, 2.0)
    assert after.column() == pytest.approx([600, 600])


def test_a_long_absence_is_unknown():
    world = Watched()
    world.pass_s(BUCKET_S + 1, 2.0)
    after = world.again()
    after.wall_s += 3 * BUCKET_S
    after.pass_s(BUCKET_S, 2.0)
    assert [math.isnan(value) for value in after.column()] == [False, True, True, True, False]


def test_a_controller_that_stood_still_knows_nothing_of_the_time():
    world = Watched()
    world.pass_s(100, 2.0)
    world.now_s += 100
    world.wall_s += 100
    world.pass_s(101, 2.0)
    assert world.column() == []


def test_a_bucket_that_was_kept_just_before_a_crash_is_not_replaced_by_its_last_note():
    world = Watched()
    world.pass_s(290, 2.0)
    note = world.store.get("demand_now/chat")
    world.pass_s(11, 2.0)
    world.store.put("demand_now/chat", note)
    kept = list(world.store.demand("chat"))
    after = world.again()
    after.pass_s(10, 2.0)
    assert list(after.store.demand("chat")) == kept
    assert after.column() == pytest.approx([600])


def test_a_clock_that_is_set_back_shows_no_future_and_fills_the_same_buckets_again():
    world = Watched()
    world.pass_s(3 * BUCKET_S + 1, 2.0)
    world.wall_s = WALL_S + BUCKET_S
    world.pass_s(BUCKET_S + 1, 8.0)
    assert world.column() == pytest.approx([600, 2400], rel=0.01)
    world.pass_s(BUCKET_S, 8.0)
    assert world.column() == pytest.approx([600, 2400, 2400], rel=0.01)


def test_four_weeks_are_shown():
    store = MemoryStore()
    for number in range(1, 9000):
        store.append_demand("chat", DemandBucket(WALL_S - number * BUCKET_S, BUCKET_S, 1.0, 2.0, 3.0))
    world = Watched(store)
    world.pass_s(1, 2.0)
    assert len(world.column()) <= 28 * 288
    world.pass_s(BUCKET_S, 2.0)
    assert len(world.column()) == 28 * 288
    assert world.column()[-1] == pytest.approx(600)


def test_buckets_of_another_width_are_not_mixed_in():
    store = MemoryStore()
    store.append_demand("chat", DemandBucket(WALL_S - 600, 60.0, 1.0, 2.0, 3.0))
    world = Watched(store)
    world.pass_s(1, 2.0)
    assert world.demand.history("chat") is None


@pytest.mark.parametrize("damaged", [b"\xff\x00", b"[]", b"{", b'{"start_wall_s": -1}'])
def test_a_damaged_note_is_forgotten(damaged):
    store = MemoryStore()
    store.put("demand_now/chat", damaged)
    world = Watched(store)
    world.pass_s(BUCKET_S + 1, 2.0)
    assert world.column() == pytest.approx([600])


def test_what_a_request_took_corrects_the_bucket_in_which_it_came_over_or_not():
    world = Watched()
    world.pass_s(BUCKET_S + 20, 1.0)
    world.take(world.came, {int(WALL_S): (-240_000, 600), int(WALL_S + BUCKET_S): (500, -50)})
    world.pass_s(BUCKET_S, 1.0)
    assert world.column("prompt_tokens") == pytest.approx([60_000, 300_500], rel=0.02)
    assert world.column("output_tokens") == pytest.approx([30_600, 29_950], rel=0.02)
    assert [bucket.prompt_tokens for bucket in world.store.demand("chat")] == pytest.approx([60_000, 300_500], rel=0.02)
    assert world.column() == pytest.approx([300, 300])


def test_a_correction_that_comes_later_than_an_hour_or_of_an_unknown_bucket_changes_nothing():
    world = Watched()
    world.pass_s(14 * BUCKET_S + 1, 1.0)
    kept = list(world.store.demand("chat"))
    world.take(world.came, {int(WALL_S): (-9, -9), int(WALL_S - BUCKET_S): (7, 7)})
    world.demand.save()
    assert list(world.store.demand("chat")) == kept


def test_a_correction_of_more_than_there_is_leaves_nothing_and_not_less():
    world = Watched()
    world.pass_s(BUCKET_S + 1, 1.0)
    world.take(world.came, {int(WALL_S): (-10_000_000, 0)})
    world.demand.save()
    assert [bucket.prompt_tokens for bucket in world.store.demand("chat")] == [0.0]


def test_a_restart_that_was_announced_forgets_nothing_of_its_bucket_and_doubles_nothing():
    world = Watched()
    world.pass_s(100, 2.0)
    world.take(world.came)
    world.demand.save()
    after = world.again()
    after.pass_s(201, 2.0)
    assert after.column() == pytest.approx([600])


def test_a_burst_counts_once_however_young_its_gateway_is():
    world = Watched()
    for second in range(301):
        world.take((0.0 if second < 3 else 32.0, 0.0, 0.0))
        world.now_s += 1
        world.wall_s += 1
    assert world.column() == pytest.approx([32])
