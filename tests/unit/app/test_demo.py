import fcntl

import msgspec
import pytest

from forebay.app.config import decode
from forebay.app.demo import picture, show
from forebay.app.demo import story as telling
from forebay.app.demo.scenario import Scenario, spec_yaml
from forebay.app.demo.story import Fleet, Look, Story
from forebay.app.demo.summary import DemoSummary, buffer_replicas, buffer_usd_per_hour, summarise
from forebay.domain.errors import BadInput
from forebay.engine.catalogue import PROFILES
from forebay.loadgen.report import Quantiles, Record, ReplayReport
from forebay.scaling.capacity import pool_capacity
from forebay.spec.types import Spec


def test_the_morning_is_a_night_a_ramp_a_day_and_an_evening():
    scenario = Scenario()
    per_min = [round(60 * scenario.rate_per_s(at_s)) for at_s in (0, 480, 780, 1080, 1400, 1500, 1530, 1560, 2000)]
    assert per_min == [100, 100, 250, 400, 400, 400, 250, 100, 100]


def test_both_stories_get_the_same_requests_and_about_as_many_as_the_rates_say():
    rows = Scenario().rows(1)
    assert rows == Scenario().rows(1) != Scenario().rows(2)
    expected = (480 * 100 + 600 * 250 + 420 * 400 + 60 * 250 + 480 * 100) / 60
    assert abs(len(rows) - expected) < 5 * expected**0.5
    assert all(400 <= row.prompt_tokens <= 600 and 24 <= row.output_tokens <= 36 for row in rows)


@pytest.mark.parametrize("buffer", [True, False])
def test_the_configuration_is_the_worked_example(buffer):
    spec = decode(spec_yaml(buffer), "demo.yaml", PROFILES)
    assert isinstance(spec, Spec)
    (pool,) = spec.pools
    assert pool.scaling.buffer is buffer
    assert pool_capacity(pool).rate_per_s == pytest.approx(50 / 60)
    assert pool.profile.cold_start.total_s == 300.0
    assert pool.profile.gpu_hour_usd == 3.0


def test_the_buffer_is_three_replicas_and_nine_dollars_an_hour():
    assert buffer_replicas() == 3
    assert buffer_usd_per_hour() == 9.0


def report(records):
    values = dict.fromkeys(ReplayReport.__struct_fields__, 0)
    quantiles = dict.fromkeys(("ttft_s", "itl_s", "e2e_s", "longest_gap_s", "generator_lag_s"), Quantiles(0.5, 1.25, 2.0))
    return ReplayReport(**{**values, **quantiles, "requests": len(records), "records": records, "shed": 2, "truncated": 1})


def story(buffer):
    looks = tuple(Look(60.0 * minute, 2 + minute, 0, 0, 5 + minute, 10.0 * minute, minute / 10, minute * 0.3) for minute in range(12))
    records = tuple(Record(float(at), at / 10, 20.0, 200, False, "completed", "", 30) for at in range(200))
    return Story(buffer, report((*records, Record(1.0, None, 1.0, 429, False, "shed", "", 0))), looks)


def test_a_summary_counts_replicas_from_settling_on_and_a_refusal_as_missed():
    summary = summarise(story(True), settled_s=240.0)
    assert (summary.replicas_min, summary.replicas_max, summary.queue_max) == (9, 16, 110)
    assert summary.ttft_attainment == round(101 / 201, 4)
    assert summary.gpu_hours == pytest.approx(1.1)
    assert summary.cost_usd == pytest.approx(3.3)
    keys = set(msgspec.to_builtins(summary))
    assert keys >= {"replicas_min", "replicas_max", "ttft_p95_s", "ttft_attainment", "truncated", "errors", "shed", "gpu_hours", "cost_usd"}


def test_the_page_holds_both_stories_and_the_picture(tmp_path):
    stories = (story(True), story(False))
    picture.draw(stories, Scenario(), tmp_path / "demo.png")
    png = (tmp_path / "demo.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 20_000
    one = summarise(stories[0], 240.0)
    text = show.page(DemoSummary(3, one, msgspec.structs.replace(one, ttft_p95_s=168.9)), png)
    assert "168.90" in text
    assert text.count("<tr>") == 1 + len(show.ROWS)


def test_a_folder_in_which_another_demo_runs_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(telling, "FREE_REAL_S_MAX", -1.0)
    lock = tmp_path / "out" / "with-buffer" / "state" / "lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BadInput) as caught:
            Fleet(tmp_path / "out" / "with-buffer", "nothing is read of this")
    assert str(caught.value) == f"--out: another demo runs in {tmp_path / 'out'}; end it, or name another folder"
