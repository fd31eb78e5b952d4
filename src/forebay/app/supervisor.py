"""`forebay up`: owns every process and the listening sockets, and has no logic of its own.

The controller and the gateway are children that are restarted when they crash; they share no fate with each other or
with the engines. The sockets are opened here once and handed down, so addresses outlive a crash and clients that
connect meanwhile wait instead of being refused.
"""

import fcntl
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from forebay.app import config
from forebay.app.children import Child, Lifeline, become_subreaper, reap
from forebay.app.files import RUNNING_FILE, Running, state_folder, write_value
from forebay.domain.errors import BadInput, ForebayError
from forebay.spec.types import Listen, Spec

POLL_S = 0.05
STARTS_FAILED_MAX = 5
STOP_MARGIN_S = 30.0
BACKLOG = 1024


class Supervisor:
    """The processes of one `forebay up`."""

    def __init__(self, path: Path, spec: Spec, speed: float, state: Path) -> None:
        self.spec = spec
        self.speed = speed
        self.state = state
        self._lock = _lock(state)
        self.sockets = {name: _listen(name, listen) for name, listen in _listeners(spec).items()}
        self.lifeline = Lifeline()
        self.stopping = 0
        common = ["--config", str(path.resolve()), "--speed", str(speed), "--state", str(state)]
        self.controller = self._child("controller", common, ("channel", "admin"))
        self.gateway = self._child("gateway", common, ("gateway",), extra=("--channel", _address(self.sockets["channel"])))

    def _child(self, name: str, common: list[str], sockets: tuple[str, ...], extra: tuple[str, ...] = ()) -> Child:
        arguments = [*common, *extra]
        for socket_name in sockets:
            arguments += [f"--{socket_name}-fd", str(self.sockets[socket_name].fileno())]
        log = self.state / "logs" / f"{name}.log"
        return Child(name, f"forebay.app.{name}_main", arguments, log, self.lifeline, [self.sockets[one].fileno() for one in sockets])

    @property
    def children(self) -> tuple[Child, ...]:
        """In the order they start; they stop in reverse."""
        return (self.controller, self.gateway)

    def run(self, ready_file: Path | None) -> int:
        """Start, say so, supervise until told to stop; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_stop)
        become_subreaper()
        for marker in ("gateway.ready", RUNNING_FILE):
            (self.state / marker).unlink(missing_ok=True)
        try:
            for child in self.children:
                child.start(time.monotonic())
            self._until_ready(ready_file)
            while not self.stopping:
                self._poll()
            self._stop()
            return 0
        finally:
            (self.state / RUNNING_FILE).unlink(missing_ok=True)
            self.lifeline.close()
            self._lock.close()

    def _told_to_stop(self, *_: Any) -> None:
        self.stopping += 1

    def _poll(self) -> None:
        now_s = time.monotonic()
        for pid, exit_code in reap():
            for child in self.children:
                if child.pid == pid:
                    child.ended(exit_code, now_s)
                    if not self.stopping:
                        print(f"forebay: the {child.name} ended with {exit_code}; starting it again (log: {child.log})", file=sys.stderr)
        if not self.stopping:
            for child in self.children:
                child.restart_if_due(now_s)
        time.sleep(POLL_S)

    def _until_ready(self, ready_file: Path | None) -> None:
        marker = self.state / "gateway.ready"
        while not marker.exists():
            self._poll()
            if self.stopping:
                return
            for child in self.children:
                if child.restarts >= STARTS_FAILED_MAX:
                    self.stopping = 1
                    self._stop()
                    raise ForebayError(
                        f"the {child.name} does not start (exit code {child.exit_code}); the end of {child.log}:\n{child.tail()}"
                    )
        running = Running(_url(self.sockets["gateway"]), _url(self.sockets["admin"]), os.getpid())
        write_value(self.state / RUNNING_FILE, running)
        if ready_file is not None:
            write_value(ready_file, running)
        print(
            f"forebay: ready\n  gateway {running.gateway}\n  admin   {running.admin}\n  state   {self.state}", file=sys.stderr, flush=True
        )

    def _stop(self) -> None:
        """The gateway first, so that streams finish while their engines live; then the controller with its engines."""
        self.sockets["gateway"].close()
        drain_s = self.spec.limits.drain_s + STOP_MARGIN_S
        for child, patience_s in ((self.gateway, drain_s), (self.controller, STOP_MARGIN_S + _grace_s(self.spec))):
            child.signal(signal.SIGTERM)
            deadline_s = time.monotonic() + patience_s
            while child.pid is not None and time.monotonic() < deadline_s and self.stopping < 2:
                self._poll()
            child.signal(signal.SIGKILL)
            while child.pid is not None:
                self._poll()


def up(path: Path, *, ready_file: Path | None = None, speed: float | None = None, state_dir: Path | None = None) -> int:
    """Run everything in the configuration at ``path`` until told to stop; the exit code. Raises BadInput before anything starts."""
    spec = config.load(path)
    if ready_file is not None and not ready_file.resolve().parent.is_dir():
        raise BadInput(f"--ready-file: the folder of {ready_file} is not there")
    state = state_folder((state_dir or path.resolve().parent / spec.state_dir).resolve())
    return Supervisor(path, spec, spec.speed if speed is None else speed, state).run(ready_file)


def _listeners(spec: Spec) -> dict[str, Listen]:
    return {"gateway": spec.gateway, "admin": spec.admin, "channel": Listen("127.0.0.1", 0)}


def _listen(name: str, listen: Listen) -> socket.socket:
    try:
        return socket.create_server((listen.host, listen.port), backlog=BACKLOG)
    except OSError as error:
        raise BadInput(
            f"{name}: can't listen on {listen.host}:{listen.port} ({error.strerror}); name another address, or port 0 for a free one"
        ) from None


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{host}:{port}"


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{'127.0.0.1' if host in {'0.0.0.0', '::'} else host}:{port}"


def _grace_s(spec: Spec) -> float:
    return max((2 * pool.engine.stop_grace_s for pool in spec.pools), default=0.0)


def _lock(state: Path) -> Any:
    """The state folder's lock: two fleets with the same names would stop each other's engines."""
    held = (state / "lock").open("w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.close()
        raise BadInput(f"state: another `forebay up` uses {state}; stop it, or name another folder with --state") from None
    return held
