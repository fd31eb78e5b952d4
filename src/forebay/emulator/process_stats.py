"""The ``python_*`` and ``process_*`` families: read from the kernel in a real process, constant in a simulated world.

Reading ``/proc`` costs tens of microseconds, and one process may serve hundreds of engines that are scraped each
second, so a reading is shared for ``AGE_S_MAX``.
"""

import gc
import os
import platform
import resource
from collections.abc import Callable

from forebay.emulator.page import header, labels, number

AGE_S_MAX = 0.25
"""Real seconds for which a reading serves every engine of the process."""

_GC = (
    ("python_gc_objects_collected_total", "Objects collected during gc", "collected"),
    ("python_gc_objects_uncollectable_total", "Uncollectable objects found during GC", "uncollectable"),
    ("python_gc_collections_total", "Number of times this generation was collected", "collections"),
)
_PROCESS = (
    ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes."),
    ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
    ("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds."),
    ("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds."),
    ("process_open_fds", "gauge", "Number of open file descriptors."),
    ("process_max_fds", "gauge", "Maximum number of open file descriptors."),
)


def render(
    start_wall_s: float, memory: tuple[float, float] = (2.2e9, 6.7e8), cpu_s: float = 0.0, fds: tuple[int, int] = (58, 20_000)
) -> str:
    """The families' text. ``memory`` is (virtual, resident) bytes, ``fds`` (open, allowed)."""
    lines = []
    generations = gc.get_stats() if cpu_s else [{"collected": 0, "uncollectable": 0, "collections": 0}] * 3
    for name, help_text, key in _GC:
        lines.append(header(name, "counter", help_text))
        lines += [f'{name}{{generation="{index}"}} {number(stats[key])}\n' for index, stats in enumerate(generations)]
    major, minor, patch = platform.python_version_tuple()
    info = {"implementation": platform.python_implementation(), "major": major, "minor": minor, "patchlevel": patch}
    info["version"] = platform.python_version()
    lines.append(header("python_info", "gauge", "Python platform information") + f"python_info{labels(info)} 1.0\n")
    values = (*memory, start_wall_s, cpu_s, *fds)
    lines += [f"{header(name, kind, text)}{name} {number(value)}\n" for (name, kind, text), value in zip(_PROCESS, values, strict=True)]
    return "".join(lines)


def age_s() -> float:
    """Real seconds since this process was started, to 10 ms; 0 where the kernel does not tell."""
    try:
        with open("/proc/self/stat", "rb") as file:
            started_ticks = int(file.read().rpartition(b")")[2].split()[19])
        with open("/proc/uptime", "rb") as file:
            up_s = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, up_s - started_ticks / os.sysconf("SC_CLK_TCK"))


def still(start_wall_s: float) -> Callable[[], str]:
    """For a simulated world: the same text each time."""
    text = render(start_wall_s)
    return lambda: text


def live(start_wall_s: float, now_real_s: Callable[[], float]) -> Callable[[], str]:
    """For a real process: this one's own numbers, at most ``AGE_S_MAX`` old."""
    page_bytes = resource.getpagesize()
    fds_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    read_at_s = -AGE_S_MAX
    text = ""

    def read() -> str:
        nonlocal read_at_s, text
        now_s = now_real_s()
        if now_s - read_at_s >= AGE_S_MAX:
            read_at_s = now_s
            with open("/proc/self/statm", "rb") as file:
                pages = file.read().split()
            used = resource.getrusage(resource.RUSAGE_SELF)
            fds = len(os.listdir("/proc/self/fd"))
            memory = (float(int(pages[0]) * page_bytes), float(int(pages[1]) * page_bytes))
            text = render(start_wall_s, memory, used.ru_utime + used.ru_stime, (fds, fds_max))
        return text

    return read
