"""One story: `forebay up` in a process of its own, the morning's requests sent to it, and what was seen meanwhile."""

import asyncio
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from forebay.adapters.clock import MeasuringClock
from forebay.app.children import LIFELINE, Lifeline
from forebay.app.demo.scenario import KEY, SPEED, STATE, TTFT_S, Scenario
from forebay.app.files import LOCK_FILE, Running
from forebay.controller.status import PoolStatus, Status
from forebay.domain.errors import BadInput, ForebayError
from forebay.loadgen.replay import ReplayOptions
from forebay.loadgen.replay import run as replay
from forebay.loadgen.report import ReplayReport

START_REAL_S_MAX = 120.0
STOP_REAL_S_MAX = 60.0
FREE_REAL_S_MAX = 15.0
"""How long the fleet of a demo that was killed may take to end, before the folder is said to be in use."""
LOOK_EVERY_S = 5.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The demo talks to this machine only, whatever proxy is set."""


class Look(msgspec.Struct, frozen=True):
    """The fleet at one moment of the story, ``at_s`` world seconds after its first request."""

    at_s: float
    ready: int
    pending: int
    draining: int
    desired: int
    waiting: float | None
    gpu_hours: float
    cost_usd: float


class Story(msgspec.Struct, frozen=True):
    """What happened."""

    buffer: bool
    report: ReplayReport
    looks: tuple[Look, ...]


class Fleet:
    """`forebay up` as a child process, found by its ready file, ended by SIGTERM; a lifeline ends it however we end."""

    def __init__(self, folder: Path, spec_text: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        _until_free(folder)
        (folder / "forebay.yaml").write_text(spec_text)
        self._ready_file = folder / "ready.json"
        self._ready_file.unlink(missing_ok=True)
        self._log = (folder / "up.log").open("wb")
        self._lifeline = Lifeline()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "forebay.cli.main", "up", "-c", str(folder / "forebay.yaml"), "--ready-file", str(self._ready_file)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(self._lifeline.read_fd,),
            env={**os.environ, LIFELINE: str(self._lifeline.read_fd)},
            start_new_session=True,
        )
        os.close(self._lifeline.read_fd)

    def wait_until_ready(self) -> Running:
        """Addresses; raises ForebayError with the log's end where it does not come up."""
        deadline_s = time.monotonic() + START_REAL_S_MAX
        while time.monotonic() < deadline_s:
            if self._ready_file.exists():
                return msgspec.json.decode(self._ready_file.read_bytes(), type=Running)
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        self.stop()
        raise ForebayError(f"the demo's fleet did not come up; the end of {self.folder / 'up.log'}:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines of its log."""
        return "\n".join((self.folder / "up.log").read_text(errors="replace").splitlines()[-20:])

    def stop(self) -> int:
        """SIGTERM, wait, and SIGKILL if it must be; the exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_REAL_S_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._lifeline.close()
        self._log.close()
        return self._process.returncode


def _until_free(folder: Path) -> None:
    """Until no `forebay up` holds the state folder in ``folder``: raises BadInput where one does for longer than an end takes."""
    deadline_s = time.monotonic() + FREE_REAL_S_MAX
    try:
        with (folder / STATE / LOCK_FILE).open() as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        raise BadInput(f"--out: another demo runs in {folder.parent}; end it, or name another folder") from None
                time.sleep(0.05)
    except FileNotFoundError:
        return


def fetch_status(admin: str) -> PoolStatus:
    """The demo pool's status."""
    with _DIRECT.open(f"{admin}/v1/status", timeout=10) as answer:
        return msgspec.json.decode(answer.read(), type=Status).pools[0]


async def _watch(admin: str, clock: MeasuringClock, started_s: float, looks: list[Look], on_look: Callable[[Look], None]) -> None:
    while True:
        status = await asyncio.to_thread(fetch_status, admin)
        states = status.replicas
        look = Look(
            at_s=clock.now_s() - started_s,
            ready=states.get("ready", 0),
            pending=sum(states.get(state, 0) for state in ("requested", "provisioning", "loading")),
            draining=states.get("draining", 0),
            desired=status.desired,
            waiting=status.waiting,
            gpu_hours=status.gpu_hours,
            cost_usd=status.cost_usd or 0.0,
        )
        looks.append(look)
        on_look(look)
        await clock.sleep_until(clock.now_s() + LOOK_EVERY_S)


async def _tell(running: Running, scenario: Scenario, seed: int, on_look: Callable[[Look], None]) -> tuple[ReplayReport, list[Look]]:
    clock = MeasuringClock(SPEED)
    looks: list[Look] = []
    watching = asyncio.create_task(_watch(running.admin, clock, clock.now_s(), looks, on_look), name="demo watcher")
    options = ReplayOptions(target=running.gateway, model="demo", key=KEY, ttft_s=(("", TTFT_S),), records=True)
    try:
        report = await replay(scenario.rows(seed), options, clock, random.Random(f"{seed}/demo replay"))
    finally:
        watching.cancel()
        outcome = (await asyncio.gather(watching, return_exceptions=True))[0]
    if isinstance(outcome, Exception):
        raise ForebayError(f"lost sight of the fleet: {outcome}")
    return report, looks


def tell(folder: Path, spec_text: str, buffer: bool, scenario: Scenario, seed: int, on_look: Callable[[Look], None]) -> Story:
    """Run one story from start to stop."""
    fleet = Fleet(folder, spec_text)
    try:
        running = fleet.wait_until_ready()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report, looks = runner.run(_tell(running, scenario, seed, on_look))
    finally:
        exit_code = fleet.stop()
    if exit_code != 0:
        raise ForebayError(f"the demo's fleet ended with {exit_code}; the end of its log:\n{fleet.log_tail()}")
    (folder / "looks.json").write_text(json.dumps([msgspec.to_builtins(look) for look in looks]))
    return Story(buffer, report, tuple(looks))
