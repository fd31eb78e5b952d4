"""What the pages say that a gateway tells is what it tells: tables of fields and of codes are held to the code."""

import ast
import re
from pathlib import Path

import pytest

from forebay.admission.outcomes import ANSWERS
from forebay.gateway.records import Record

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
CODE_AT = {"ErrorReply": 2, "unavailable": 1, "bad_request": 2}
"""The place of an error's code among the arguments of what makes it."""


def section(page, heading):
    """The text of ``page`` below ``heading``, up to the next one of its kind."""
    return (DOCS / page).read_text().split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]


def test_every_field_of_a_record_is_in_its_table():
    """`left` and `way` were in the record and on no page."""
    rows = [
        line.split("|")[1] for line in section("gateway.md", "## Why was this request treated so?").splitlines() if line.startswith("|")
    ]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == set(Record.__struct_fields__)


SOURCES = [path for path in sorted((ROOT / "src/forebay/gateway").glob("*.py")) if any(f"{name}(" in path.read_text() for name in CODE_AT)]
A_CODE = re.compile(r"[a-z]+(_[a-z]+)*")
TOLD_BY = re.compile(r"\b(?:Event|_?tell|_?say|_?emit|_event)\(\s*\"([a-z]+_[a-z_]+)\"")
"""What makes an event whose kind stands there."""


def table_of_codes():
    table = section("endpoints.md", "## Errors").split("| `code` | status | when |", 1)[1].split("\n\n", 1)[0]
    return {code for row in table.splitlines()[2:] for code in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_code_that_a_client_may_be_told_is_in_a_table(path):
    """403 `not_a_gateway` and others were on no page."""
    given = set()
    for call in ast.walk(ast.parse(path.read_text())):
        place = CODE_AT.get(getattr(call.func, "id", "")) if isinstance(call, ast.Call) else None
        if place is not None:
            for code in (*call.args[place : place + 1], *(one.value for one in call.keywords if one.arg == "code")):
                given |= {one.value for one in ast.walk(code) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    assert {code for code in given if A_CODE.fullmatch(code)} <= table_of_codes()


def test_no_other_code_is_in_the_table_and_each_refusal_is_in_its_own():
    code = "\n".join(path.read_text() for path in SOURCES)
    assert [name for name in table_of_codes() if f'"{name}"' not in code] == []
    refusals = section("admission.md", "## Why was it refused?")
    for why, answer in ANSWERS.items():
        assert f"| `{why.value}` | {answer.status} | `{answer.code}` |" in refusals


def test_every_kind_of_event_is_on_some_page():
    """`connections_bounded` was the first line of a newcomer's log, and in no index."""
    pages = "\n".join(path.read_text() for path in DOCS.glob("*.md"))
    told = set()
    for room in ("gateway", "app", "controller", "adapters"):
        for path in (ROOT / "src/forebay" / room).rglob("*.py"):
            told |= set(TOLD_BY.findall(path.read_text()))
    assert len(told) > 40, "the looking itself"
    assert sorted(kind for kind in told if f"`{kind}`" not in pages) == []
