"""Children that are restarted when they crash, and a lifeline that ends everything when the parent is gone.

The parent keeps the only write end of the lifeline, a pipe; every process below holds a read end. However the parent
ends, by SIGKILL too, the kernel closes the pipe, and whoever reads its end of file stops what it owns.
"""

import ctypes
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from forebay.adapters.local.logfile import LogFile

LIFELINE = "FOREBAY_LIFELINE_FD"
STOP_ENGINES = signal.SIGUSR1
"""Tells the controller to end with its engines; by SIGTERM it only leaves, and the next one takes them over."""
BACKOFF_S_MIN = 0.25
BACKOFF_S_MAX = 10.0
HEALTHY_AFTER_S = 30.0
CANNOT_START = 127
SIGNALLED = 128
"""As shells have it: the exit code of what died of a signal is this and the signal's number."""
LAST_WORDS_BYTES_MAX = 2000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Lifeline:
    """The pipe. Only this process holds the write end."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()
        os.set_inheritable(self.read_fd, True)

    def close(self) -> None:
        """End everything that hangs on it."""
        os.close(self._write_fd)


class Above:
    """The lifeline of whoever started this process, where it holds one: `forebay demo` does, a person at a terminal doesn't."""

    def __init__(self) -> None:
        text = os.environ.get(LIFELINE, "")
        self._fd = int(text) if text.isdigit() and _is_pipe(int(text)) else None
        if self._fd is not None:
            os.set_blocking(self._fd, False)

    def gone(self) -> bool:
        """Whether it has ended, however."""
        if self._fd is None:
            return False
        try:
            return os.read(self._fd, 1) == b""
        except BlockingIOError:
            return False


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def become_subreaper() -> None:
    """Orphans below become our children, to be reaped. Without the call (not Linux) they go to init, which reaps too."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """Have the kernel send SIGTERM when the process that started this one ends, however it does (Linux; elsewhere nothing happens)."""
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended just before: nobody is told any more
        signal.raise_signal(signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    try:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):
        return


class Child:
    """One restartable process; its output goes to a bounded log file of its own, ``NAME.log`` in ``log_dir``."""

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], log_dir: Path, lifeline: Lifeline, fds: Sequence[int] = ()
    ) -> None:
        self.name = name
        self.pid: int | None = None
        self._log = LogFile(log_dir, name)
        self.problem = ""
        """Why it could not be started, in words for people; empty once it could."""
        self.exit_code: int | None = None
        self.restarts = 0
        self._command = [sys.executable, "-m", module, *arguments]
        self._fds = (lifeline.read_fd, *fds)
        self._environment = {**os.environ, LIFELINE: str(lifeline.read_fd)}
        self._backoff_s = BACKOFF_S_MIN
        self._started_s = 0.0
        self._restart_at_s: float | None = None
        self._spoke_from = 0

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return self._log.path

    def start(self, now_s: float) -> None:
        """Start it (again). Where the machine refuses (no process, no file), that counts as a start that ended at once."""
        self._started_s = now_s
        self._restart_at_s = None
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                self._spoke_from = log.tell()
                # In a session of its own: an interrupt at the terminal is the supervisor's to pass on, in order.
                process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=self._fds,
                    env=self._environment,
                    start_new_session=True,
                )
        except OSError as error:
            self.problem = f"{error.filename or self._command[0]}: {error.strerror}"
            self.ended(CANNOT_START, now_s)
            return
        self.problem = ""
        self.pid = process.pid
        process.returncode = 0  # reaped by the supervisor's own waitpid

    def ended(self, exit_code: int, now_s: float) -> None:
        """It ended; a restart is due after a growing delay."""
        self.pid = None
        self.exit_code = exit_code
        if now_s - self._started_s > HEALTHY_AFTER_S:
            self._backoff_s = BACKOFF_S_MIN
        self._restart_at_s = now_s + self._backoff_s
        self._backoff_s = min(BACKOFF_S_MAX, self._backoff_s * 2)

    def restart_if_due(self, now_s: float) -> bool:
        """Start it if its delay is over; True if it was started."""
        if self.pid is None and self._restart_at_s is not None and now_s >= self._restart_at_s:
            self.restarts += 1
            self.start(now_s)
            return True
        return False

    def signal(self, number: signal.Signals) -> None:
        """Send ``number``, if it runs."""
        if self.pid is not None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def bound_log(self) -> None:
        """Move its log aside if it has grown too large."""
        self._log.bound()

    def last_words(self) -> str:
        """The end of what it wrote since it was last started, or why it wrote nothing."""
        if self.problem:
            return self.problem
        try:
            with self.log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                begin = self._spoke_from if self._spoke_from <= end else 0  # its log was moved aside
                file.seek(max(begin, end - LAST_WORDS_BYTES_MAX))
                return file.read(LAST_WORDS_BYTES_MAX).decode(errors="replace").strip()
        except OSError:
            return ""


def reap() -> list[tuple[int, int]]:
    """(pid, exit code) of every process that has ended; a signal is 128 + its number."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else SIGNALLED + os.WTERMSIG(status)))


def how_it_ended(exit_code: int) -> str:
    """For people, after "it"; ``exit_code`` as `reap` gives it."""
    if exit_code == SIGNALLED + signal.SIGKILL:
        return "was killed (SIGKILL: by somebody, or by the kernel because memory ran out)"
    if exit_code > SIGNALLED:
        return f"died of signal {exit_code - SIGNALLED}"
    return f"ended with exit code {exit_code}"
