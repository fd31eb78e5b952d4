"""Laws that divide a rate or a count of requests by a target, and what each makes of time: Ray, SkyServe, KubeAI, dstack."""

import pytest

from forebay.domain.signal import Unknown
from forebay.scaling.baselines.dstack import Dstack, DstackSettings
from forebay.scaling.baselines.kubeai import KubeAi
from forebay.scaling.baselines.ray import Ray, RaySettings
from forebay.scaling.baselines.skyserve import Sky, SkySettings


def test_ray_up_after_30_s_of_wanting_it_down_after_600(drive):
    pool = drive(Ray(), desired=10)
    # 30 ongoing ÷ 2 = 15, from the first look on; it acts at 30 s.
    assert pool.hold(20, every_s=10.0, running=30) == [10, 10]
    assert pool.hold(20, every_s=10.0, running=30) == [10, 15]
    # 12 ongoing: the look-back still holds 30 for a while; the direction turns at once, and 600 s later it acts.
    counts = pool.hold(700, every_s=10.0, running=12)
    assert counts.index(6) == pytest.approx(60, abs=3)
    assert set(counts) == {15, 6}


def test_ray_counts_queued_requests_and_never_falls_from_several_to_none(drive):
    pool = drive(Ray(), desired=3, least=0)
    assert drive.term(pool.at(0.0, running=4, lanes=6), "ongoing").replicas == 5
    pool.hold(700, every_s=10.0, running=0)
    assert pool.desired == 1
    pool.hold(700, every_s=10.0, running=0)
    assert pool.desired == 0
    assert pool.at(pool.now_s + 10.0, lanes=1).replicas == 1


def test_ray_factor_and_the_step_that_frees_a_stuck_count(drive):
    slow = drive(Ray(RaySettings(up_factor=0.5, up_delay_s=0.0)), desired=10)
    assert slow.at(0.0, running=40).replicas == 15  # 10 + 0.5 × (20 − 10)
    stuck = drive(Ray(RaySettings(down_factor=0.01, down_delay_s=0.0)), desired=10)
    assert stuck.at(0.0, running=10).replicas == 9  # ceil(10 − 0.05) = 10 would be stuck


@pytest.mark.parametrize("why", ["refused", "missing", "nan"])
def test_ray_without_metrics_has_no_requests(drive, why):
    pool = drive(Ray(), desired=10)
    pool.at(0.0, running=20)
    pool.hold(660, every_s=10.0, **drive.dark(why))
    assert pool.desired == 1


def test_skyserve_counts_fifteen_ticks_up_and_sixty_down(drive):
    law = Sky(SkySettings(2.0, fallback=False))
    pool = drive(law, desired=3)
    # 9.1/s ÷ 2 = 4.55 → 5, on the 15th tick of 20 s.
    counts = pool.hold(320, every_s=20.0, rate=9.1)
    assert counts == [3] * 14 + [5, 5]
    down = drive(law, desired=5)
    counts = down.hold(1240, every_s=20.0, rate=0.5)
    assert counts == [5] * 59 + [1] * 3


def test_skyserve_asks_for_on_demand_beside_what_is_not_ready(drive):
    pool = drive(Sky(SkySettings(2.0)), desired=4)
    pool.at(0.0, rate=8.0)
    decision = pool.at(20.0, ready=3, pending=1, rate=8.0)
    assert decision.replicas == 5
    assert decision.reason == "on_demand_fallback"
    assert pool.at(40.0, ready=5, rate=8.0).replicas == 4


def test_kubeais_mean_starts_from_nothing_and_halves_a_step_after_five_minutes(drive):
    pool = drive(KubeAi(), desired=1)
    # 1,000 active from the start ÷ 100 = 10 in the end; after 30 of 60 slots the mean is 500: 5.
    counts = pool.hold(600, every_s=10.0, running=1000)
    assert counts[29] == 5
    assert counts[58:60] == [10, 10]


def test_kubeai_down_after_thirty_seconds_of_wanting_it(drive):
    pool = drive(KubeAi(), desired=10)
    # The mean is far below at once; it waits from 0 to 30 s.
    assert pool.hold(50, every_s=10.0, running=600) == [10, 10, 10, 1, 1]


def test_kubeai_skips_the_tick_when_one_proxy_is_silent(drive):
    pool = drive(KubeAi(), desired=7)
    assert set(pool.hold(600, every_s=10.0, running=10, lanes=Unknown("gateway_lost"))) == {7}


def test_kubeais_proxy_wakes_the_first_replica_at_once(drive):
    assert drive(KubeAi(), desired=0, least=0).at(0.0, running=0, lanes=1).replicas == 1


def test_dstack_five_minutes_between_changes_up_and_ten_down(drive):
    pool = drive(Dstack(DstackSettings(2.0)), desired=3)
    assert pool.at(0.0, rate=8.5).replicas == 5  # 4.25 → 5; nothing was scaled before
    assert set(pool.hold(290, every_s=10.0, rate=20.0)) == {5}
    assert pool.at(300.0, rate=20.0).replicas == 10
    assert set(pool.hold(590, every_s=10.0, rate=1.0)) == {10}
    assert pool.at(900.0, rate=1.0).replicas == 1


@pytest.mark.parametrize("law", [Dstack(DstackSettings(2.0)), Sky(SkySettings(2.0, fallback=False))])
def test_without_statistics_the_count_stays(drive, law):
    pool = drive(law, desired=7)
    pool.at(0.0, rate=14.0)
    assert set(pool.hold(3600, every_s=20.0, **drive.dark("refused"))) == {7}
