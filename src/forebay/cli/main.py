"""The command ``forebay``: one verb per file, errors as one sentence on stderr, exit codes that scripts can trust."""

import contextlib
import errno
import importlib.metadata
import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from forebay import HANDLED_IN
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
from forebay.cli.stopping import INTERRUPTED
from forebay.domain.errors import BadInput, ForebayError
from forebay.native import RELAYED_IN

VALUE_CHARS_MAX = 100
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room for what is written, which has no name where it is stdout."""
_PLAINLY = (
    ("Input should be ", ""),
    ("a valid integer", "a whole number"),
    ("a valid number", "a number"),
    ("less than or equal to", "at most"),
    ("greater than or equal to", "at least"),
)


class Verbs(TyperGroup):
    """All verbs; what is wrong with an option's value is said as every other bad input is."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run a verb. Raises BadInput for a value that its option does not take."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as bad:
            if type(bad) is not typer.BadParameter:
                raise  # an option that is missing has no value
            raise BadInput(_bad_value(bad)) from None


def _bad_value(bad: typer.BadParameter) -> str:
    """Place, what was found, what is allowed; in the words of the parser where it does not tell them apart."""
    place = bad.format_message().removeprefix("Invalid value for ").partition(": ")[0].replace("'", "")
    verb = bad.ctx.command_path.partition(" ")[2] if bad.ctx is not None else ""
    errors = getattr(bad.__cause__, "errors", None)
    if errors is None:
        return f"{place}: {bad.message}; see `forebay {verb} --help`"
    wrong = errors()[0]
    allowed = wrong["msg"].partition(", unable to parse")[0]
    for said, plain in _PLAINLY:
        allowed = allowed.replace(said, plain)
    return f"{place}: found {str(wrong['input'])[:VALUE_CHARS_MAX]!r}; allowed: {allowed}; see `forebay {verb} --help`"


app = typer.Typer(
    name="forebay",
    cls=Verbs,
    help="Forebay: the queue-first control plane for LLM inference on your own GPUs.\n\n"
    "Start with `forebay demo`, then `forebay up -c examples/quickstart.yaml`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
)


def _say_version(wanted: bool) -> None:
    if wanted:
        print(f"forebay {importlib.metadata.version('forebay')} (requests handled in {HANDLED_IN}, streams relayed in {RELAYED_IN})")
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
    _open_what_is_closed()
    try:
        _run()
    except ForebayError as error:
        with contextlib.suppress(OSError):  # whoever closed stderr still gets the code
            print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except MemoryError:
        print("memory ran out: take a shorter --duration, or --jobs 1 where several processes work", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.filename is not None or error.errno not in REFUSED:
            raise
        # What is still to be written would be refused again, loudly, when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"what was to be written could not be: {error.strerror}", file=sys.stderr)
        sys.exit(1)


def _run() -> None:
    try:
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever presses it twice still gets one line
        sys.stdout.flush()
        raise


def _open_what_is_closed() -> None:
    """Where the shell closed stdout or stderr: nothing meant for the one may go to the other, or into a file that is opened next."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process lives


if __name__ == "__main__":
    main()
