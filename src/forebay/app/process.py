"""What every process of Forebay does at its start and end: arguments, uvloop, signals, the lifeline."""

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from forebay.adapters.clock import LoopClock
from forebay.app.children import LIFELINE
from forebay.domain.errors import ForebayError


def parser(name: str, sockets: tuple[str, ...], optional: tuple[str, ...] = ()) -> argparse.ArgumentParser:
    """Arguments that the supervisor passes: the spec, the world's clock, state folder and listening sockets."""
    arguments = argparse.ArgumentParser(f"forebay {name}")
    arguments.add_argument("--spec", type=Path, required=True)
    arguments.add_argument("--speed", type=float, default=1.0)
    arguments.add_argument("--wall-offset", type=float, help="Unix time in the world when its seconds were 0; default: the real clock's")
    arguments.add_argument("--state", type=Path, required=True)
    for one in sockets:
        arguments.add_argument(f"--{one}-fd", type=int, required=True)
    for one in optional:
        arguments.add_argument(f"--{one}-fd", type=int)
    return arguments


def world_clock(arguments: argparse.Namespace) -> LoopClock:
    """The clock that the supervisor's ``arguments`` describe; call it inside the running loop."""
    offset_s = arguments.wall_offset
    now_s = asyncio.get_running_loop().time() * arguments.speed
    return LoopClock(arguments.speed, None if offset_s is None else offset_s + now_s)


def inherited(file_descriptor: int) -> socket.socket:
    """The listening socket handed down."""
    listening = socket.socket(fileno=file_descriptor)
    listening.setblocking(False)
    return listening


def lifeline_fd() -> int | None:
    """The lifeline's read end, or None where nobody holds one (started by hand)."""
    text = os.environ.get(LIFELINE, "")
    return int(text) if text.isdigit() else None


def stop_event(*numbers: signal.Signals) -> asyncio.Event:
    """Set by any of the signals ``numbers``; default: SIGTERM and SIGINT."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in numbers or (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    return event


def end_with_the_lifeline() -> None:
    """End this process at once when the supervisor is gone: its engines end by the same pipe."""
    descriptor = lifeline_fd()
    if descriptor is None:
        return

    def readable() -> None:
        if os.read(descriptor, 1) == b"":
            os._exit(1)

    with contextlib.suppress(OSError):
        asyncio.get_running_loop().add_reader(descriptor, readable)


_exit = os._exit

YOUNG_OBJECTS = 5_000
"""So many more containers than were freed, and the young ones are looked at for cycles: about 1 MB of garbage at most…"""
YOUNG_COLLECTIONS = 5
"""…and those that outlived one such look after so many…"""
MIDDLE_COLLECTIONS = 100
"""…and all after so many of these. (Nothing is lost by it: what a request leaves behind has no cycles, and is freed at once.)"""


MAPS = Path("/proc/self/maps")
LARGE_PAGE_BYTES = 2 * 2**20
MADV_HUGEPAGE, MADV_COLLAPSE = 14, 25
"""As in <linux/mman.h>; the second is Linux 6.1's."""


KEPT_BYTES = 32 * 2**20
"""So much that was freed at the heap's end stays with the process at most, and what is larger than that is mapped by itself."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As in glibc's <malloc.h>, which takes no more than `KEPT_BYTES` for the second."""


def settle() -> None:
    """What is built lives until the end: no collection looks at it again, nor often at what waits; and it is kept in large pages.

    What large bodies needed is kept for the next.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, MIDDLE_COLLECTIONS)
    keep_freed()
    if MAPS.exists():
        _keep_in_large_pages(heap_ranges(MAPS.read_text()))


def keep_freed() -> None:
    """Memory that goes back to the kernel comes page by page, each cleared anew: that was two fifths of what a body of 1 MB costs.

    Another C library than glibc changes nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)


def heap_ranges(maps: str) -> list[tuple[int, int]]:
    """Address and bytes of what large pages can be under of the heap, by ``/proc/self/maps``: its large pages that are all there."""
    found = []
    for line in maps.splitlines():
        addresses, access, *_, name = [*line.split(maxsplit=5), ""][:6]
        if access == "rw-p" and name in ("", "[heap]"):
            begin, end = (int(address, 16) for address in addresses.split("-"))
            first, last = -(-begin // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES, end // LARGE_PAGE_BYTES * LARGE_PAGE_BYTES
            if first < last:
                found.append((first, last - first))
    return found


def _keep_in_large_pages(ranges: list[tuple[int, int]]) -> None:
    """A process that sleeps between two requests finds the addresses of small pages forgotten: a request costs a twentieth less.

    A kernel that has no large pages, or none to give, changes nothing.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for address, size_bytes in ranges:
        madvise(address, size_bytes, MADV_HUGEPAGE)
        madvise(address, size_bytes, MADV_COLLAPSE)


THREADS_END_REAL_S = 5.0
"""What threads still do when all is said and done is given so long: one that waits for a disk that hangs would keep the process."""


def _end_anyway(code: int) -> threading.Timer:
    """The end of this process with ``code``, unless it is cancelled within `THREADS_END_REAL_S`."""

    def end() -> None:
        print(f"forebay: a thread does not end within {THREADS_END_REAL_S:g} s; it is left to itself", file=sys.stderr, flush=True)
        _exit(code)

    timer = threading.Timer(THREADS_END_REAL_S, end)
    timer.daemon = True
    timer.start()
    return timer


def run(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run ``main`` on uvloop; errors of ours are one line on stderr and their exit code."""
    try:
        with contextlib.ExitStack() as ends, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(main())
            ends.callback(_end_anyway(code).cancel)
            return code
    except ForebayError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
