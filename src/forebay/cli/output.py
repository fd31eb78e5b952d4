"""What verbs write with: a console that is whole in pipes too, and ``--json PATH``.

There ``-`` is stdout, a device or pipe is written to, anything else is a file written whole or not at all.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from forebay.app import outputs

OR_STDOUT = f"{outputs.A_FILE}, or - for stdout"
PIPE_COLUMNS = 200
"""Width where there is no terminal to ask: a pipe has no edge, and names and addresses must come through whole."""


def console(stderr: bool = False, highlight: bool = True) -> Console:
    """A console on stdout or stderr: as wide as its terminal or ``COLUMNS`` says, else ``PIPE_COLUMNS``."""
    made = Console(stderr=stderr, highlight=highlight)
    if made.file.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return made
    return Console(stderr=stderr, highlight=highlight, width=PIPE_COLUMNS)


def aside(text: str) -> None:
    """A line on stderr, if it takes any: a log whose disk is full, or whose reader has gone, costs nobody the work."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def write_json(value: Any, target: str) -> None:
    """Write ``value`` as indented JSON to ``target``; raises BadInput where it can't be written."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    if target == "-":
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return
    outputs.leave("--json", Path(target), text, OR_STDOUT)


def check_json(target: str | None) -> None:
    """Raises BadInput where ``write_json`` could not leave anything at ``target``, before work is done whose result would be lost."""
    path = file_of(target)
    if path is not None:
        outputs.check("--json", path, OR_STDOUT)


def file_of(target: str | None) -> Path | None:
    """The file that ``--json`` names; None for stdout and where nothing is asked for."""
    return None if target is None or target == "-" else Path(target)
