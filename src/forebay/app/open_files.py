"""How many files this process may open, and for how many clients that is enough: each takes one, and one more to its engine.

A shell gives a process a thousand files and allows it many more, so all that is allowed is taken. Where that is less than the
configuration's clients would need, fewer are let in, and the rest is told so: without a file left to reach an engine by, a gateway
would refuse everybody, and take its engines for dead.
"""

import contextlib
import resource

import msgspec

from forebay.app.gateway_wiring import GatewaySystem
from forebay.domain.events import Event

KEPT = 128
"""For what is neither a client nor its engine: files, pipes, workers; at most half of all. Half of these are for who is told to go."""
FILES_MAX = 2**20
"""No process needs more; some systems say that there is no end to it."""


class Room(msgspec.Struct, frozen=True):
    """Of connections from clients."""

    clients_max: int
    refused_max: int
    """Beside them, that are told so and then closed; further ones are just closed."""


def take_all() -> int:
    """Have this process, and those that it starts, open as many files as it may; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES_MAX if hard == resource.RLIM_INFINITY else hard
    if soft not in (most, resource.RLIM_INFINITY) and soft < most:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return FILES_MAX if soft == resource.RLIM_INFINITY else soft


def room(files_max: int) -> Room:
    """What ``files_max`` open files are enough for."""
    kept = min(KEPT, files_max // 2)
    return Room((files_max - kept) // 2, kept // 2)


def needed(clients: int) -> int:
    """Open files for so many clients."""
    return 2 * clients + KEPT


def bound(system: GatewaySystem, files_max: int) -> None:
    """Let no more clients in than ``files_max`` open files are enough for, and say so where that is less than is configured."""
    gateway, allowed = system.gateway, room(files_max)
    for server in gateway.servers:
        server.clients_max, server.refused_max = allowed.clients_max, allowed.refused_max
    wanted = gateway.limits.connections_max
    if wanted <= allowed.clients_max:
        return
    words = (
        f"limits.connections is {wanted}, but the {files_max} files that this process may open are enough for {allowed.clients_max} "
        f"clients: more get 503; allow {needed(wanted)} files (ulimit -Hn, LimitNOFILE), or lower the limit"
    )
    clock = system.clock
    system.sink.emit(Event("connections_bounded", clock.now_s(), clock.wall_s(), "", words, {"gateway": gateway.name}))
