"""One engine's process tree, seen from outside: its shim's pid, which is also its process group.

A pidfd tells of the end at once, of a child as of one adopted from an earlier controller, and cannot be confused by a
reused pid. An adopted process's exit code goes to its real parent: only its log tells it.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

import psutil

BORN_TOLERANCE_S = 2.0
"""psutil computes a process's creation from the boot time, which a clock correction may move a little."""


class Child:
    """Make it with ``spawn`` or ``adopt``. ``ended`` resolves to the exit code, or None where it can't be known."""

    def __init__(self, pid: int, born_s: float, pidfd: int, process: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self.born_s = born_s
        self._pidfd = pidfd
        self._process = process
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int | None] = self._loop.create_future()
        self._loop.add_reader(pidfd, self._gone)

    def terminate(self) -> None:
        """SIGTERM to the shim, which passes it on and escalates by itself."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Has the shim kill the engine and every descendant at once, those that left the group included."""
        self._send(signal.SIGQUIT)

    def force(self) -> None:
        """SIGKILL to the whole group, the shim included: for when even the shim does not answer."""
        if not self.ended.done():
            kill_group(self.pid)

    def release(self) -> None:
        """Stop watching; the process runs on."""
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._process is not None and self._process.returncode is None:
            self._process.returncode = 0
        if not self.ended.done():
            self.ended.cancel()

    def _send(self, number: signal.Signals) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _gone(self) -> None:
        # Before the pid is reaped, so that the group can't be anybody else's: a shim killed by force leaves members behind.
        kill_group(self.pid)
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        code = self._process.wait() if self._process is not None else None
        if not self.ended.done():
            self.ended.set_result(code)


def spawn(command: Sequence[str], environment: dict[str, str], log_fd: int, lifeline_fd: int | None) -> Child:
    """Start ``command`` as the leader of a new session, its output to ``log_fd``. Raises OSError."""
    _hear_quit()
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        pass_fds=() if lifeline_fd is None else (lifeline_fd,),
        start_new_session=True,
    )
    try:
        return Child(process.pid, psutil.Process(process.pid).create_time(), os.pidfd_open(process.pid), process)
    except (OSError, psutil.Error) as error:
        kill_group(process.pid)
        process.wait()
        raise OSError(f"process {process.pid} can't be watched: {error}") from error


def _hear_quit() -> None:
    """What a shell starts with ``&`` ignores SIGQUIT, and so would its children until they listen: a shim told to kill would live on."""
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        with contextlib.suppress(ValueError):  # only the main thread may
            signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def adopt(pid: int, born_s: float) -> Child | None:
    """The living process ``pid`` that was created at ``born_s``, or None if that one is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - born_s) <= BORN_TOLERANCE_S and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        same = False
    if not same:
        os.close(pidfd)
        return None
    return Child(pid, born_s, pidfd, None)


def exists(pid: int) -> bool:
    """Whether any process has this pid."""
    return psutil.pid_exists(pid)


def kill_group(pid: int) -> None:
    """SIGKILL whatever is left of group ``pid``; the kernel gives no pid away while a group of that number has members."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def quit_shim(pid: int) -> None:
    """Have the shim ``pid`` kill its engine and end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGQUIT)


def strays(owner: str, shim: str, known: set[int]) -> list[int]:
    """Pids of shims that carry ``owner``'s mark and are not ``known``: a controller died between starting and noting one."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        own = words[: words.index("--")] if "--" in words else []
        if shim in own and owner in own and process.pid not in known:
            found.append(process.pid)
    return found
