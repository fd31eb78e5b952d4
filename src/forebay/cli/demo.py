"""`forebay demo`: the worked example, live, in under five minutes."""

from pathlib import Path
from typing import Annotated

import typer

from forebay.cli import output


def command(
    out: Annotated[Path, typer.Option(help="Folder for the picture, the page, the logs and both configurations.")] = Path("demo-out"),
    seed: Annotated[int, typer.Option(help="Seed of the arrivals.")] = 1,
    json: Annotated[
        str | None, typer.Option("--json", metavar="PATH", help="Write both stories' numbers as JSON to PATH (- for stdout).")
    ] = None,
    with_parent: Annotated[
        bool, typer.Option("--with-parent", hidden=True, help="End when whoever started this ends, as `make` may.")
    ] = False,
) -> None:
    """Watch a fleet scale before its queue grows, then the same ramp without the warm buffer.

    Real HTTP, real processes, emulated engines, twenty times as fast as life: a morning climbs from 100 to 400 requests
    a minute in ten minutes, while a replica needs five minutes to start.
    """
    from forebay.app.children import end_with_parent
    from forebay.app.demo import show  # draws pictures: nothing that another verb should wait for

    output.check_json(json)
    if with_parent:
        end_with_parent()
    summary = show.run(out, seed, json == "-")
    if json is not None:
        output.write_json(summary, json)
