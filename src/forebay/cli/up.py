"""`forebay up`: a gateway, a fleet and an autoscaler on one machine."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    config: Annotated[Path, typer.Option("-c", "--config", help="The configuration, such as examples/quickstart.yaml.")],
    ready_file: Annotated[
        Path | None, typer.Option(help="Write {gateway, admin, pid} here as JSON once each pool that keeps replicas has one.")
    ] = None,
    speed: Annotated[
        float | None, typer.Option(help="World seconds per real second, for emulated engines. Default: the file's.", min=0.01, max=1000)
    ] = None,
    state: Annotated[Path | None, typer.Option(help="State folder. Default: the file's, beside it.")] = None,
) -> None:
    """Start everything in the configuration and serve until SIGTERM, which drains and exits 0.

    Nothing is started unless the whole configuration is right. Look on with `forebay status` and `forebay explain`. A second signal
    cuts what still streams, ends everything at once and exits 1; a terminal that closes stops it like SIGTERM.

    Example: `forebay up -c examples/quickstart.yaml` needs no GPU and prints the address for any OpenAI client.
    """
    from forebay.app import supervisor

    raise typer.Exit(supervisor.up(config, ready_file=ready_file, speed=speed, state_dir=state))
