"""`forebay gateway`: a gateway alone, over pools that attach to engines which already run."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    config: Annotated[Path, typer.Option("-c", "--config", help="A configuration whose pools attach to URLs.")],
    port: Annotated[int | None, typer.Option(help="Port to listen on (0: a free one). Default: the file's.", min=0, max=65535)] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. Default: the file's.")] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Write {gateway, pid} here as JSON once requests are accepted.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder for the journal and the ledger of usage. Default: the file's `state`.", show_default=False)
    ] = None,
) -> None:
    """Queue, admit and relay in front of engines that already run; nothing is scaled.

    The first thing to try on an existing vLLM: put its address under `attach:` and point your client here.

    Example: `forebay gateway -c examples/attach.yaml --port 8080`.
    """
    from forebay.app import gateway_main

    raise typer.Exit(gateway_main.standalone(config, host=host, port=port, ready_file=ready_file, state_dir=state))
