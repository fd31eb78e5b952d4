"""Where the command begins: Ctrl-C while the program itself is still read ends it without a traceback, as it does later."""

import os
import signal
from types import FrameType


def main() -> None:
    """Read the program, and run the verb that was asked for."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a script's background job is deaf to it, and stays so
        signal.signal(signal.SIGINT, _end)
    from forebay.cli.main import main as run

    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    run()


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as signals want it
    os._exit(128 + number)  # the code that shells have for it; nothing has been begun that could be left half done


if __name__ == "__main__":
    main()
