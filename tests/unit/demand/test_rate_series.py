"""Published rates are read with their calendar; what is missing, doubled or negative is named."""

import numpy as np
import pytest

from forebay.demand import servegen
from forebay.demand.counts import Counts
from forebay.demand.series import RateSeries, Unit, azure2024_rate, first_data_line, o365, servegen_totals
from forebay.domain.errors import BadInput

AZURE = "# Minute 0 = 2024-05-12 00:00 UTC. Digitised.\nminute,rpm,rpm_min,rpm_max\n"


def test_azure_rates_are_per_minute_and_know_their_day():
    found = azure2024_rate((AZURE + "0,60,1,2\n10,120,1,2\n20,30.6,1,2\n").splitlines(), "t")
    assert found.values.tolist() == [1.0, 2.0, pytest.approx(0.51)]
    assert (found.step_s, found.start_wall_s, found.unit, found.duration_s) == (600.0, 1715472000.0, Unit.REQUESTS, 1800.0)


def test_o365_counts_prompt_tokens_of_one_column():
    text = "# one week from 2024-11-05, tokens\nminute,A_prod,B_prod\n5,60,0\n6,120,6\n"
    found = o365(text.splitlines(), "B_prod", "t")
    assert (found.values.tolist(), found.unit, found.start_wall_s) == ([0.0, 0.1], Unit.PROMPT_TOKENS, 1730764800.0 + 300)
    assert found.in_requests(50.0).values.tolist() == [0.0, 0.002]
    assert found.in_requests(50.0).in_requests(2.0).mean == pytest.approx(0.001)
    with pytest.raises(BadInput, match="no such column: found 'C', allowed: A_prod, B_prod"):
        o365(text.splitlines(), "C", "t")
    with pytest.raises(BadInput, match="say which column"):
        o365(text.splitlines(), "", "t")


def test_totals_may_leave_out_windows_without_requests():
    found = servegen_totals(["t_s,rate_rps", "0,1", "600,2", "2400,3"], "t")
    assert found.values.tolist() == [1.0, 2.0, 0.0, 0.0, 3.0]
    assert (found.mean, found.duration_s) == (pytest.approx(1.2), 3000.0)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("0,1,1,1\n0,2,1,1\n", r"t:4: time comes twice: found '0'"),
        ("10,1,1,1\n0,2,1,1\n", "t:4: time goes back"),
        ("0,-1,1,1\n", "t:3: rpm: found '-1'"),
        ("0,nan,1,1\n", "t:3: rpm"),
        ("0,1\n", "t:3: a row of 2 fields"),
        ("0,1,1,1\n", "found 1 rows"),
        ("0,1,1,1\n10,1,1,1\n40,1,1,1\n", "rows are missing after minute 10 .2 in all"),
        ("0,1,1,1\n10,1,1,1\n25,1,1,1\n", "minute 25 is off the even grid of 10"),
        ("0,1,1,1\n1e-3,1,1,1\n1e7,1,1,1\n", "more than 10000000 steps"),
    ],
)
def test_what_is_no_even_series_is_refused(rows, words):
    with pytest.raises(BadInput, match=words):
        azure2024_rate((AZURE + rows).splitlines(), "t")


def test_lenient_reading_skips_and_draws_over_gaps():
    counts = Counts()
    found = azure2024_rate((AZURE + "0,60,1,1\nx,1,1,1\n10,60,1,1\n40,240,1,1\n").splitlines(), "t", lenient=True, counts=counts)
    assert found.values.tolist() == pytest.approx([1.0, 1.0, 2.0, 3.0, 4.0])
    assert (counts.rows, counts.broken, counts.filled) == (3, 1, 2)
    assert counts.told()[1] == "steps that are missing, over which a line is drawn: 2"


def test_a_header_or_date_that_is_none_is_named():
    with pytest.raises(BadInput, match="t:1: the header lacks minute"):
        azure2024_rate(["a,b", "1,2"], "t")
    with pytest.raises(BadInput, match="t:1: not a date"):
        azure2024_rate(["# Minute 0 = 2024-13-45", "minute,rpm"], "t")
    assert first_data_line(["# c\n", "\n", " minute,rpm\n"]) == "minute,rpm"
    assert first_data_line(["# c\n"]) == ""


def test_an_empty_series_has_no_mean():
    assert RateSeries(0.0, 60.0, np.empty(0)).mean == 0.0


CLIENTS = "client,t_s,rate_rps,cv,pattern(G=Gamma W=Weibull E=Exponential),shape,scale\n"


def test_clients_are_summed_by_window():
    found = servegen.clients((CLIENTS + "7,0,0.5,1,G,2,1\n7,1200,1.5,1,W,0.5,1\n9,0,0.25,1,E,,\n").splitlines(), "t")
    assert found.totals().tolist() == [0.75, 0.0, 1.5]
    assert found.client.tolist() == [7, 9, 7]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("7,0,-1,1,G,2,1", "rate_rps"),
        ("7,5,1,1,G,2,1", "a multiple of 600"),
        ("7,0,1,1,Q,2,1", "pattern"),
        ("7,0,1,1,G,0,1", "shape"),
        ("7,0,1", "t_s"),
    ],
)
def test_a_broken_client_row_is_named_or_counted(row, words):
    with pytest.raises(BadInput, match=rf"t:2: .*{words}"):
        servegen.clients((CLIENTS + row).splitlines(), "t")
    counts = Counts()
    assert len(servegen.clients((CLIENTS + row + "\n1,0,1,1,G,1,1\n").splitlines(), "t", lenient=True, counts=counts).rate) == 1
    assert counts.broken == 1


def test_clients_need_rows_each_once():
    with pytest.raises(BadInput, match="no rows"):
        servegen.clients([CLIENTS], "t")
    with pytest.raises(BadInput, match="comes twice"):
        servegen.clients((CLIENTS + "1,0,1,1,G,1,1\n" * 2).splitlines(), "t")
    with pytest.raises(BadInput, match="the header lacks pattern"):
        servegen.clients(["client,t_s,rate_rps,cv,shape"], "t")
