"""`forebay up`: owns every process and the listening sockets, and has no logic of its own.

The controller and the gateway are children that are restarted when they crash; they share no fate with each other or
with the engines. The sockets are opened here once and handed down, so addresses outlive a crash and clients that
connect meanwhile wait instead of being refused.
"""

import contextlib
import fcntl
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from forebay.app import config, listening
from forebay.app.certificates import Certificate
from forebay.app.children import SIGNALLED, STOP_ENGINES, Above, Child, Lifeline, become_subreaper, how_it_ended, reap
from forebay.app.echo import Echo, running, starting, stopping
from forebay.app.engine_keys import engine_key_troubles
from forebay.app.files import (
    LOCK_FILE,
    RUNNING_FILE,
    Running,
    announce,
    check_ready_file,
    remove_unfinished,
    save_spec,
    state_folder,
    write_value,
)
from forebay.app.gateway_names import gateway_name, ready_marker, roster_file
from forebay.app.keys import join_secret, join_troubles
from forebay.domain.errors import BadInput, ForebayError
from forebay.spec.types import Listen, Spec

POLL_S = 0.05
LOG_LOOK_EVERY_S = 5.0
RESTARTS_MAX = 3
"""Of a child that has never been ready; one that was ready is restarted for ever."""
STOP_MARGIN_S = 30.0
ORPHANS_S_MAX = 10.0
"""How long the end waits for processes that only the lifeline ends."""
CUT = 2
"""So many times told to stop, and nothing is waited for."""
SPEED_MIN, SPEED_MAX = 0.01, 1000.0


class Supervisor:
    """The processes of one `forebay up`."""

    def __init__(self, spec: Spec, speed: float, state: Path, path: Path) -> None:
        """``path``: the file that ``spec`` was read from.

        Takes the state folder's lock and every address; raises BadInput, with nothing taken, where one of them is in use.
        """
        self.spec = spec
        self.speed = speed
        self.state = state
        self.path = path
        self.stopping = 0
        self._run_id = secrets.token_hex(8)
        self._looked_at_logs_s = 0.0
        self._announcement: Path | None = None
        self._above = Above()
        with contextlib.ExitStack() as taken:
            self._lock = taken.enter_context(_lock(state))
            self.sockets = {name: taken.enter_context(listening.opened(name, listen)) for name, listen in _listeners(spec).items()}
            remove_unfinished(state)
            spec_file = save_spec(spec, state)
            self.lifeline = Lifeline()
            taken.pop_all()
        common = ["--spec", str(spec_file), "--speed", str(speed), "--state", str(state)]
        if speed != 1.0:
            # Times of an accelerated world go on from one process to the next; those of the real one are set by the real clock.
            common.append(f"--wall-offset={time.time() - time.monotonic() * speed!r}")
        self.controller = self._child("controller", common, {"channel": "channel", "admin": "admin"}, ("--config", str(path)))
        self.gateways = [self._gateway(number, common) for number in range(spec.gateways)]

    def _gateway(self, number: int, common: list[str]) -> Child:
        """All share the clients' socket: whichever is free accepts, and one that crashes leaves nobody waiting."""
        channel = listening.address(self.sockets["channel"])
        extra = ("--channel", channel, "--name", gateway_name(number), "--config", str(self.path), "--run", self._run_id)
        sockets = {"gateway": "gateway", **({"hops": f"hops-{number}"} if self.spec.leases else {})}
        return self._child("gateway", common, sockets, extra, "gateway" if number == 0 else gateway_name(number))

    def _child(self, kind: str, common: list[str], sockets: dict[str, str], extra: tuple[str, ...] = (), name: str = "") -> Child:
        """``sockets``: which it is handed, by its own words for them."""
        arguments = [*common, *extra]
        fds = {word: self.sockets[one].fileno() for word, one in sockets.items()}
        for word, descriptor in fds.items():
            arguments += [f"--{word}-fd", str(descriptor)]
        return Child(name or kind, f"forebay.app.{kind}_main", arguments, self.state / "logs", self.lifeline, list(fds.values()))

    @property
    def children(self) -> tuple[Child, ...]:
        """In the order they start; they stop in reverse."""
        return (self.controller, *self.gateways)

    def run(self, ready_file: Path | None) -> int:
        """Start, say so, supervise until told to stop; the exit code: 1 where a second signal cut what was inside, or usage was lost."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # A terminal that closes ends us in order too, unless `nohup` was asked for.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._told_to_stop)
        become_subreaper()
        former = [roster_file(gateway_name(number)) for number in range(self.spec.gateways)]
        for marker in (*self._markers(), *former, RUNNING_FILE):
            (self.state / marker).unlink(missing_ok=True)
        try:
            self._echoes = [Echo(child.log) for child in self.children]
            for child in self.children:
                child.start(time.monotonic())
            self._until_ready(ready_file)
            while not self.stopping:
                self._poll()
                self._tell(running)
            if self.stopping == 1:
                _say("stopping: what is being answered is answered first, then engines started here stop; interrupt again to end at once")
            self._stop()
            self._tell(stopping)
        finally:
            for note in (self.state / RUNNING_FILE, self._announcement):
                if note is not None:
                    note.unlink(missing_ok=True)
            self.lifeline.close()
            self._until_alone()
            for opened in self.sockets.values():
                opened.close()
            self._lock.close()
        failed = ended_badly(self.gateways)
        _say("\n  ".join((*failed, _stopped(cut=self.stopping >= CUT, left=_has_children()))))
        return 0 if self.stopping < CUT and not failed else 1

    def _markers(self) -> list[str]:
        return [ready_marker(gateway_name(number)) for number in range(self.spec.gateways)]

    def _told_to_stop(self, *_: Any) -> None:
        self.stopping += 1

    def _poll(self) -> None:
        now_s = time.monotonic()
        if self.stopping < CUT and self._above.gone():
            _say("whoever started this has ended, and it ends with it, at once")
            self.stopping = CUT
        for pid, exit_code in reap():
            for child in self.children:
                if child.pid == pid:
                    child.ended(exit_code, now_s)
                    if not self.stopping:
                        _say(f"the {child.name} {how_it_ended(exit_code)}; starting it again (log: {child.log})")
        if not self.stopping:
            for child in self.children:
                child.restart_if_due(now_s)
        if now_s - self._looked_at_logs_s >= LOG_LOOK_EVERY_S:
            self._looked_at_logs_s = now_s
            for child in self.children:
                child.bound_log()
        time.sleep(POLL_S)

    def _tell(self, tells: Callable[[str], bool]) -> None:
        """Pass on what the children have told that a person should see."""
        for echo in self._echoes:
            for line in echo.look(tells):
                _say(line)

    def _until_alone(self) -> None:
        """Until every process below has ended: the lifeline is closed, and orphans are ours to reap."""
        deadline_s = time.monotonic() + ORPHANS_S_MAX
        while _has_children() and time.monotonic() < deadline_s:
            reap()
            time.sleep(POLL_S)

    def _running(self) -> Running:
        """Where everything answers: behind one address either gateway may, so each one's own is told too."""
        shared = listening.url(self.sockets["gateway"], self.spec.tls is not None)
        numbers = range(self.spec.gateways) if self.spec.gateways > 1 else ()
        own = {gateway_name(number): listening.url(self.sockets[f"hops-{number}"]) for number in numbers}
        return Running(shared, listening.url(self.sockets["admin"]), os.getpid(), own)

    def _until_ready(self, ready_file: Path | None) -> None:
        """Say at once where it will answer, so that `forebay status` can look on; then wait, and pass on how the start goes."""
        running = self._running()
        write_value(self.state / RUNNING_FILE, running)
        self._announcement = announce(self.state, running)
        own = "".join(f"\n    {name} alone: {url} (/metrics, /health)" for name, url in running.gateways.items())
        _say(
            f"starting; look on with `forebay status`\n  gateway {running.gateway}{own}\n  admin   {running.admin}\n  state   {self.state}"
        )
        markers = [self.state / name for name in self._markers()]
        while not all(marker.exists() for marker in markers):
            self._poll()
            self._tell(starting)
            if self.stopping:
                return
            for child in self.children:
                if child.pid is None and (child.restarts >= RESTARTS_MAX or child.exit_code == BadInput.exit_code):
                    how = how_it_ended(child.exit_code or 0)
                    words = f"the {child.name} does not start: it {how}; {child.log} ends:\n{child.last_words()}"
                    self.stopping = 1
                    self._stop()
                    raise ForebayError(words)
        if ready_file is not None:
            write_value(ready_file, running)
        logs = self.state / "logs"
        _say(f"ready: each pool that keeps replicas has one\n  more by `forebay status`, `forebay explain`, and in {logs}")

    def _stop(self) -> None:
        """The gateways first, so that streams finish while their engines live; then the controller with its engines."""
        self.sockets["gateway"].close()
        drain_s = self.spec.limits.drain_s / self.speed + STOP_MARGIN_S
        grace_s = _grace_s(self.spec) / min(self.speed, 1.0) + STOP_MARGIN_S
        for children, number, patience_s in ((self.gateways, signal.SIGTERM, drain_s), ([self.controller], STOP_ENGINES, grace_s)):
            for child in children:
                child.signal(number)
            deadline_s = time.monotonic() + patience_s
            while any(child.pid is not None for child in children) and time.monotonic() < deadline_s and self.stopping < CUT:
                self._poll()
            for child in children:
                child.signal(signal.SIGKILL)
            while any(child.pid is not None for child in children):
                self._poll()


def up(path: Path, *, ready_file: Path | None = None, speed: float | None = None, state_dir: Path | None = None) -> int:
    """Run everything in the configuration at ``path`` until told to stop; the exit code. Raises BadInput before anything starts."""
    spec = config.load(path)
    used_speed = spec.speed if speed is None else speed
    if not SPEED_MIN <= used_speed <= SPEED_MAX:
        raise BadInput(f"--speed: found {used_speed:g}; allowed: a number from {SPEED_MIN:g} to {SPEED_MAX:g}")
    check_ready_file(ready_file)
    config.check_live(spec)
    join_secret(spec)
    if troubles := list(engine_key_troubles(spec)):
        raise BadInput("\n".join(troubles))
    for warning in join_troubles(spec):
        _say(f"warning: {warning}")
    if spec.tls is not None:
        Certificate(spec.tls)  # what is wrong with it is said here, and not in a child's log
    state = state_folder((state_dir or path.resolve().parent / spec.state_dir).resolve())
    return Supervisor(spec, used_speed, state, path.resolve()).run(ready_file)


def _listeners(spec: Spec) -> dict[str, Listen]:
    """What is listened on, by name. Gateways reach one another at an address of each one's own, beside the one that clients know."""
    inside = Listen(spec.join.host if spec.join is not None else "127.0.0.1", 0)
    own = [Listen(inside.host, spec.own_port + number if spec.own_port else 0) for number in range(spec.gateways)]
    hops = {f"hops-{number}": listen for number, listen in enumerate(own)} if spec.leases else {}
    return {"gateway": spec.gateway, "admin": spec.admin, "channel": spec.join or inside, **hops}


def _say(words: str) -> None:
    """To whoever started us; a terminal that is gone is no reason to end."""
    with contextlib.suppress(OSError):
        print(f"forebay: {words}", file=sys.stderr, flush=True)


def ended_badly(gateways: Sequence[Child]) -> list[str]:
    """Of those that were told to stop, which could not do so in order: a log on a full disk may lack why."""
    failed = [(child, child.exit_code) for child in gateways if child.exit_code and child.exit_code < SIGNALLED]
    return [f"the {child.name} {how_it_ended(code)} as it was stopped: usage may be lost (log: {child.log})" for child, code in failed]


def _stopped(cut: bool, left: bool) -> str:
    how = "stopped; what was still being answered was cut" if cut else "stopped"
    return f"{how}; processes that it started have not ended yet" if left else how


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _grace_s(spec: Spec) -> float:
    return max((2 * pool.engine.stop_grace_s for pool in spec.pools), default=0.0)


def _lock(state: Path) -> IO[str]:
    """The state folder's lock: two fleets with the same names would stop each other's engines."""
    try:
        held = (state / LOCK_FILE).open("w")
    except OSError as error:
        raise BadInput(f"state: can't write {state / LOCK_FILE} ({error.strerror}); name another folder with --state") from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.close()
        raise BadInput(f"state: another `forebay up` uses {state}; stop it, or name another folder with --state") from None
    return held
