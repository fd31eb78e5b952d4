"""A relay worker's process: it carries streams for the gateway that started it, and ends with it, however that ends."""

import argparse
import signal
import socket
import sys
from collections.abc import Sequence

from forebay.adapters.clock import LoopClock
from forebay.adapters.crew import serve
from forebay.app import process
from forebay.gateway.carrying import Worker


async def _serve(end: socket.socket) -> int:
    # Whoever ends the gateway may well mean all its processes: it is the gateway that lets its streams finish, and hangs up then.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    process.settle()
    await serve(end, lambda owner: Worker(LoopClock(), owner))
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """The process; the exit code."""
    parser = argparse.ArgumentParser("forebay relay worker")
    parser.add_argument("--fd", type=int, required=True, help="The open socket whose other end the gateway holds")
    arguments = parser.parse_args(words)
    end = socket.socket(fileno=arguments.fd)
    return process.run(lambda: _serve(end))


if __name__ == "__main__":
    sys.exit(main())
