"""The configuration's JSON Schema, for editors: made from the tables that decode it, so it can't fall behind.

It is a little stricter than the decoder (which takes an empty value for an absent one) and knows nothing of references.
"""

from typing import Any

from forebay.spec.fields import ROOT, TEAM_FILE
from forebay.spec.records import Record

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(team_file: bool = False) -> dict[str, Any]:
    """The schema of a ``forebay.yaml``, or of a ``teams/*.yaml``."""
    record: Record = TEAM_FILE if team_file else ROOT
    return {"$schema": DIALECT, "title": record.name, **record.schema()}
