"""Runs one engine, and takes its whole process tree with it: the smallest program that can promise that no orphan is left.

It is started as ``python -I -S shim.py [--owner DIR] [--replica ID] [--grace S] [--orphan-grace S] -- COMMAND…`` and
imports only what starts in milliseconds, since one of it stands beside every engine. Its pid is the engine's process
group. It ends the engine on SIGTERM (again after ``--grace`` seconds, by SIGKILL after twice that), by SIGKILL at once on
SIGQUIT, and politely but quicker when the *lifeline* closes: a pipe whose read end it inherits (its number in
``FOREBAY_LIFELINE_FD``) and whose only write end the supervisor holds. Engines start helpers that outlive their parent
and ignore SIGTERM, so the shim is the subreaper of its descendants and kills every one that it still finds ``TIDY_S``
after the engine's end. Were the shim itself killed, the kernel kills the engine's main process (PDEATHSIG); the rest of
the group is then the fleet's to end. All of this is Linux: elsewhere only the main process is ended.

``--owner`` and ``--replica`` do nothing but mark the process, so that a fleet finds its own after a crash. The exit code
is the engine's, 128 + n if it died of signal n, 127 if it could not be started.
"""

import ctypes
import os
import select
import signal
import sys
import time

LIFELINE_VARIABLE = "FOREBAY_LIFELINE_FD"
CANNOT_START = 127
GRACE_S = 10.0
ORPHAN_GRACE_S = 1.0
TIDY_S = 2.0
TIDY_ROUND_S = 0.05
KILL_ROUNDS_MAX = 200
KILL_ROUND_S = 0.01
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _say(words: str) -> None:
    try:
        os.write(2, f"forebay shim: {words}\n".encode())
    except OSError:
        return  # its log's disk may be full: the exit code is the engine's all the same


def _start(command: list[str]) -> int:
    """The engine's pid. It shares the shim's group and dies with the shim."""
    shim = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != shim:
            os._exit(CANNOT_START)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        _say(f"cannot start {command[0]}: {error.strerror}")
    finally:
        os._exit(CANNOT_START)


def _descendants() -> list[int]:
    """Living processes below this one, by ``/proc``; orphans among them have been handed to us as their subreaper."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


class Shim:
    """One engine from start to the end of its last descendant."""

    def __init__(self, command: list[str], grace_s: float, orphan_grace_s: float, lifeline: int | None) -> None:
        self.grace_s = grace_s
        self.orphan_grace_s = orphan_grace_s
        self.lifeline = lifeline
        self.steps: list[tuple[float, int]] = []
        self.code: int | None = None
        self.wake, wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, _noted)
        self.engine = _start(command)

    def run(self) -> int:
        """Waits for what comes first: a signal, the end of the lifeline, the next step of a stop, the engine's end."""
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        if self.lifeline is not None:
            poller.register(self.lifeline, select.POLLIN)
        while True:
            wait_s = max(0.0, self.steps[0][0] - time.monotonic()) if self.steps else None
            ready = {fd for fd, _ in poller.poll(None if wait_s is None else wait_s * 1000 + 1)}
            signals = os.read(self.wake, 64) if self.wake in ready else b""
            self._reap()
            if self.code is not None:
                self._let_tidy()
                self._kill()
                return self.code
            if signal.SIGQUIT in signals:
                self._kill()
            elif any(number != signal.SIGCHLD for number in signals):
                self._stop(self.grace_s)
            if self.lifeline in ready and self.lifeline is not None and not os.read(self.lifeline, 64):
                poller.unregister(self.lifeline)
                self._stop(self.orphan_grace_s)
            self._due_steps()

    def _stop(self, grace_s: float) -> None:
        """SIGTERM now; a schedule under way is only ever brought forward."""
        now_s = time.monotonic()
        self._terminate()
        if not self.steps or now_s + 2 * grace_s < self.steps[-1][0]:
            self.steps = [(now_s + grace_s, signal.SIGTERM), (now_s + 2 * grace_s, signal.SIGKILL)]

    def _due_steps(self) -> None:
        while self.steps and self.steps[0][0] <= time.monotonic():
            _, number = self.steps.pop(0)
            if number == signal.SIGTERM:
                _say("still running after the first SIGTERM; sending another")
                self._terminate()
            else:
                _say("still running after two SIGTERMs; killing it")
                self._kill()

    def _terminate(self) -> None:
        """To the whole group but ourselves: what is ignored at that instant is discarded."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(os.getpgrp(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, _noted)

    def _let_tidy(self) -> None:
        """A moment for what the engine left: Python's resource tracker frees the engine's shared memory after its end."""
        end_s = time.monotonic() + TIDY_S
        while _descendants() and time.monotonic() < end_s:
            time.sleep(TIDY_ROUND_S)
            self._reap()

    def _kill(self) -> None:
        """SIGKILL every descendant until none is left, those that left the group included."""
        for _ in range(KILL_ROUNDS_MAX):
            below = _descendants()
            if self.code is None and not below:
                below = [self.engine]
            for pid in below:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    continue
            self._reap()
            if not below:
                return
            time.sleep(KILL_ROUND_S)

    def _reap(self) -> None:
        """Collects the dead; keeps the engine's exit code."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.engine:
                code = os.waitstatus_to_exitcode(status)
                self.code = code if code >= 0 else 128 - code
                _say(f"the engine ended with code {code}" if code >= 0 else f"the engine died of signal {-code}")


def _noted(*_: object) -> None:
    """The wake-up pipe carries the signal's number; the loop acts on it."""


def main(arguments: list[str]) -> int:
    """Exit code of the engine."""
    if "--" not in arguments or arguments[-1] == "--":
        _say("usage: shim.py [--owner DIR] [--replica ID] [--grace S] [--orphan-grace S] -- COMMAND…")
        return 2
    split = arguments.index("--")
    options = dict(zip(arguments[0:split:2], arguments[1:split:2], strict=False))
    lifeline = os.environ.pop(LIFELINE_VARIABLE, "")
    if lifeline:
        os.set_inheritable(int(lifeline), False)
    if os.getpgrp() != os.getpid():
        os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    grace_s = float(options.get("--grace", GRACE_S))
    orphan_grace_s = float(options.get("--orphan-grace", ORPHAN_GRACE_S))
    return Shim(arguments[split + 1 :], grace_s, orphan_grace_s, int(lifeline) if lifeline else None).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
