"""The page is one file: whole, self-contained, readable without a script, and deaf to what names try to say."""

import re

import msgspec
import pytest
from lab_runs import minute, run, tier

from forebay.app.lab.summaries import Yardstick, summary
from forebay.app.report.content import BoundDrawn, Content, Played
from forebay.app.report.page import HEADINGS, render

YARDSTICK = Yardstick(80.0, 1000.0, 0.99, ("interactive",))


def played(name, both=0.995, hours=100.0, timeline=(minute(0), minute(1))):
    runs = [run(name, gpu_hours=hours, tiers={"interactive": tier(both)}, timeline=timeline)]
    return Played(summary(runs, YARDSTICK), runs[0], both)


def content(*policies, **more):
    values = {
        "title": "chat",
        "facts": (("trace", "conv"),),
        "verdict": "It holds.",
        "start_wall_s": 0.0,
        "bound": BoundDrawn(80.0),
        **more,
    }
    return Content(
        ttft_s=1.0, itl_s=0.05, attainment=0.99, gpus_per_replica=1, gpu_hour_usd=3.5, played=policies or (played("forebay"),), **values
    )


def data_of(page):
    return msgspec.json.decode(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def test_nothing_is_fetched_from_anywhere():
    page = render(content())
    assert not re.search(r"""(src|href)\s*=|@import|url\((?!#)|fetch\(|XMLHttp|https?://(?!www\.w3\.org/2000/svg)""", page)


def test_every_placeholder_was_filled():
    assert not re.search(r"\$(title|verdict|facts|promised|table|notes|style|script|data)\b", render(content()))


def test_the_table_is_there_without_a_script():
    table = re.search(r"<tbody>(.*?)</tbody>", render(content(played("forebay"), played("hpa", 0.9, 70.0))), re.S)[1]
    assert table.count("<tr") == 3
    assert table.index("clairvoyant") < table.index("forebay") < table.index("hpa")
    assert '<span class="mark holds"></span>forebay' in table
    assert '<span class="mark"></span>hpa' in table
    assert '<span class="miss">90.00%</span>' in table
    assert "$650" in table


def bound_cells(bound):
    row = re.search(r'<tr class="bound">(.*?)</tr>', render(content(bound=bound)), re.S)[1]
    return re.findall(r"<td>(.*?)</td>", row)


def test_what_the_clairvoyant_schedule_keeps_is_in_the_column_of_promises_kept():
    kept, missed, unknown = (bound_cells(BoundDrawn(80.0, attained=share)) for share in (0.9912, 0.95, None))
    assert len(kept) == len(missed) == len(unknown) == len(HEADINGS)
    column = HEADINGS.index("promises kept")
    assert (kept[column], missed[column], unknown[column]) == ("99.12%", '<span class="miss">95.00%</span>', "–")
    assert set(kept[column + 1 :]) == {"–"}


def test_the_clairvoyant_schedule_saves_nothing_since_nobody_can_have_it():
    column = HEADINGS.index("saved vs\nstatic")
    assert HEADINGS[column - 1] == "cost"
    for share in (0.9912, None):
        cells = bound_cells(BoundDrawn(80.0, attained=share))
        assert (cells[column - 1], cells[column]) == ("$280", "–"), "80 GPU-hours at 3.5 USD"


def test_the_page_says_what_red_bands_mean_and_draws_what_the_promise_is_about():
    """They lay over p95 lines that looked fine: the promise is of 99 %, and of both."""
    page = render(content(played("forebay", timeline=(minute(0), minute(1, both_met=58, missed=2)))))
    legend = re.search(r'<p class="legend">(.*?)</p>', page, re.S)[1]
    assert "fewer than 99 % of the requests had both promises kept" in legend
    (policy,) = data_of(page)["policies"]
    assert policy["breaches"] == [[60, 120]]
    assert policy["lines"]["kept"] == [1, pytest.approx(58 / 60, abs=1e-5)]
    assert 'title: "Requests with both promises kept"' in page


def test_names_from_outside_are_only_text():
    evil = "</script><script>alert(1)</script><b>&"
    page = render(content(played(evil), title=evil, verdict=evil, facts=((evil, evil),), notes=(evil,), bound=BoundDrawn(1.0, (), evil)))
    assert "<script>alert" not in page
    assert page.count("</script>") == 2
    assert data_of(page)["policies"][0]["name"] == evil


def test_the_data_holds_what_is_drawn():
    data = data_of(render(content()))
    (policy,) = data["policies"]
    assert data["ttft_s"] == 1
    assert policy["holds"]
    assert policy["lines"]["ready"] == [3, 3]
    # Three replicas of one GPU at 3.5 USD an hour, for two minutes.
    assert policy["usd"][-1] == 0.35


def test_without_prices_there_is_no_cost():
    free = msgspec.structs.replace(content(), gpu_hour_usd=0.0)
    page = render(free)
    assert "$" not in re.search(r"<tbody>(.*?)</tbody>", page, re.S)[1]
    assert data_of(page)["policies"][0]["usd"] == []


def test_a_month_is_no_heavier_than_a_day():
    day = render(content(played("x", timeline=[minute(number) for number in range(1440)])))
    month = render(content(played("x", timeline=[minute(number) for number in range(43_200)])))
    assert len(month) < 1.3 * len(day)
