"""What clients are told: one answer per refusal, no status that they take for a fault, times they obey."""

from pathlib import Path

import pytest

from forebay.admission.outcomes import ANSWERS, RETRY_AFTER_S_MAX, RETRY_AFTER_S_MIN, Refusal, bounded, jittered


def test_every_refusal_has_an_answer_of_its_own() -> None:
    assert set(ANSWERS) == set(Refusal)
    assert len({answer.code for answer in ANSWERS.values()}) == len(Refusal)
    assert all(answer.message.endswith(".") and answer.type for answer in ANSWERS.values())


def test_the_page_for_whoever_is_on_call_has_each_reason_beside_the_code_that_clients_see() -> None:
    """A client reports `queue_wait_expired`, which was on no page."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "admission.md").read_text(encoding="utf-8")
    for why, answer in ANSWERS.items():
        assert f"| `{why.value}` | {answer.status} | `{answer.code}` |" in page


def test_contended_is_429_absent_is_503_impossible_is_400() -> None:
    statuses = {why: answer.status for why, answer in ANSWERS.items()}
    assert (statuses.pop(Refusal.NO_REPLICAS), statuses.pop(Refusal.SHUTTING_DOWN)) == (503, 503)
    assert (statuses.pop(Refusal.HOLDER_OUT), statuses.pop(Refusal.HANDED_BACK)) == (503, 503)
    assert statuses.pop(Refusal.NEVER_FITS) == 400
    assert set(statuses.values()) == {429}


@pytest.mark.parametrize("retry_after_s", [0.0, 1.0, 7.5, 47.0, 48.5, 60.0, 5000.0])
def test_jitter_spreads_within_the_bounds(retry_after_s: float) -> None:
    spread = [jittered(retry_after_s, chance) for chance in (0.0, 0.25, 0.5, 0.999)]
    assert spread == sorted(spread)
    assert spread[-1] > spread[0] * 1.2
    assert all(RETRY_AFTER_S_MIN <= each <= RETRY_AFTER_S_MAX for each in spread)


def test_bounded() -> None:
    assert (bounded(0.2), bounded(12.0), bounded(600.0)) == (1.0, 12.0, 60.0)
