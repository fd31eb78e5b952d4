"""`forebay gateway`: a gateway alone, over pools that attach to engines which already run."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    config: Annotated[
        Path, typer.Option("-c", "--config", help="A configuration whose pools attach to URLs; with --join, the file of the `forebay up`.")
    ],
    port: Annotated[int | None, typer.Option(help="Port to listen on (0: a free one). Default: the file's.", min=0, max=65535)] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: the file's.")] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Write {gateway, pid} here as JSON once requests are accepted.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder for usage and records of requests. Default: the file's `state`.", show_default=False)
    ] = None,
    join: Annotated[
        str | None, typer.Option(help="The `gateway: {join: host:port}` of a `forebay up`: replicas are shared with its gateways.")
    ] = None,
    hops: Annotated[
        str | None, typer.Option(help="Where the other gateways reach this one, host:port. Default: a free port of this machine's address.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Its name among the gateways, never used twice. Default: the host's.")] = None,
) -> None:
    """Queue, admit and relay in front of engines that already run; nothing is scaled.

    The first thing to try on an existing vLLM: put its address under `attach:` and point your client here. With `--join` it is one of
    several gateways (docs/several-gateways.md): give it the file of the `forebay up` that it joins.

    Example: `forebay gateway -c examples/attach.yaml --port 8080`, `forebay gateway -c forebay.yaml --join 10.0.0.5:8082`.
    """
    from forebay.app import gateway_main

    raise typer.Exit(
        gateway_main.standalone(config, host=host, port=port, ready_file=ready_file, state_dir=state, join=join, hops=hops, name=name)
    )
