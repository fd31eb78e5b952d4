"""The closed form of the KV peak against decoding one token at a time."""

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.admission.kv import OUTLIVED_TOKENS_MIN, outlived_tokens, peak_kv_tokens


def simulated_peak(sequences: list[tuple[int, int]]) -> int:
    """Hold, then let everyone emit a token and the finished leave, until none is left."""
    running = [[left, cur] for left, cur in sequences]
    peak = 0
    while running:
        peak = max(peak, sum(cur for _, cur in running))
        running = [[left - 1, cur + 1] for left, cur in running if left > 0]
    return peak


def test_by_hand() -> None:
    assert peak_kv_tokens([]) == 0
    assert peak_kv_tokens([(5, 10)]) == 15
    # The short one ends holding 15 while the long one holds 15: 30 together; then the long one ends alone at 20.
    assert peak_kv_tokens([(10, 10), (5, 10)]) == 30
    # Adding up worst cases would say 10 + 101 + 101; the short ones are gone before the long one has grown.
    assert peak_kv_tokens([(100, 1), (1, 1), (1, 1)]) == 101


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 30)), max_size=8))
def test_closed_form_is_lockstep_decoding(sequences: list[tuple[int, int]]) -> None:
    assert peak_kv_tokens(sequences) == simulated_peak(sequences)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 25), st.integers(0, 30)), max_size=8))
def test_never_more_than_the_sum_of_worst_cases(sequences: list[tuple[int, int]]) -> None:
    assert max([cur for _, cur in sequences], default=0) <= peak_kv_tokens(sequences) <= sum(map(sum, sequences))


def test_outlived_estimates_grow_by_half_within_the_maximum() -> None:
    assert outlived_tokens(4, 0) == 4 + OUTLIVED_TOKENS_MIN
    assert outlived_tokens(1000, 0) == 1500
    assert outlived_tokens(1000, 1200) == 1200
    assert outlived_tokens(1000, 900) == 1000, "an engine that ignores its limit still holds what it emitted"
