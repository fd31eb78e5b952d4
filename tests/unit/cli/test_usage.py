"""Who used what, from the history file, whether Forebay runs or not."""

import json

import pytest
from typer.testing import CliRunner

from forebay.adapters.sqlite import SqliteStore
from forebay.app.files import STORE_FILE
from forebay.cli.main import app
from forebay.controller.usage_report import by_of, day_of, usage_report
from forebay.domain.errors import BadInput
from forebay.domain.usage import COUNTED, COUNTS, OUTPUT, PROMPT, QUEUE_MS, How, UsageBatch, UsageRow

DAY = 20_000  # 2024-10-04


def row(day, team, tier="interactive", prompt=100, output=10, **counts):
    sums = [0] * COUNTS
    sums[How.COMPLETED], sums[PROMPT], sums[OUTPUT] = 2, prompt, output
    sums[How.SHED], sums[QUEUE_MS] = counts.get("shed", 0), counts.get("queue_ms", 0)
    return UsageRow(day, (team, "llama", tier, "chat"), tuple(sums))


ROWS = (row(DAY, "search", shed=3, queue_ms=1500), row(DAY, "mail", "batch", prompt=900), row(DAY + 1, "search", output=20))


@pytest.fixture
def state(tmp_path):
    store = SqliteStore(tmp_path / STORE_FILE)
    store.append_usage(UsageBatch("gw", "j", 0, 9, ROWS), 0.0)
    store.close()
    return str(tmp_path)


def usage(*words):
    return CliRunner().invoke(app, ["usage", *words])


def test_a_table_by_who_pays(state):
    shown = usage("--state", state).output
    lines = [line for line in shown.splitlines() if "llama" in line]
    assert [line.split("│")[1].strip() for line in lines] == ["mail", "search"]  # most tokens first
    assert "1,100" in shown  # all prompt tokens
    assert "1.5 s" in shown


def test_the_column_of_tokens_that_no_engine_told_says_estimated(tmp_path):
    """It said "of them counted", as if 0 were none at all, where every token was the engine's own count."""
    sums = [0] * COUNTS
    sums[How.COMPLETED], sums[PROMPT], sums[OUTPUT], sums[COUNTED] = 1, 100, 10, 77
    store = SqliteStore(tmp_path / STORE_FILE)
    store.append_usage(UsageBatch("gw", "j", 0, 9, (UsageRow(DAY, ("mail", "llama", "batch", "chat"), tuple(sums)),)), 0.0)
    store.close()
    shown = usage("--state", str(tmp_path)).output
    (head,) = [line for line in shown.splitlines() if "requests" in line]
    (line,) = [line for line in shown.splitlines() if "mail" in line]
    place = [cell.strip() for cell in head.split("┃")].index("estimated tokens")
    assert line.split("│")[place].strip() == "77"


def test_json_for_scripts_by_day(state):
    found = json.loads(usage("--state", state, "--by", "day,team", "--json", "-").output)
    assert [(line["day"], line["team"], line["requests"], line["shed"]) for line in found["lines"]] == [
        ("2024-10-04", "mail", 2, 0),
        ("2024-10-04", "search", 5, 3),
        ("2024-10-05", "search", 2, 0),
    ]
    assert "model" not in found["lines"][0]
    assert (found["total"]["prompt_tokens"], found["total"]["output_tokens"], found["total"]["queue_s"]) == (1100, 40, 1.5)


def test_days_are_from_and_to_and_both_are_in(state):
    found = json.loads(usage("--state", state, "--since", "2024-10-05", "--until", "2024-10-05", "--json", "-").output)
    assert (found["since"], found["until"], len(found["lines"])) == ("2024-10-05", "2024-10-05", 1)


@pytest.mark.parametrize("words", [("--since", "tomorrow"), ("--by", "colour"), ("--by", "team,team"), ("--until", "1969-01-01")])
def test_what_can_not_be_meant_is_said(state, words):
    with pytest.raises(BadInput, match=f"{words[0][2:]}: found '{words[1]}'"):
        CliRunner().invoke(app, ["usage", "--state", state, *words], catch_exceptions=False)


def test_without_a_history_it_says_how_to_get_one(tmp_path):
    with pytest.raises(BadInput, match=r"there is no history at .* or name the state folder of one that ran"):
        CliRunner().invoke(app, ["usage", "--state", str(tmp_path)], catch_exceptions=False)


def test_days_can_be_told_as_so_long_ago():
    assert day_of("since", "-7d", DAY * 86_400.0 + 5) == DAY - 7
    assert day_of("since", "today", DAY * 86_400.0 + 5) == DAY
    assert day_of("since", "yesterday", DAY * 86_400.0 + 5) == DAY - 1


def test_days_too_long_ago_are_one_line():
    found = usage_report((row(0, "a"), row(DAY, "a")), by_of("day"), 0, None)
    assert [line.day for line in found.lines] == ["earlier", "2024-10-04"]
