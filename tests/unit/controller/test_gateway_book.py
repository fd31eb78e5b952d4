import pytest

from forebay.controller.gateways import ATTAINMENT_SAMPLES_MIN, FORGET_S, GATEWAYS_MAX, GatewayBook
from forebay.domain.due import Due
from forebay.domain.roster import Corrected, LaneLoad, PoolLoad, ReplicaLoad, Snapshot, TierCounts
from forebay.domain.signal import Known, Unknown

LEASE_S = 10.0


def counts(tier="interactive", preemptible=False, arrived=0, met=0, missed=0):
    return TierCounts(tier, preemptible, arrived, arrived * 100, arrived * 10, 0, 0, 0, 0, met, missed)


def snapshot(gateway="g", arrived=0, waiting=0, batch_waiting=0, streams=(), met=0, missed=0, version=1, at_s=0.0):
    lanes = (LaneLoad("interactive", False, waiting, 0, 0.0), LaneLoad("batch", True, batch_waiting, 0, 0.0))
    replicas = tuple(ReplicaLoad(name, count, count * 100, 0, 0) for name, count in streams)
    rows = (counts(arrived=arrived, met=met, missed=missed), counts("batch", True, arrived=1000 * arrived, met=7 * met))
    return Snapshot(gateway, at_s, 1, version, (PoolLoad("chat", lanes, replicas, rows),))


@pytest.fixture
def book():
    book = GatewayBook(LEASE_S)
    book.hello("g", 0.0)
    return book


def test_no_gateway_is_unknown_and_not_zero():
    empty = GatewayBook(LEASE_S)
    assert empty.lanes_waiting("chat", 0.0) == Unknown("no_gateway")
    assert empty.rate("chat", "arrived", 0.0) == Unknown("no_gateway")
    assert empty.streams("chat", "r", 0.0) == 0


def test_what_waits_is_summed_net_of_preemptible_tiers(book):
    book.hello("h", 0.0)
    book.snapshot(snapshot(waiting=3, batch_waiting=100), 1.0)
    assert book.lanes_waiting("chat", 1.0) == Unknown("gateway_lost")
    book.snapshot(snapshot("h", waiting=4), 1.0)
    assert book.lanes_waiting("chat", 1.0) == Known(7.0, 1.0)


def test_what_waits_of_preemptible_tiers_and_what_was_not_served_are_told_besides(book):
    def told(row):
        return Snapshot("g", row, 1, 1, (PoolLoad("chat", (LaneLoad("batch", True, 9, 0, 0.0),), (), (
            TierCounts("interactive", False, 10 * row, 0, 0, 0, 4 * row, 2 * row, row, 0, 0),
            TierCounts("batch", True, 500 * row, 0, 0, 0, 500 * row, 0, 0, 0, 0),
        )),))  # fmt: skip

    assert (book.preemptible_waiting("chat", 0.0), book.unserved("chat", 0.0)) == (None, None)
    for at_s in (1, 2):
        book.snapshot(told(at_s), float(at_s))
    assert book.preemptible_waiting("chat", 2.0) == 9
    assert book.unserved("chat", 2.0) == {"arrived": 10, "shed": 4, "failed": 2, "truncated": 1}


def test_one_silent_gateway_makes_all_unknown_until_it_speaks_or_leaves(book):
    book.hello("h", 0.0)
    for name in "gh":
        book.snapshot(snapshot(name, waiting=1), 1.0)
    book.snapshot(snapshot(waiting=1), 20.0)
    assert isinstance(book.lanes_waiting("chat", 20.0), Unknown)
    assert book.of_record(20.0) == ["g"]
    book.bye("h")
    assert book.lanes_waiting("chat", 20.0) == Known(1.0, 20.0)


def test_a_gateway_lost_for_long_is_forgotten_but_a_connected_silent_one_is_not(book):
    book.hello("h", 0.0)
    book.lost("h")
    assert book.expire(FORGET_S) == []
    assert book.expire(FORGET_S + 1) == ["h"]
    assert list(book.records) == ["g"]


def test_rates_are_differences_of_counters_over_the_window(book):
    for second in range(41):
        book.snapshot(snapshot(arrived=2 * second, at_s=float(second)), float(second))
    assert book.rate("chat", "arrived", 40.0) == Known(2.0, 40.0)
    assert book.rate("chat", "arrived_prompt_tokens", 40.0) == Known(200.0, 40.0)


def test_a_rate_over_a_moment_is_not_known(book):
    book.snapshot(snapshot(arrived=0), 0.0)
    book.snapshot(snapshot(arrived=5, at_s=1.0), 1.0)
    assert book.rate("chat", "arrived", 1.0) == Unknown("short")


def test_a_restarted_gateway_starts_its_counters_again_and_no_rate_is_negative(book):
    for second in range(20):
        book.snapshot(snapshot(arrived=100 + second, at_s=float(second)), float(second))
    for second in range(20, 30):
        book.snapshot(snapshot(arrived=second - 20, at_s=float(second)), float(second))
    assert book.rate("chat", "arrived", 29.0) == Known(1.0, 29.0)


def test_snapshots_that_a_stopped_controller_takes_all_at_once_are_no_rush(book):
    """SIGSTOP for a minute, SIGCONT: what queued up in the socket arrives in one moment; 2/s were taken for 26/s."""
    for second in range(41):
        book.snapshot(snapshot(arrived=2 * second, at_s=float(second)), float(second))
    for second in range(41, 101):
        book.snapshot(snapshot(arrived=2 * second, at_s=float(second)), 100.0)
    assert book.rate("chat", "arrived", 100.0) == Known(2.0, 100.0)
    for second in range(101, 106):
        book.snapshot(snapshot(arrived=2 * second, at_s=float(second)), float(second))
        assert book.rate("chat", "arrived", float(second)) == Known(2.0, float(second))


def test_a_gateway_whose_clock_began_again_starts_its_samples_again(book):
    book.snapshot(snapshot(arrived=10, at_s=5000.0), 1.0)
    for second in range(2, 12):
        book.snapshot(snapshot(arrived=8 + second, at_s=float(second)), float(second))
    assert book.rate("chat", "arrived", 11.0) == Known(1.0, 11.0)


def test_attainment_needs_enough_to_mean_something(book):
    book.snapshot(snapshot(met=0, missed=0), 0.0)
    book.snapshot(snapshot(met=ATTAINMENT_SAMPLES_MIN - 2, missed=1, at_s=5.0), 5.0)
    assert book.attainment("chat", 5.0) == Unknown("few")
    book.snapshot(snapshot(met=30, missed=10, at_s=6.0), 6.0)
    assert book.attainment("chat", 6.0) == Known(0.75, 6.0)


def test_that_none_was_late_is_known_though_too_few_came_to_tell_a_share(book):
    """So a breach is over when what was late has left the window, asked or not."""
    assert GatewayBook(LEASE_S).ttft_missed("chat", 0.0) == Unknown("no_gateway")
    book.snapshot(snapshot(), 0.0)
    assert book.ttft_missed("chat", 0.0) == Unknown("short"), "of a moment, as after a start"
    book.snapshot(snapshot(met=2, missed=3, at_s=40.0), 40.0)
    assert book.ttft_missed("chat", 40.0) == Known(3.0, 40.0)
    for at_s in (100.0, 200.0, 340.0, 345.0):
        book.snapshot(snapshot(met=2, missed=3, at_s=at_s), at_s)
    assert (book.ttft_missed("chat", 345.0), book.attainment("chat", 345.0)) == (Known(0.0, 345.0), Unknown("few"))


def test_what_runs_is_summed_net_of_preemptible_tiers_and_not_known_while_a_gateway_is_silent(book):
    def running(gateway, *rows):
        load = PoolLoad("chat", (), tuple(ReplicaLoad(f"r{number}", *row) for number, row in enumerate(rows)), ())
        return Snapshot(gateway, 0.0, 1, 1, (load,))

    book.hello("h", 0.0)
    book.snapshot(running("g", (5, 500, 2, 200), (4, 400)), 1.0)
    assert book.running("chat", 1.0) == Unknown("gateway_lost")
    book.snapshot(running("h", (1, 100, 1, 100), (3, 300)), 1.0)
    assert book.running("chat", 1.0) == Known(10.0, 1.0)
    assert book.running("chat", 1.0 + LEASE_S + 1) == Unknown("gateway_lost")


def ended(second, older=False, gateway="g"):
    told = {} if older else {"completed_output_tokens": 60 * second, "itl_met": 3 * second, "itl_missed": second}
    rows = [
        TierCounts(tier, preemptible, 0, 0, 0, 2 * second, 0, 0, 0, 0, 0, **told)
        for tier, preemptible in (("interactive", False), ("batch", True))
    ]
    return Snapshot(gateway, float(second), 1, 1, (PoolLoad("chat", (), (), tuple(rows)),))


def test_what_ends_is_counted_net_of_preemptible_tiers(book):
    for second in range(41):
        book.snapshot(ended(second), float(second))
    assert book.rate("chat", "completed", 40.0) == Known(2.0, 40.0)
    assert book.rate("chat", "completed_output_tokens", 40.0) == Known(60.0, 40.0)
    assert book.attainment("chat", 40.0, "itl") == Known(0.75, 40.0)
    assert book.attainment("chat", 40.0) == Unknown("few")


def test_what_an_older_gateway_does_not_count_is_not_known_and_not_zero(book):
    book.hello("h", 0.0)
    for second in range(41):
        book.snapshot(ended(second, older=True), float(second))
        book.snapshot(ended(second, gateway="h"), float(second))
    assert book.rate("chat", "completed", 40.0) == Known(4.0, 40.0)
    assert book.rate("chat", "completed_output_tokens", 40.0) == Unknown("missing")
    assert book.attainment("chat", 40.0, "itl") == Known(0.75, 40.0), "of those that are counted"
    for second in range(41, 81):
        book.snapshot(ended(second - 41), float(second))
        book.snapshot(ended(second, gateway="h"), float(second))
    assert book.rate("chat", "completed_output_tokens", 80.0) == Known(120.0, 80.0), "it was replaced by a newer one"


def test_streams_on_a_replica_are_unknown_while_a_gateway_of_record_has_not_said(book):
    assert book.streams("chat", "r", 1.0) is None
    book.snapshot(snapshot(streams=[("r", 2)]), 1.0)
    book.hello("h", 1.0)
    assert book.streams("chat", "r", 1.0) is None
    book.snapshot(snapshot("h", streams=[("r", 3), ("other", 9)]), 1.0)
    assert book.streams("chat", "r", 1.0) == 5
    assert book.live_tokens("chat", "r") == (500.0, 0.0)


def test_a_snapshot_acknowledges_the_roster_it_names(book):
    book.snapshot(snapshot(version=7), 1.0)
    assert book.records["g"].acknowledged == (1, 7)
    book.acknowledged("g", 1, 5, 1.0)
    assert book.records["g"].acknowledged == (1, 7)


def test_the_book_is_bounded():
    book = GatewayBook(LEASE_S)
    assert all(book.hello(f"g{number}", 0.0) for number in range(GATEWAYS_MAX))
    assert not book.hello("one too many", 0.0)
    assert book.hello("g0", 1.0)


def told(gateway, *dues):
    lanes = (LaneLoad("interactive", False, 0, 0, 0.0), LaneLoad("batch", True, 9, 0, 0.0, dues))
    return Snapshot(gateway, 0.0, 1, 1, (PoolLoad("chat", lanes, (), ()),))


def test_what_is_due_is_put_together_over_gateways_and_ages(book):
    assert book.preemptible_due("chat", 0.0) == ()
    book.hello("h", 0.0)
    book.snapshot(told("g", Due(10.0, 3), Due(100.0, 4)), 1.0)
    assert book.preemptible_due("chat", 1.0) == (Due(10.0, 3), Due(100.0, 4)), "the other has said nothing yet"
    book.snapshot(told("h", Due(98.0, 5)), 3.0)
    assert book.preemptible_due("chat", 3.0) == (Due(8.0, 3), Due(98.0, 9))
    book.snapshot(told("h"), 13.0)
    assert book.preemptible_due("chat", 13.0) == (Due(0.0, 3), Due(88.0, 4)), "what a silent one said last stands"
    assert isinstance(book.lanes_waiting("chat", 20.0), Unknown)
    book.bye("g")
    assert book.preemptible_due("chat", 20.0) == ()


def test_what_came_grows_by_what_gateways_count_and_a_gateway_that_began_again_counts_from_nothing(book):
    book.snapshot(snapshot(arrived=1000, at_s=1.0), 1.0)
    assert book.came.total("chat") == (0, 0, 0)
    book.snapshot(snapshot(arrived=1010, at_s=2.0), 2.0)
    assert book.came.total("chat") == (10, 1000, 100)
    book.snapshot(snapshot(arrived=3, at_s=3.0), 3.0)
    assert book.came.total("chat") == (13, 1300, 130)
    book.bye("g")
    book.hello("g", 4.0)
    book.snapshot(snapshot(arrived=2, at_s=4.0), 4.0)
    assert book.came.total("chat") == (13, 1300, 130)


def test_corrections_are_told_once_summed_over_gateways_net_of_preemptible_tiers(book):
    def told(name, at_s, *corrected):
        rows = [
            TierCounts(tier, batch, 1, 0, 0, 0, 0, 0, 0, 0, 0, corrected=tuple(Corrected(*one) for one in corrected))
            for tier, batch in (("interactive", False), ("batch", True))
        ]
        book.snapshot(Snapshot(name, at_s, 1, 1, (PoolLoad("chat", (), (), tuple(rows)),)), at_s)

    book.hello("h", 0.0)
    for name in "gh":
        told(name, 1.0, (300, 5, 5))
    assert book.came.corrections("chat") == {}
    told("g", 2.0, (300, 8, 1), (600, -2, -1))
    told("h", 2.0, (300, 5, 6))
    assert book.came.corrections("chat") == {300: (3, -3), 600: (-2, -1)}
    assert book.came.corrections("chat") == {}
    told("g", 3.0, (600, -2, -1))
    assert book.came.corrections("chat") == {}
