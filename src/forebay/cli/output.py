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

from forebay.domain.errors import BadInput

PIPE_COLUMNS = 200
"""Width where there is no terminal to ask: a pipe has no edge, and names and addresses must come through whole."""


def console(stderr: bool = False, highlight: bool = True) -> Console:
    """A console on stdout or stderr: as wide as its terminal or ``COLUMNS`` says, else ``PIPE_COLUMNS``."""
    made = Console(stderr=stderr, highlight=highlight)
    if made.file.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return made
    return Console(stderr=stderr, highlight=highlight, width=PIPE_COLUMNS)


def write_json(value: Any, target: str) -> None:
    """Write ``value`` as indented JSON to ``target``; raises BadInput where it can't be written."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    if target == "-":
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        return
    path = Path(os.path.realpath(target))
    part = path.with_name(f"{path.name}.part")
    try:
        if Path(target).exists() and not path.is_file():
            # A device or a pipe (or a folder, which says so): one put in its place would be the end of it.
            Path(target).write_bytes(text)
        else:
            part.write_bytes(text)
            os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise _unwritable(target, error.strerror) from None


def check_json(target: str | None) -> None:
    """Raises BadInput where ``write_json`` could not leave anything at ``target``, before work is done whose result would be lost."""
    if target is None or target == "-":
        return
    folder = Path(os.path.realpath(target)).parent
    if Path(target).is_dir():
        raise _unwritable(target, "Is a directory")
    if not folder.is_dir() and not Path(target).exists():
        raise _unwritable(target, "No such file or directory")
    if not os.access(target if Path(target).exists() else folder, os.W_OK):
        raise _unwritable(target, "Permission denied")


def _unwritable(target: str, why: str | None) -> BadInput:
    return BadInput(f"--json: can't write {target!r} ({why}); name a file in a folder that exists, or - for stdout")
