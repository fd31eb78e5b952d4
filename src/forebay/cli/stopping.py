"""Ctrl-C in a verb that works for a while: one line, exit code 130, and nothing half done."""

import contextlib
import sys
from collections.abc import Iterator

import typer

INTERRUPTED = 130
"""As shells have it: 128 + SIGINT."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C ends the verb with one line and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
