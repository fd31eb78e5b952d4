"""A measurement's processes on cores of their own and ahead of whatever else runs: what is measured is to be the program, not its neighbours."""

import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path

NICENESS = -15
ENGINE_CORE, CLIENT_CORE = 1, 0


def favoured(core: int) -> Callable[[], None]:
    """For ``preexec_fn``: a session of its own on ``core`` (any, where there is one only), ahead of others where this user may (root).

    Linux shares out cores by session before it looks at niceness (``/proc/PID/autogroup``), so a low niceness alone gains nothing over
    other sessions: on a machine with fifteen busy ones, a step took four times as long for it.
    """
    return functools.partial(_favour, core)


def _favour(core: int) -> None:
    os.setsid()
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {core})
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        Path("/proc/self/autogroup").write_text(str(NICENESS))
