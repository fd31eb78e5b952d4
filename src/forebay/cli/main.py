"""The command ``forebay``: one verb per file, errors as one sentence on stderr, exit codes that scripts can trust."""

import importlib.metadata
import sys
from typing import Annotated

import typer

from forebay.cli import (
    backtest,
    calibrate,
    check,
    compare,
    demo,
    emulate,
    explain,
    gateway,
    plan,
    profile,
    replay,
    schema,
    simulate,
    status,
    trace,
    tune,
    up,
    usage,
    world,
)
from forebay.domain.errors import ForebayError
from forebay.native import RELAYED_IN

app = typer.Typer(
    name="forebay",
    help="Forebay: the queue-first control plane for LLM inference on your own GPUs.\n\n"
    "Start with `forebay demo`, then `forebay up -c examples/quickstart.yaml`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"forebay {importlib.metadata.version('forebay')} (streams relayed in {RELAYED_IN})")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Say which version this is and how it relays streams, and exit."
        ),
    ] = False,
) -> None:
    """Options that stand before the verb."""


app.command("up")(up.command)
app.command("gateway")(gateway.command)
app.command("status")(status.command)
app.command("explain")(explain.command)
app.command("usage")(usage.command)
app.command("check")(check.command)
app.command("schema")(schema.command)
app.add_typer(profile.app, name="profile")
app.command("calibrate")(calibrate.command)
app.command("emulate")(emulate.command)
app.command("replay")(replay.command)
app.command("demo")(demo.command)
app.add_typer(trace.app, name="trace")
app.command("simulate")(simulate.command)
app.command("compare")(compare.command)
app.command("backtest")(backtest.command)
app.command("tune")(tune.command)
app.add_typer(plan.app, name="plan")
app.command("world")(world.command)


def main() -> None:
    """Run the verb that was asked for; never shows a traceback for a mistake of the user's."""
    try:
        app()
    except ForebayError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


if __name__ == "__main__":
    main()
