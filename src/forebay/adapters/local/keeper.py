"""Keeps one replica: starts it, looks at it, starts it again when it dies, until its end is wished.

One task per replica, straight down the page: start → watch until it ends → say why → wait → start again. Wishes come
in synchronously between its steps; signals go out at once, never from the task.
"""

import asyncio
import os
import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from forebay.adapters.local import child as children
from forebay.adapters.local.child import Child
from forebay.adapters.local.command import HOST, engine_command, engine_environment, free_port, shim_command
from forebay.adapters.local.health import Health, probe
from forebay.adapters.local.life import Life, backoff_s
from forebay.adapters.local.logfile import LogFile
from forebay.domain.errors import ForebayError
from forebay.domain.events import Event
from forebay.domain.replica import ReplicaState
from forebay.domain.units import format_duration
from forebay.ports.clock import Clock, TimerHandle
from forebay.ports.events import EventSink
from forebay.ports.upstream import Upstream
from forebay.spec.types import Pool

_SIGKILL_CODES = frozenset({-9, 137})
_OUT_OF_MEMORY_WORDS = ("out of memory", "outofmemoryerror", "cannot allocate memory")


class Pace(msgspec.Struct, frozen=True):
    """How often and how long, in world seconds unless the name says ``real``."""

    probe_pending_s: float = 1.0
    probe_ready_s: float = 5.0
    probe_real_s_least: float = 0.02
    """However fast the world runs, an engine is not looked at more often."""
    probe_timeout_real_s: float = 2.0
    """vLLM's API loop answers within 0.6 s under load."""
    backoff_first_s: float = 1.0
    backoff_most_s: float = 300.0
    failures_in_a_row_max: int = 20
    """After so many it stays failed, and is left to whoever decides."""
    stable_s: float = 600.0
    """Ready for so long forgives the failures before."""
    sick_s: float = 60.0
    sick_real_s: float = 10.0
    """A ready engine that answered no health check for as long as both is killed and started again."""
    stop_real_s_least: float = 1.0
    """However fast the world runs, a process gets so long between two signals."""
    log_bytes_max: int = 8 * 2**20


class Yard(msgspec.Struct, frozen=True):
    """What all keepers of one fleet share."""

    clock: Clock
    upstream: Upstream
    sink: EventSink
    chance: random.Random
    log_dir: Path
    owner: str
    lifeline_fd: int | None
    pace: Pace
    ports: set[int]
    note: Callable[[], None]
    """Puts all lives into the store."""
    meet: Callable[[str, str], None]
    """Told of each engine's pool and address."""


class Keeper:
    """Owns one replica's process and its ``life``; call ``begin`` once, then wishes, then ``release`` or wait until it is stopped."""

    def __init__(self, life: Life, pool: Pool, yard: Yard) -> None:
        self.life = life
        self._pool = pool
        self._yard = yard
        self._child: Child | None = None
        self._port = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._backstop: TimerHandle | None = None
        self._log = LogFile(yard.log_dir, life.id, yard.pace.log_bytes_max)

    def begin(self, child: Child | None = None) -> None:
        """Start a process (or take over ``child``), and the task that keeps it."""
        if child is None:
            self._start()
        else:
            self._take(child)
            if self.life.stopping:
                self._signal_stop()
        self._task = asyncio.get_running_loop().create_task(self._keep(), name=f"keep {self.life.id}")

    def drain(self) -> None:
        """Mark; nothing is signalled."""
        if self.life.drain(self._yard.clock.now_s()):
            self._yard.note()

    def cancel_drain(self) -> None:
        """Unmark."""
        if self.life.cancel_drain(self._yard.clock.now_s()):
            self._yard.note()

    def stop(self) -> None:
        """Signal its end; the shim escalates by itself, and a backstop kills the shim's group."""
        if not self.life.stop(self._yard.clock.now_s()):
            return
        self._yard.upstream.forget(self.life.url)
        if self._child is not None:
            self._signal_stop()
        self._wake.set()
        self._yard.note()

    def release(self) -> None:
        """Let go: the process runs on, for a later controller to adopt."""
        if self._task is not None:
            self._task.cancel()
        if self._backstop is not None:
            self._backstop.cancel()
        if self._child is not None:
            self._child.release()

    async def over(self) -> None:
        """Until its task has ended: stopped, or released."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def _signal_stop(self) -> None:
        assert self._child is not None
        self._child.terminate()
        self._arm_backstop(self._child, 2 * self._grace_real_s())

    def _arm_backstop(self, child: Child, wait_real_s: float) -> None:
        """Kill the shim too where it has not ended the engine well after it should have."""
        if self._backstop is not None:
            self._backstop.cancel()
        clock = self._yard.clock
        wait_real_s += 2 * self._yard.pace.stop_real_s_least
        self._backstop = clock.call_at(clock.now_s() + wait_real_s * clock.speed, child.force)

    def _grace_real_s(self) -> float:
        return max(self._yard.pace.stop_real_s_least, self._pool.engine.stop_grace_s / self._yard.clock.speed)

    async def _keep(self) -> None:
        """The whole life. An error of ours is told and ends in FAILED, never in silence."""
        try:
            while not self.life.stopping:
                if self._child is not None:
                    await self._watch(self._child)
                if self.life.state is ReplicaState.STOPPED or not await self._wait_to_restart():
                    break
                self._start()
            if self._child is not None:
                self._settle(self._child, await self._child.ended)
        except Exception as error:
            self._tell("fleet_error", f"keeping it failed: {type(error).__name__}: {error}")
            raise

    def _start(self) -> None:
        """One attempt; a failure to start is an end like any other."""
        yard, pool, now_s = self._yard, self._pool, self._yard.clock.now_s()
        try:
            port = free_port(yard.chance, yard.ports)
            engine = engine_command(pool, self.life, port, yard.clock.speed)
            command = shim_command(yard.owner, self.life.id, self._grace_real_s(), engine)
            environment = engine_environment(pool, self.life, port, yard.clock.speed, yard.lifeline_fd)
            log_fd = self._log.open_new()
            try:
                child = children.spawn(command, environment, log_fd, yard.lifeline_fd)
            finally:
                os.close(log_fd)
        except (OSError, ForebayError) as error:
            self._fail(f"could not be started: {error}")
            return
        self.life.spawned(child.pid, child.born_s, f"http://{HOST}:{port}", pool.engine.kind == "emulated", now_s)
        self._take(child)
        yard.note()
        self._tell("engine_started", f"attempt {self.life.restarts + 1}, pid {child.pid}, port {port}")

    def _take(self, child: Child) -> None:
        self._child = child
        self._port = int(self.life.url.rpartition(":")[2])
        self._yard.meet(self._pool.name, self.life.url)
        self._yard.ports.add(self._port)
        child.ended.add_done_callback(lambda _: self._wake.set())

    async def _watch(self, child: Child) -> None:
        """Looks at the engine until its process ends (or its end is wished), then says why it ended."""
        yard, pace, life = self._yard, self._yard.pace, self.life
        why = ""
        while not child.ended.done() and not life.stopping:
            health = await probe(yard.upstream, life.url, self._pool.engine.health_path, life.pending, pace.probe_timeout_real_s)
            if child.ended.done() or life.stopping:
                break
            if life.saw(health, yard.clock.now_s()):
                yard.note()
            why = self._too_long(health)
            if why:
                child.kill()
                self._arm_backstop(child, 0.0)
                break
            self._log.bound()
            await self._nap(pace.probe_pending_s if life.pending else pace.probe_ready_s)
        if not life.stopping:
            self._settle(child, await child.ended, why)

    def _too_long(self, health: Health) -> str:
        """Why the engine must be killed now, or nothing."""
        life, pace, clock = self.life, self._yard.pace, self._yard.clock
        now_s = clock.now_s()
        limit_s = self._pool.engine.ready_timeout_s
        if life.pending and now_s - life.attempt_s > limit_s:
            return f"not ready within {format_duration(limit_s)} ({health.detail or health.kind})"
        sick_s = 0.0 if life.sick_since_s is None else now_s - life.sick_since_s
        if sick_s > max(pace.sick_s, pace.sick_real_s * clock.speed):
            return f"no good health answer for {format_duration(sick_s)} ({health.detail or health.kind})"
        return ""

    def _settle(self, child: Child, code: int | None, why: str = "") -> None:
        """The process has ended: note it, free what it held, and say it if nobody wished it."""
        if self._backstop is not None:
            self._backstop.cancel()
        self._yard.ports.discard(self._port)
        self._yard.upstream.forget(self.life.url)
        self._child = None
        child.release()
        self._fail(why or end_reason(code, self._log.tail()))

    def _fail(self, why: str) -> None:
        tail = "" if self.life.stopping else self._log.tail()
        self.life.ended(f"{why}; its log ends: {tail}" if tail else why, self._yard.pace.stable_s, self._yard.clock.now_s())
        self._yard.note()
        if not self.life.stopping:
            self._tell("engine_ended", self.life.problem, in_a_row=self.life.failures_in_a_row)

    async def _wait_to_restart(self) -> bool:
        """After the backoff: True if it should be started again. One that failed too often waits for the wish that ends it."""
        pace = self._yard.pace
        if self.life.failures_in_a_row >= pace.failures_in_a_row_max:
            self.life.problem = f"given up after {self.life.failures_in_a_row} failures in a row: {self.life.problem}"
            self._tell("engine_given_up", self.life.problem)
            while not self.life.stopping:
                await self._nap(pace.backoff_most_s)
            return False
        wait_s = backoff_s(self.life.failures_in_a_row, pace.backoff_first_s, pace.backoff_most_s, self._yard.chance.random())
        until_s = self._yard.clock.now_s() + wait_s
        while not self.life.stopping and (left_s := until_s - self._yard.clock.now_s()) > 0:
            await self._nap(left_s)
        if self.life.stopping:
            return False
        self.life.restarting(self._yard.clock.now_s())
        return True

    async def _nap(self, seconds: float) -> None:
        """For world ``seconds``, or until something happens."""
        clock = self._yard.clock
        wait_s = max(seconds, self._yard.pace.probe_real_s_least * clock.speed)
        timer = clock.call_at(clock.now_s() + wait_s, self._wake.set)
        try:
            await self._wake.wait()
            self._wake.clear()
        finally:
            timer.cancel()

    def _tell(self, kind: str, message: str, **numbers: float) -> None:
        clock = self._yard.clock
        detail: dict[str, str | float | int | bool] = {"replica": self.life.id, **numbers}
        self._yard.sink.emit(Event(kind, clock.now_s(), clock.wall_s(), self.life.pool, f"{self.life.id}: {message}", detail))


def end_reason(code: int | None, tail: str) -> str:
    """Words for people about an end nobody wished; ``code`` as `Child.ended` gives it."""
    memory = any(words in tail.lower() for words in _OUT_OF_MEMORY_WORDS)
    if code is None:
        reason = "its process ended (an earlier controller started it, so its exit code is in the log only)"
    elif code in _SIGKILL_CODES:
        return "was killed (SIGKILL: by somebody, or by the kernel because memory ran out)"
    elif code == 127:
        reason = "its command could not be started (exit code 127)"
    elif code < 0 or code > 128:
        reason = f"died of signal {-code if code < 0 else code - 128}"
    else:
        reason = f"exited by itself with code {code}"
    return f"out of memory: {reason}" if memory else reason
