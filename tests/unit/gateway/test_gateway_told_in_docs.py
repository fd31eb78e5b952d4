"""What the pages say that a gateway tells is what it tells: tables of fields and of codes are held to the code."""

import re
from pathlib import Path

from forebay.gateway.records import Record

DOCS = Path(__file__).parents[3] / "docs"


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
