"""Whatever is done to arrivals, they stay in order, keep what they don't change, and come out the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.demand.arrays import CHUNK_ROWS, Arrivals, by_time, empty, in_chunks, joined, taken
from forebay.demand.span import COPY_JITTER_S
from forebay.demand.transform import (
    lengthened,
    long_context,
    merged,
    multiplied,
    ramp,
    resampled,
    spike,
    spliced,
    step,
    stretched,
    window,
)


def rows(times, group: int = -1) -> Arrivals:
    at_s = np.array(times, np.float64)
    count = len(at_s)
    return Arrivals(
        at_s,
        (np.arange(count) % 1000 + 1).astype(np.int32),
        np.full(count, 7, np.int32),
        np.zeros(count, np.int16),
        np.full(count, group, np.int64),
        np.zeros(count, np.int32),
    )


def chunks(arrivals: Arrivals, sizes: list[int]):
    start = 0
    for size in [*sizes, len(arrivals.at_s)]:
        yield taken(arrivals, slice(start, start + size))
        start += size


def whole(source) -> Arrivals:
    found, last_s = empty(), -np.inf
    for chunk in source:
        assert len(chunk.at_s) <= CHUNK_ROWS
        if len(chunk.at_s):
            assert chunk.at_s[0] >= last_s
            assert np.all(np.diff(chunk.at_s) >= 0)
            last_s = chunk.at_s[-1]
        found = joined(found, chunk)
    assert [column.dtype for column in found] == [column.dtype for column in empty()]
    return found


def chance(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


TIMES = st.lists(st.floats(0, 30), max_size=60).map(sorted)
SIZES = st.lists(st.integers(0, 20), max_size=4)


@settings(max_examples=25, deadline=None)
@given(TIMES, SIZES, st.floats(0, 4), st.integers(0, 3))
def test_multiplied_rows_are_ordered_repeatable_and_copies_come_within_the_jitter(times, sizes, factor, seed):
    source = rows(times)
    found = whole(multiplied(chunks(source, sizes), lambda at_s: np.full(len(at_s), factor), chance(seed)))
    again = whole(multiplied(chunks(source, sizes), lambda at_s: np.full(len(at_s), factor), chance(seed)))
    assert found.at_s.tobytes() == again.at_s.tobytes()
    assert np.floor(factor) * len(times) <= len(found.at_s) <= np.ceil(factor) * len(times)
    # A row's prompt is its number: no copy is before its original, none later than the jitter.
    late = found.at_s - source.at_s[found.prompt_tokens - 1] if len(times) else np.empty(0)
    assert np.all((late >= 0) & (late <= COPY_JITTER_S))


def test_the_factor_one_changes_nothing_and_others_keep_the_expected_number():
    source = rows(np.arange(20_000) / 100)
    given_as_is = iter([source])
    assert resampled(given_as_is, 1.0, chance()) is given_as_is
    for factor in (0.3, 2.5):
        assert len(whole(resampled(iter([source]), factor, chance())).at_s) == pytest.approx(20_000 * factor, rel=0.03)
    for factor in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite numbers of at least 0"):
            whole(resampled(iter([source]), factor, chance()))


def test_a_spike_is_ten_times_the_rate_after_its_ramp():
    found = whole(multiplied(iter([rows(np.arange(36_000) / 30)]), spike(300.0, 10.0, 120.0, 300.0), chance()))
    per_minute = np.bincount((found.at_s // 60).astype(int), minlength=20) / 1800
    assert per_minute[:5] == pytest.approx(np.ones(5), rel=0.01)
    assert per_minute[8:11] == pytest.approx(np.full(3, 10.0), rel=0.02)
    assert 1 < per_minute[5] < per_minute[6] < 10
    assert per_minute[15:] == pytest.approx(np.ones(5), rel=0.03)


def test_ramps_and_steps_stay_where_they_end():
    at_s = np.array([0.0, 10.0, 15.0, 20.0, 99.0])
    assert ramp(10.0, 20.0, 3.0)(at_s).tolist() == [1, 1, 2, 3, 3]
    assert step(15.0, 1.5)(at_s).tolist() == [1, 1, 1.5, 1.5, 1.5]


def test_a_long_context_tenant_brings_its_share_from_its_time_on():
    source = rows(np.arange(50_000) / 100)
    found = whole(long_context(chunks(source, [17, 20_000]), 0.2, 32_000, 250.0, chance(), output_tokens=50))
    tenant = found.prompt_tokens == 32_000
    assert found.at_s[tenant].min() >= 250.0
    late = found.at_s >= 251.0
    assert np.mean(tenant[late]) == pytest.approx(0.2, abs=0.01)
    assert set(found.output_tokens[tenant].tolist()) == {50}
    assert np.array_equal(found.at_s[~tenant], source.at_s)
    with pytest.raises(ValueError, match="below 1"):
        whole(long_context(iter([source]), 1.0, 1, 0.0, chance()))


def test_lengths_change_from_their_time_on():
    source = rows(np.arange(10.0))._replace(shared_tokens=np.arange(10, dtype=np.int32))
    found = whole(lengthened(chunks(source, [3]), 0.5, 3.0, 4.0))
    assert found.prompt_tokens.tolist() == [1, 2, 3, 4, 2, 3, 4, 4, 4, 5]
    assert found.output_tokens.tolist() == [7] * 4 + [21] * 6
    assert np.all(found.shared_tokens <= found.prompt_tokens)
    assert source.prompt_tokens.tolist() == list(range(1, 11))


@settings(max_examples=25, deadline=None)
@given(TIMES, TIMES, SIZES, SIZES, st.floats(0, 30))
def test_merging_loses_and_invents_nothing(first, second, first_sizes, second_sizes, from_s):
    found = whole(merged(chunks(rows(first, 1), first_sizes), chunks(rows(second, 1), second_sizes), from_s))
    expected = sorted([*first, *(at for at in second if at >= from_s)])
    assert found.at_s.tolist() == expected
    # Their groups are told apart.
    assert sorted(found.at_s[found.group == 2].tolist()) == first


def test_splicing_goes_on_with_the_second_from_its_beginning():
    found = whole(spliced(chunks(rows([0, 1, 2, 9], 0), [2]), iter([rows([0, 5], 0)]), 2.0))
    assert found.at_s.tolist() == [0, 1, 2, 7]
    assert found.group.tolist() == [0, 0, 1, 1]
    assert whole(stretched(iter([rows([1, 2])]), 1.5)).at_s.tolist() == [1.5, 3.0]


@settings(max_examples=25, deadline=None)
@given(TIMES, SIZES, st.floats(0, 30), st.floats(0.1, 30))
def test_a_window_is_half_open_and_counts_from_its_start(times, sizes, start_s, length_s):
    found = whole(window(chunks(rows(times), sizes), start_s, length_s))
    assert found.at_s.tolist() == [at - start_s for at in times if start_s <= at < start_s + length_s]


def test_a_window_reads_no_further_than_it_must():
    def endless():
        for number in range(10):
            assert number < 3
            yield rows([number])

    assert whole(window(endless(), 0.0, 2.0)).at_s.tolist() == [0, 1]


def test_chunks_are_small_and_sorting_is_stable():
    many = rows(np.zeros(CHUNK_ROWS + 5))
    assert [len(chunk.at_s) for chunk in in_chunks(many)] == [CHUNK_ROWS, 5]
    assert list(in_chunks(empty())) == []
    assert by_time(rows([3, 1, 1])).prompt_tokens.tolist() == [2, 3, 1]
