"""What the pages say that a gateway tells is what it tells: tables of fields and of codes are held to the code."""

import ast
import re
from pathlib import Path

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


def texts(node):
    return {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}


def calls(room):
    """Name and call of every call in the modules of ``room``."""
    for path in sorted((ROOT / "src" / "forebay" / room).rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if any(name in source for name in CODE_AT) else ():
            if isinstance(node, ast.Call):
                yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""), node


def test_every_code_that_a_client_may_be_told_is_in_a_table_and_no_other():
    """403 `not_a_gateway` and nine others were on no page."""
    given = set()
    for name, call in calls("gateway"):
        if name in CODE_AT:
            for code in (*call.args[CODE_AT[name] : CODE_AT[name] + 1], *(one.value for one in call.keywords if one.arg == "code")):
                given |= {text for text in texts(code) if re.fullmatch(r"[a-z]+(_[a-z]+)*", text)}
    assert len(given) > 15, "the looking itself"
    table = section("endpoints.md", "## Errors").split("| `code` | status | when |", 1)[1].split("\n\n", 1)[0]
    told = {code for row in table.splitlines()[2:] for code in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert told == given
    refusals = section("admission.md", "## Why was it refused?")
    for why, answer in ANSWERS.items():
        assert f"| `{why.value}` | {answer.status} | `{answer.code}` |" in refusals
