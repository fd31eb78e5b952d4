"""Ctrl-C, or a signal that ends, in a verb that works for a while: one line, the exit code that shells know, and nothing half done."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import typer

from forebay.cli import output

INTERRUPTED = 130
"""As shells have it: 128 + SIGINT."""
ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Who gets one of them has children and unfinished files to see to first."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C ends the verb with one line and exit code 130, a signal of ``ENDING`` with 128 + its number."""
    before = {number: signal.signal(number, _end) for number in ENDING} if threading.current_thread() is threading.main_thread() else {}
    try:
        yield
    except KeyboardInterrupt as stop:
        output.aside("stopped; nothing was written")
        raise typer.Exit(code(stop)) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def code(stop: KeyboardInterrupt) -> int:
    """The exit code after ``stop``."""
    return 128 + int(stop.args[0]) if stop.args else INTERRUPTED


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signals want it
    raise KeyboardInterrupt(number)
