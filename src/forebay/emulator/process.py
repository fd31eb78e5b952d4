"""A process that serves engines: each on a port of its own, until it is told to stop or the last of them has died.

It imports no more than it serves with, since a fleet starts one such process per replica. SIGTERM is vLLM's: the first
shuts down by ``shutdown_timeout_s``, a second ends at once.
"""

import asyncio
import contextlib
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable

import msgspec
import uvloop

from forebay.adapters.clock import LoopClock
from forebay.domain.errors import BadInput, ForebayError
from forebay.domain.profile import Profile
from forebay.emulator import faults, process_stats
from forebay.emulator.behaviour import Behaviour
from forebay.emulator.engine_server import EngineServer, LoadFailed
from forebay.engine.batch import Engine
from forebay.engine.catalogue import PROFILES

ENGINES_MAX = 1000
SPEED_MAX = 1000.0


class Options(msgspec.Struct, frozen=True):
    """What the two command lines ask for. Times are world seconds."""

    profile: str = ""
    """Name of a shipped profile; else ``profile_json``, a whole one."""
    profile_json: str = ""
    model: str = ""
    """The served name; default: the profile's model."""
    host: str = "127.0.0.1"
    port: int = 0
    """Of the first engine; the others follow. 0: free ones."""
    engines: int = 1
    speed: float = 1.0
    cold: bool = False
    warm: bool = False
    report_stages: bool = False
    seed: int = 0
    ready_file: str = ""
    shutdown_timeout_s: float = 0.0
    max_model_len: int | None = None
    faults: tuple[str, ...] = ()
    """Faults from the start, as JSON."""
    behaviour: Behaviour = Behaviour()


DEFAULT_PROFILE = "llama-3.1-8b-h100"


def profile_of(options: Options) -> Profile:
    """The profile asked for; raises BadInput that says which there are."""
    if options.profile and options.profile_json:
        raise BadInput("--profile and --profile-json: give one of them, not both")
    if options.profile_json:
        try:
            return _checked(msgspec.json.decode(options.profile_json, type=Profile))
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadInput(f"--profile-json: {error}; `forebay profile show NAME --json -` prints one to start from") from None
    name = options.profile or DEFAULT_PROFILE
    if name not in PROFILES:
        raise BadInput(f"--profile: there is no profile {name!r}; there are: {', '.join(PROFILES)}")
    return PROFILES[name]


def _checked(profile: Profile) -> Profile:
    """``profile``, if an engine can be made of it; raises ValueError."""
    for name in ("sequences_max", "kv_tokens", "block_tokens", "prefill_chunk_tokens", "context_tokens"):
        if getattr(profile, name) < 1:
            raise ValueError(f"{name} is {getattr(profile, name)}; at least 1")
    if profile.kv_tokens < profile.block_tokens:
        raise ValueError(f"kv_tokens is {profile.kv_tokens}, less than one block of {profile.block_tokens}")
    if not profile.law.base_s > 0 or min(msgspec.structs.astuple(profile.law)) < 0:
        raise ValueError("law: base_s is above 0, and nothing is below it: time must pass")
    quantiles = msgspec.structs.astuple(profile.spread)
    if not quantiles[0] > 0 or list(quantiles) != sorted(quantiles):
        raise ValueError("spread: its quantiles are above 0 and rise from p5 to p99")
    if profile.warm_up.passes < 0 or not profile.warm_up.factor >= 1:
        raise ValueError("warm_up: passes are 0 or more, and their factor is at least 1")
    if not profile.cold_start.weights_bandwidth_bytes_per_s > 0:
        raise ValueError("cold_start: weights_bandwidth_bytes_per_s is above 0")
    Engine(profile)
    return profile


def _check(options: Options) -> None:
    if not 1 <= options.engines <= ENGINES_MAX:
        raise BadInput(f"--engines: {options.engines} found; 1 to {ENGINES_MAX} are allowed")
    if not 0 < options.speed <= SPEED_MAX:
        raise BadInput(f"--speed: {options.speed:g} found; above 0 and up to {SPEED_MAX:g} is allowed")
    if options.port and not 0 < options.port <= 65536 - options.engines:
        raise BadInput(
            f"--port: {options.port} found; {options.engines} engines need ports from 1 to {65536 - options.engines}, or 0 for free ones"
        )
    if options.max_model_len is not None and options.max_model_len < 2:
        raise BadInput(f"--max-model-len: {options.max_model_len} found; at least 2 (one token of prompt, one of output)")
    if options.shutdown_timeout_s < 0:
        raise BadInput(f"--shutdown-timeout: {options.shutdown_timeout_s:g} found; 0 or more seconds")
    if options.cold and options.warm:
        raise BadInput("--cold and --warm: give one of them, not both")


def _faults(options: Options) -> list[faults.Fault]:
    found = []
    for text in options.faults:
        try:
            fault = faults.decode(text.encode())
        except ValueError as error:
            raise BadInput(f"--fault {text!r}: {error}") from None
        if isinstance(fault, faults.Fault):
            found.append(fault)
    return found


class _Fleet:
    """The engines of this process, and the one thing that ends it."""

    def __init__(self, options: Options, profile: Profile, injected: list[faults.Fault], say: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        clock = LoopClock(options.speed)
        process = process_stats.live(clock.wall_s(), loop.time)
        # Python's own start is part of the start that is emulated: twenty times as fast, it would be seconds too long.
        behaviour = msgspec.structs.replace(options.behaviour, started_before_s=process_stats.age_s() * options.speed)
        self._options = options
        self._say = say
        self._over: asyncio.Future[int] = loop.create_future()
        self._signals = 0
        self._dead = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.engines = [
            EngineServer(
                profile,
                options.model or profile.model,
                clock,
                seed=f"{options.seed}/{index}",
                cold=options.cold,
                warm=options.warm,
                report_stages=options.report_stages,
                faults=faults.Faults(*injected),
                max_model_len=options.max_model_len,
                behaviour=behaviour,
                process=process,
                on_exit=self._died,
            )
            for index in range(options.engines)
        ]

    async def run(self) -> int:
        """Serve; the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        starting = asyncio.create_task(self._start())
        self._tasks.add(starting)
        starting.add_done_callback(self._started)
        code = await self._over
        for task in list(self._tasks):
            task.cancel()
        for engine in self.engines:
            await engine.stop()
        return code

    async def _start(self) -> None:
        options = self._options
        ports = [options.port + index if options.port else 0 for index in range(options.engines)]
        try:
            bound = await asyncio.gather(*(engine.start(options.host, port) for engine, port in zip(self.engines, ports, strict=True)))
        except OSError as error:
            raise ForebayError(
                f"can't listen on {options.host}, ports {ports[0]} to {ports[-1]}: {error.strerror or error}; try --port 0"
            ) from error
        urls = [f"http://{options.host}:{port}" for port in bound]
        for url in urls:
            self._say(url)
        if options.ready_file:
            _write_whole(options.ready_file, msgspec.json.encode({"urls": urls, "pid": os.getpid()}))

    def _started(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self._over.done():
            return
        error = task.exception()
        if isinstance(error, LoadFailed):
            self._end(1, str(error))
        elif error is not None:
            self._over.set_exception(error)
        else:
            # What lives until the end need not be looked at by every collection.
            gc.collect()
            gc.freeze()

    def _died(self, code: int, why: str) -> None:
        self._dead += 1
        if self._dead == len(self.engines):
            self._end(code, why)
        else:
            sys.stderr.write(f"an engine ended: {why}\n")

    def _end(self, code: int, why: str) -> None:
        if not self._over.done():
            if why:
                sys.stderr.write(f"{why}\n")
            self._over.set_result(code)

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals > 1:
            self._end(0, "")
        elif not any(engine.faults.get(faults.Kind.DEAF) for engine in self.engines):
            task = asyncio.create_task(self._shut_down())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _shut_down(self) -> None:
        timeout_s = self._options.shutdown_timeout_s
        await asyncio.gather(*(engine.shut_down(timeout_s) for engine in self.engines))
        self._end(0, "")


def _write_whole(path: str, content: bytes) -> None:
    """Whoever waits for the file never reads half of it."""
    part = f"{path}.part"
    try:
        with open(part, "wb") as file:
            file.write(content)
        os.replace(part, path)
    except OSError as error:
        raise ForebayError(f"--ready-file: can't write {path!r} ({error.strerror}); name a file in a folder that exists") from error


def run(options: Options, say: Callable[[str], None]) -> int:
    """Serve engines until told to stop; the exit code. ``say`` gets each URL. Raises BadInput, ForebayError."""
    _check(options)
    profile = profile_of(options)
    injected = _faults(options)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def serve() -> int:
        return await _Fleet(options, profile, injected, say).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())
