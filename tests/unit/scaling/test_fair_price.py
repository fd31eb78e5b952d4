"""The fair price: one for calm and restless hours, at which just the allowed share is expected to miss."""

import numpy as np
import pytest

from forebay.scaling import fair, spread
from forebay.scaling.economics import late_by_headroom

ALLOWED = 0.01
AIM = 0.95


def after(*hours):
    """The average after minutes of (swing, requests per second)."""
    data = b""
    for swing, demand in hours:
        ratios = spread.of_ratios(spread.prior(), swing)
        came = float(ratios @ spread.RATIOS / ratios.sum())
        data = fair.averaged(data, late_by_headroom(ratios, ALLOWED), came, ALLOWED, demand)
    return data


def test_nothing_is_known_at_first_and_ill_bytes_are_forgotten():
    for data in (b"", b"ill", np.full(len(fair.MULTIPLES) + 2, np.nan).tobytes()):
        assert fair.price(data, ALLOWED, AIM) == 1.0


def test_a_demand_without_surprises_is_worth_about_the_default_price():
    assert fair.price(after((0.03, 10.0)), ALLOWED, AIM) == pytest.approx(1.0, abs=0.15)


def test_the_more_restless_the_dearer_a_miss():
    found = [fair.price(after((swing, 10.0)), ALLOWED, AIM) for swing in (0.05, 0.2, 0.3, 0.5)]
    assert found == sorted(found)
    assert found[-1] > 2.0


def test_hours_count_by_their_requests():
    calm, restless = (0.05, 10.0), (0.4, 10.0)
    both = fair.price(after(calm, restless), ALLOWED, AIM)
    mostly_calm = fair.price(after((0.05, 90.0), restless), ALLOWED, AIM)
    assert fair.price(after(calm), ALLOWED, AIM) < mostly_calm < both < fair.price(after(restless), ALLOWED, AIM)
