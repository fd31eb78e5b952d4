"""What the forecaster promises: right on shapes it has seen, wide where it knows little, calibrated, total, and small."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.demand.forecast import MEMORY_BYTES_MAX, METHODS, ForecastMemory, Past, learned, predict
from forebay.domain.scaling import History

MONDAY_S = 1_767_571_200.0
"""2026-01-05 00:00 UTC."""
BUCKET_S = 1_200.0
HOUR = 3
"""Buckets."""
DAY = 24 * HOUR


def days(count: float, noise: float = 0.0, bucket_s: float = BUCKET_S) -> np.ndarray:
    """A wave with a period of a day around 40 per second, from 20 to 60, highest at noon, the log a walk that forgets with ``noise`` a step."""
    hours = np.arange(round(count * 86_400 / bucket_s)) * bucket_s / 3600
    shape = 40 - 20 * np.cos(2 * np.pi * hours / 24)
    if not noise:
        return shape
    steps = np.random.default_rng(5).normal(0, noise, len(hours) + 36)
    return shape * np.exp(np.convolve(steps, 0.9 ** np.arange(37))[36 : 36 + len(hours)])


def past_of(values, bucket_s: float = BUCKET_S, start_wall_s: float = MONDAY_S, zone: str = "UTC") -> Past:
    return Past(start_wall_s, bucket_s, np.asarray(values, np.float64), zone)


def taught(past: Past) -> ForecastMemory:
    return learned(ForecastMemory(), past, past.end_wall_s)


def told(past: Past, horizon_s: float, memory: ForecastMemory | None = None):
    return predict(past, past.end_wall_s, horizon_s, taught(past) if memory is None else memory)


@pytest.fixture(scope="module")
def noisy():
    past = past_of(days(4, 0.05))
    return past, taught(past)


class TestPast:
    def test_a_column_of_the_history_becomes_rates_per_second(self):
        packed = np.array([300.0, 600.0, math.nan], "<f4").tobytes()
        past = Past.of(History(MONDAY_S, 300.0, packed, b"", b""))
        assert past.values[:2].tolist() == [1.0, 2.0]
        assert math.isnan(past.values[2])
        assert past.end_wall_s == MONDAY_S + 900

    def test_other_columns_and_no_history(self):
        packed = np.array([30.0], "<f4").tobytes()
        history = History(MONDAY_S, 300.0, b"", packed, b"")
        assert Past.of(history, "prompt_tokens").values.tolist() == pytest.approx([0.1])
        assert len(Past.of(history).values) == 0
        assert len(Past.of(None).values) == 0

    def test_narrow_buckets_are_joined_at_whole_five_minutes_and_a_gap_makes_its_group_unknown(self):
        values = np.arange(14.0)
        values[8] = math.nan
        past = past_of(values, 60.0, MONDAY_S + 180).usable()
        assert (past.start_wall_s, past.bucket_s) == (MONDAY_S + 300, 300.0)
        assert past.values[0] == np.mean([2, 3, 4, 5, 6])
        assert math.isnan(past.values[1])
        assert len(past.values) == 2

    def test_only_four_weeks_are_kept(self):
        past = past_of(np.ones(10_000), 300.0).usable()
        assert len(past.values) == 28 * 288
        assert past.end_wall_s == MONDAY_S + 10_000 * 300


class TestShapes:
    def test_a_rate_that_never_changes_is_foretold_and_surely(self):
        found = told(past_of(np.full(2 * DAY, 40.0)), 3600.0)
        assert found.value == pytest.approx(40, rel=1e-3)
        assert found.quantile(0.9) < 42
        assert found.peak_quantile(0.9) < 43

    def test_the_shape_of_past_days_is_foretold_hours_ahead(self):
        values = days(5)
        past = past_of(values[: 4 * DAY + 6 * HOUR])
        """Six in the morning: 40 per second, and 57 four hours later."""
        came = values[4 * DAY + 10 * HOUR - 1]
        assert told(past, 14_400.0).value == pytest.approx(came, rel=0.04)
        assert abs(values[4 * DAY + 6 * HOUR - 1] - came) > 0.3 * came

    def test_a_busier_day_keeps_the_shape_at_its_own_level(self):
        values = days(6)
        values[4 * DAY :] *= 1.5
        past = past_of(values[: 5 * DAY + 6 * HOUR])
        assert told(past, 7200.0).value == pytest.approx(values[5 * DAY + 8 * HOUR - 1], rel=0.06)

    def test_weekdays_are_told_apart_once_there_are_weeks(self):
        hour = 3600.0
        weekday = np.where(np.arange(24) < 9, 10.0, 30.0)
        week = np.concatenate([weekday] * 5 + [np.full(24, 10.0)] * 2)
        past = past_of(np.concatenate([week] * 4)[: 3 * 168 + 8], hour)
        """Monday, eight in the morning, after a quiet weekend: at nine work begins."""
        found = told(past, 2 * hour)
        assert found.value > 25
        saturday = past_of(np.concatenate([week] * 4)[: 3 * 168 + 5 * 24 + 8], hour)
        assert told(saturday, 2 * hour).value < 15

    def test_the_clock_on_the_wall_is_followed_when_summer_time_begins(self):
        start_s = 1_773_615_600.0
        """Monday 2026-03-16 00:00 in Berlin; clocks go forward in the morning of Sunday the 29th."""
        local = np.where(np.arange(24) < 9, 10.0, 30.0)
        values = np.concatenate([np.tile(local, 13), np.delete(local, 2), local[:8]])
        after = past_of(values, 3600.0, start_s, "Europe/Berlin")
        """Eight o'clock local time on the Monday after the change; an hour ago it was seven, in UTC a day is 24 hours."""
        assert told(after, 2 * 3600.0).value > 25
        assert told(after, 3600.0).value < 15
        in_utc = after._replace(zone="UTC")
        assert told(in_utc, 2 * 3600.0).value < 20

    def test_a_zone_that_does_not_exist_is_taken_for_utc(self):
        past = past_of(days(2), zone="Nowhere/Land")
        assert told(past, 3600.0).value == told(past._replace(zone="UTC"), 3600.0).value


class TestHonesty:
    def test_nothing_is_known_without_history_and_without_a_reading(self):
        found = predict(Past.of(None), MONDAY_S, 300.0, ForecastMemory())
        assert not found.known
        assert math.isnan(found.value)
        assert math.isnan(found.quantile(0.9))
        assert math.isnan(found.peak_quantile(0.9))

    def test_a_reading_alone_is_believed_with_a_wide_margin(self):
        memory = learned(ForecastMemory(), Past.of(None), MONDAY_S, 10.0)
        found = predict(Past.of(None), MONDAY_S + 15, 300.0, memory)
        assert found.value == 10
        assert found.quantile(0.9) > 17
        assert "no history" in found.because

    def test_a_short_history_is_wide_and_says_so(self, noisy):
        short = told(past_of(days(0.125, 0.05)), 1200.0)
        past, memory = noisy
        long = told(past, 1200.0, memory)
        assert short.quantile(0.9) / short.value > long.quantile(0.9) / long.value + 0.15
        assert "short" in short.because
        assert "short" not in long.because

    def test_after_a_gap_the_last_known_demand_counts_and_the_margin_grows(self, noisy):
        past, memory = noisy
        blind = past._replace(values=np.concatenate([past.values, np.full(2 * HOUR, math.nan)]))
        found = told(blind, 1800.0, learned(memory, blind, blind.end_wall_s))
        seen = told(past, 1800.0, memory)
        assert found.known
        assert found.value > 10
        assert found.quantile(0.9) / found.value > seen.quantile(0.9) / seen.value
        assert "no bucket of the last 120 min is known" in found.because

    def test_what_is_older_than_the_farthest_horizon_foretells_nothing(self, noisy):
        past, memory = noisy
        blind = past._replace(values=np.concatenate([past.values, np.full(4 * HOUR + 1, math.nan)]))
        memory = learned(memory, blind, blind.end_wall_s)
        assert not told(blind, 1800.0, memory).known
        memory = learned(memory, blind, blind.end_wall_s, 25.0)
        assert told(blind, 1800.0, memory).value == pytest.approx(25)

    def test_an_outage_in_the_past_is_no_idle_time(self):
        values = days(3.5)
        holed = values.copy()
        holed[2 * DAY + 13 * HOUR : 2 * DAY + 18 * HOUR] = math.nan
        assert told(past_of(holed), 14_400.0).value == pytest.approx(told(past_of(values), 14_400.0).value, rel=0.1)

    def test_a_new_level_is_followed_within_the_hour_and_the_margin_says_that_today_is_unlike_the_past(self):
        values = days(5, 0.02)
        values[4 * DAY + 10 * HOUR :] *= 2.5
        ends = 4 * DAY + 11 * HOUR
        past = past_of(values[:ends])
        found = told(past, 1200.0)
        assert found.value == pytest.approx(values[ends], rel=0.15)
        assert "unlike the past" in found.because
        before = told(past_of(values[: 4 * DAY + 10 * HOUR]), 1200.0)
        assert found.quantile(0.9) / found.value > before.quantile(0.9) / before.value + 0.05


class TestCalibration:
    @pytest.mark.parametrize("sigma", [0.1, 0.3])
    def test_the_stated_quantiles_are_the_achieved_ones(self, sigma):
        """Hourly buckets for ten days, the first four to learn, quantiles and outcomes compared from outside."""
        chance = np.random.default_rng(11)
        walk = np.convolve(chance.normal(0, sigma, 280), [1, 0.7, 0.5, 0.3, 0.2])[:240]
        values = days(10, 0.0, 3600.0) * np.exp(walk)
        memory, within = ForecastMemory(), []
        for origin in range(1, 239):
            past = past_of(values[:origin], 3600.0)
            memory = learned(memory, past, past.end_wall_s)
            if origin >= 96:
                found = told(past, 7200.0, memory)
                came = values[origin + 1]
                within.append(
                    (came <= found.quantile(0.5), came <= found.quantile(0.9), values[origin:][:2].max() <= found.peak_quantile(0.9))
                )
        half, ninety, peak = np.mean(within, axis=0)
        assert half == pytest.approx(0.5, abs=0.12)
        assert ninety == pytest.approx(0.9, abs=0.05)
        assert peak == pytest.approx(0.9, abs=0.05)

    def test_the_achieved_rate_is_told(self, noisy):
        past, memory = noisy
        found = told(past, 1200.0, memory)
        assert found.coverage == pytest.approx(0.9, abs=0.05)
        assert found.peak_coverage == pytest.approx(0.9, abs=0.07)

    def test_quantiles_rise_and_the_peak_is_never_below_the_value(self, noisy):
        past, memory = noisy
        for horizon_s in (0.0, 90.0, 360.0, 5000.0, 14_400.0):
            found = told(past, horizon_s, memory)
            levels = [found.quantile(q) for q in np.linspace(0, 1, 60)]
            assert levels == sorted(levels)
            assert found.peak >= found.value
            assert all(found.peak_quantile(q) >= found.quantile(q) for q in (0.1, 0.5, 0.9, 0.99))


class TestPresentLevel:
    def test_a_reading_above_what_was_foretold_shifts_the_forecast(self, noisy):
        past, memory = noisy
        now_s = past.end_wall_s + 600
        plain = predict(past, now_s, 1200.0, memory)
        for second in range(15, 601, 15):
            memory = learned(memory, past, past.end_wall_s + second, 1.3 * plain.value)
        shifted = predict(past, now_s, 1200.0, memory)
        assert 1.02 * plain.value < shifted.value < 1.3 * plain.value

    def test_an_old_reading_and_an_ill_one_are_not_the_present_level(self, noisy):
        past, memory = noisy
        now_s = past.end_wall_s + 400
        plain = predict(past, now_s, 1200.0, memory)
        old = learned(memory, past, past.end_wall_s + 200, 500.0)
        assert predict(past, now_s, 1200.0, old).value == plain.value
        for ill in (math.nan, math.inf, -1.0, 1e300):
            assert learned(memory, past, now_s, ill) == memory


class TestMemory:
    def test_it_is_small_and_survives_serialising(self):
        past = past_of(days(0.5, 0.05, 300.0), 300.0)
        memory = taught(past)
        packed = msgspec.msgpack.encode(memory)
        assert len(packed) <= MEMORY_BYTES_MAX
        assert told(past, 360.0, msgspec.msgpack.decode(packed, type=ForecastMemory)) == told(past, 360.0, memory)

    def test_nothing_new_teaches_nothing(self, noisy):
        past, memory = noisy
        assert learned(memory, past, past.end_wall_s + 100) is memory
        earlier = past._replace(values=past.values[:-3])
        assert learned(memory, earlier, past.end_wall_s) is memory

    def test_buckets_come_one_by_one_or_several_at_once(self, noisy):
        past = past_of(noisy[0].values[: 2 * DAY])
        base = past._replace(values=past.values[:-20])
        at_once = learned(taught(base), past, past.end_wall_s)
        one_by_one = taught(base)
        for end in range(len(past.values) - 19, len(past.values) + 1):
            one_by_one = learned(one_by_one, past._replace(values=past.values[:end]), past.end_wall_s)
        assert told(past, 1800.0, one_by_one).value == pytest.approx(told(past, 1800.0, at_once).value, rel=5e-3)
        assert told(past, 1800.0, one_by_one).quantile(0.9) == pytest.approx(told(past, 1800.0, at_once).quantile(0.9), rel=1e-2)

    def test_the_beginning_of_the_past_may_move_on(self, noisy):
        past, memory = noisy
        moved = Past(past.start_wall_s + 10 * BUCKET_S, BUCKET_S, np.append(past.values[10:], 40.0))
        longer = past._replace(values=np.append(past.values, 40.0))
        one, other = (told(each, 1800.0, learned(memory, each, each.end_wall_s)).value for each in (moved, longer))
        assert one == pytest.approx(other, rel=2e-2)

    def test_other_buckets_and_a_clock_far_back_start_anew(self, noisy):
        _, memory = noisy
        hourly = past_of(days(2, 0.0, 3600.0), 3600.0)
        assert learned(memory, hourly, hourly.end_wall_s).bucket_s == 3600.0
        back = past_of(days(1), start_wall_s=MONDAY_S - 30 * 86_400)
        assert learned(memory, back, back.end_wall_s).until_wall_s == back.end_wall_s

    def test_the_leading_method_is_named(self, noisy):
        past, memory = noisy
        found = told(past, 3600.0, memory)
        assert found.method in METHODS
        assert found.because.startswith(found.method)
        assert found.weeks == pytest.approx(4 / 7)


numbers = st.floats(allow_nan=True, allow_infinity=True)
rates = st.one_of(numbers, st.floats(0, 1e3), st.just(0.0))


class TestTotal:
    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(rates, max_size=40),
        st.one_of(numbers, st.sampled_from([60.0, 300.0, 3600.0])),
        st.one_of(numbers, st.just(MONDAY_S)),
        numbers,
        st.one_of(numbers, st.just(600.0)),
        st.one_of(st.none(), rates),
        st.sampled_from(["UTC", "Europe/Berlin", "", "../etc", "\0"]),
    )
    def test_ill_input_never_raises(self, values, bucket_s, start_s, now_s, horizon_s, rate, zone):
        past = past_of(values, bucket_s, start_s, zone)
        memory = learned(ForecastMemory(), past, now_s, rate)
        found = predict(past, now_s, horizon_s, memory)
        assert found.known == math.isfinite(found.value)
        assert not found.quantile(0.9) < 0
        msgspec.msgpack.decode(msgspec.msgpack.encode(memory), type=ForecastMemory)

    @settings(max_examples=15, deadline=None)
    @given(st.data())
    def test_a_damaged_memory_is_forgotten_or_survived(self, data):
        past = past_of(days(1.5, 0.05, 3600.0), 3600.0)
        memory = taught(past)
        state = np.frombuffer(memory.state, "<f4").copy()
        for _ in range(data.draw(st.integers(1, 8))):
            state[data.draw(st.integers(0, len(state) - 1))] = data.draw(st.floats(width=32))
        cut = data.draw(st.sampled_from([0, 1, 4, 400]))
        damaged = msgspec.structs.replace(
            memory,
            state=state.tobytes()[cut:],
            level_sum=data.draw(rates),
            level_weight=data.draw(rates),
            weeks=data.draw(rates),
            bucket_s=data.draw(st.sampled_from([3600.0, 3600.0, 0.0, math.nan, 1e-9, 300.0])),
        )
        longer = past._replace(values=np.append(past.values, 41.0))
        found = told(longer, 600.0, learned(damaged, longer, longer.end_wall_s, 40.0))
        assert found.known
        assert found.value >= 0

    def test_a_pool_that_never_served_is_foretold_to_be_idle(self):
        found = told(past_of(np.zeros(2 * DAY)), 1800.0)
        assert found.value == pytest.approx(0, abs=1e-6)
        assert found.quantile(0.99) < 1e-3
