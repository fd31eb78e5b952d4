"""A rate out of Prometheus: the answer of a range query, as it is saved by curl."""

import json

import pytest

from forebay.app.trace_files import guess
from forebay.app.traces import read_series
from forebay.demand import prometheus
from forebay.demand.counts import Counts
from forebay.domain.errors import BadInput

MONDAY_S = 1_767_571_200.0


def answer(values, metric=None, **changes):
    """As /api/v1/query_range gives it: seconds as numbers, values as text."""
    data = {"resultType": "matrix", "result": [{"metric": metric or {}, "values": values}], **changes}
    return json.dumps({"status": "success", "data": data})


def minutes(values, first=1):
    return [[MONDAY_S + 60 * (first + number), str(value)] for number, value in enumerate(values)]


def read(text, **options):
    return prometheus.series([text], "week.json", **options)


def test_a_sample_is_the_mean_of_the_step_before_it():
    found = read(answer(minutes([2, 3.5, "1e-1"])))
    assert found.values.tolist() == [2.0, 3.5, 0.1]
    assert (found.start_wall_s, found.step_s, found.name) == (MONDAY_S, 60.0, "week.json")


def test_the_format_is_seen_and_the_file_is_read_like_any_other(tmp_path):
    path = tmp_path / "week.json"
    path.write_text(answer(minutes([1.0, 2.0], first=0), {"prompt_tokens": "a label"}))
    assert guess(path.read_text()) == "prometheus"
    assert read_series(path, "prometheus").mean == 1.5


def test_an_answer_over_several_lines_is_one():
    text = json.dumps(json.loads(answer(minutes([1.0, 2.0]))), indent=1)
    assert prometheus.series(text.splitlines(keepends=True), "week.json").mean == 1.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "this is no answer of Prometheus' /api/v1/query_range"),
        ('{"status": "error", "error": "parse error: unclosed left brace"}', "answered with an error: parse error: unclosed left brace"),
        (answer([], resultType="vector", result=[]), "found a result of type 'vector', allowed: matrix; ask /api/v1/query_range"),
        (answer([], result=[]), "found no series: nothing matched the query"),
        (
            answer([], result=[{"metric": {"pod": pod}, "values": []} for pod in "abcd"]),
            '4 series ({pod="a"}, {pod="b"}, {pod="c"}, …), allowed: one; put sum( … ) around the query',
        ),
        (answer([], result=[{"values": [[1, 2]]}]), "found a series that is none"),
        (answer([]), "a series without samples"),
        (answer(minutes([1])), "a rate over time needs at least 2"),
        (answer(minutes(range(100, 120))), "whole numbers that only rise, 100 to 119: a counter; put rate( …[1m]) around it"),
        (answer(minutes([1, "NaN", 3])), "week.json sample:2: requests_per_s: found 'NaN'"),
        (answer([*minutes([1, 2]), *minutes([3], first=5)]), "rows are missing after t_s 60 (2 in all)"),
        (answer([[MONDAY_S, "1"], [MONDAY_S + 60, "1"], [MONDAY_S + 95, "1"]]), "off the even grid"),
    ],
)
def test_what_is_no_rate_is_told_with_what_to_do(text, said):
    with pytest.raises(BadInput) as told:
        read(text)
    assert str(told.value).startswith("week.json")
    assert said in str(told.value)


def test_lenient_draws_a_line_over_what_is_missing():
    counts = Counts()
    found = read(answer(minutes([1, "NaN", 3, 4])), lenient=True, counts=counts)
    assert found.values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert (counts.broken, counts.filled) == (1, 1)


def test_an_answer_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(prometheus, "CHARS_MAX", 10)
    with pytest.raises(BadInput, match="more than 10 characters; ask for a longer step"):
        read(answer(minutes([1, 2])))


def test_a_rate_of_whole_numbers_that_rises_and_falls_is_a_rate():
    assert read(answer(minutes([5] * 12))).mean == 5.0
    assert read(answer(minutes([*range(12), 3]))).values[-1] == 3.0
