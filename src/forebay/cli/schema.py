"""``forebay schema``: the JSON Schema of ``forebay.yaml``, for editors."""

import json
from typing import Annotated

import typer

from forebay.spec.schema import schema


def command(
    teams: Annotated[bool, typer.Option("--teams", help="The schema of a teams/*.yaml instead.")] = False,
) -> None:
    """Print the JSON Schema of forebay.yaml."""
    typer.echo(json.dumps(schema(team_file=teams), indent=2, ensure_ascii=False))
