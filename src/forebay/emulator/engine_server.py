"""One emulated engine on one port: its life from a cold start to its end, its routes, and its faults.

It behaves as vLLM 0.32 was seen to: it refuses connections until it is ready, answers ``/health`` while it can serve
nothing, and says little of what went wrong. ``report_stages`` makes it kinder than that: it listens from the start.
"""

import asyncio
import functools
import random
from collections.abc import Callable
from enum import StrEnum

import msgspec

from forebay.domain.errors import ForebayError
from forebay.domain.profile import Profile
from forebay.emulator import process_stats
from forebay.emulator.behaviour import Behaviour, lets_in
from forebay.emulator.body import ApiError, Unauthorized, prompt_tokens
from forebay.emulator.connections import Connections
from forebay.emulator.core import Core
from forebay.emulator.faults import Command, Fault, Faults, Kind, MetricsMode, decode, spoil
from forebay.emulator.forms import FORMS, counted, detokenized
from forebay.emulator.generation import Generation
from forebay.emulator.http import JSON, Connection, Exchange
from forebay.emulator.http_stats import HttpStats
from forebay.emulator.page import CONTENT_TYPE, Page
from forebay.emulator.stats import Stats
from forebay.ports import Clock

VERSION = "0.32.0"
"""Of the vLLM whose behaviour this is."""
BACKLOG = 2048
UNHEALTHY_S = 0.3
"""World seconds of 503 between SIGTERM and the port's close."""
EXIT_S = 2.0
"""World seconds from SIGTERM, or the engine's death, to the end of the process."""
LINGER_S = 9.0
"""The least that a graceful shutdown takes (world seconds), however idle."""
CRASH_REAL_S = 0.01
"""From the command to crash to the crash (real seconds), so that whoever commands it hears that it was understood."""


class LoadFailed(ForebayError):
    """The engine ran out of GPU memory while it loaded the weights."""


class State(StrEnum):
    """Where an engine is in its life."""

    LOADING = "loading"
    READY = "ready"
    CLOSING = "closing"
    DEAD = "dead"
    """The engine behind the HTTP server is gone, or all of it."""


def _json(value: object) -> bytes:
    return msgspec.json.encode(value)


class EngineServer:
    """One engine. ``on_exit(code, why)`` is called when what would be its process ends by itself.

    ``cold`` passes through provision, weights and init; ``warm`` through weights and init; else it is ready at once.
    Times are world seconds of ``clock``; ``seed`` decides lengths, ids, jitter and the spread of steps.
    """

    def __init__(
        self,
        profile: Profile,
        model: str,
        clock: Clock,
        *,
        seed: int | str = 0,
        engine_label: str = "0",
        cold: bool = False,
        warm: bool = False,
        report_stages: bool = False,
        faults: Faults | None = None,
        max_model_len: int | None = None,
        behaviour: Behaviour | None = None,
        process: Callable[[], str] | None = None,
        on_exit: Callable[[int, str], None] | None = None,
    ) -> None:
        kv_tokens = profile.kv_tokens // profile.block_tokens * profile.block_tokens
        context_tokens = min(max_model_len or profile.context_tokens, kv_tokens)
        self.profile = profile = msgspec.structs.replace(profile, context_tokens=context_tokens)
        self.model = model
        self.faults = faults or Faults()
        self.state = State.READY
        self.stage = ""
        """What a start is busy with: ``provision``, ``weights``, ``init``; empty once ready."""
        behaviour = behaviour or Behaviour()
        self._clock = clock
        self._on_exit = on_exit
        self._report_stages = report_stages
        self._stages = _stages(profile, cold, warm, behaviour, random.Random(f"{seed}/start"))
        self._server: asyncio.AbstractServer | None = None
        self._starting: asyncio.Task[object] | None = None
        self._quiet = asyncio.Event()
        self._frozen: bytes | None = None
        self._crash_at_tokens: float | None = None
        self.stats = Stats(context_tokens)
        self.core = Core(profile, clock, self.stats, random.Random(f"{seed}/steps").getrandbits(64))
        self.core.after_tick = self._after_tick
        self._adapters, self._api_keys = behaviour.adapters, behaviour.api_keys
        self.connections = Connections(clock, behaviour.keep_alive_real_s)
        self._generation = Generation(profile, model, clock, self.core, self.stats, faults=self.faults, behaviour=behaviour, seed=seed)
        self._generation.on_quiet = self._quiet.set
        created_s = clock.wall_s()
        self._http = HttpStats(created_s)
        before = process or process_stats.still(created_s)
        self._page = Page(self.stats, profile, model, engine_label, created_s, before=before, after=self._http.render)
        self._routes = self._make_routes()
        for fault in self.faults:
            self._apply(fault)

    # Life.

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Come up and listen; the port. Returns when it listens: once ready, or with ``report_stages`` at once.

        Raises LoadFailed (an ``oom`` fault), OSError (the port is taken).
        """
        if self._stages and self._report_stages:
            self.state = State.LOADING
            self.stage = self._stages[0][0]
            bound = await self._listen(host, port)
            self._starting = asyncio.create_task(self._load_reported())
            return bound
        self.state = State.LOADING if self._stages else State.READY
        self._starting = asyncio.current_task()
        await self._load()
        self._starting = None
        return await self._listen(host, port)

    async def _listen(self, host: str, port: int) -> int:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=BACKLOG)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def _load(self) -> None:
        for stage, seconds in self._stages:
            self.stage = stage
            await self._clock.sleep_until(self._clock.now_s() + seconds)
            if stage == "weights" and self.faults.get(Kind.OOM):
                raise LoadFailed
        self.stage = ""
        self.state = State.READY

    async def _load_reported(self) -> None:
        try:
            await self._load()
        except LoadFailed as error:
            self.die(1, str(error))

    async def stop(self) -> None:
        """End at once: the port is closed and every connection dropped. Idempotent."""
        if self._starting is not None and self._starting is not asyncio.current_task():
            self._starting.cancel()
            self._starting = None
        self.state = State.DEAD
        self.core.close()
        self._close_port()
        self.connections.abort()
        await asyncio.sleep(0)

    async def shut_down(self, timeout_s: float = 0.0) -> None:
        """What SIGTERM does, by vLLM's ``--shutdown-timeout``; returns when the process would be gone.

        0: streams end with ``abort`` at once. More: what runs or waits may finish for ``timeout_s`` (world seconds), new
        requests get 500, and ``/health`` stays 200 to the end.
        """
        begun_s = self._clock.now_s()
        if self.state is State.LOADING:
            await self._clock.sleep_until(begun_s + EXIT_S)
        elif self.state is State.READY:
            self._generation.closing = True
            if timeout_s > 0:
                await self._drained(begun_s + timeout_s)
                await self._clock.sleep_until(begun_s + LINGER_S)
                self._generation.abort_all()
            else:
                self.state = State.CLOSING
                self._generation.abort_all()
                await self._clock.sleep_until(begun_s + UNHEALTHY_S)
                self._close_port()
                self.connections.close_idle()
                await self._clock.sleep_until(begun_s + EXIT_S)
        await self.stop()

    async def _drained(self, until_s: float) -> None:
        """Return when nothing is live, or at ``until_s`` with what is left aborted."""
        timer = self._clock.call_at(until_s, self._quiet.set)
        self._quiet.clear()
        if self._generation.live:
            await self._quiet.wait()
        timer.cancel()
        self._generation.abort_all()

    def die(self, code: int, why: str) -> None:
        """The process is gone: nothing is said to anybody."""
        self.state = State.DEAD
        self.core.close()
        self._close_port()
        self.connections.abort()
        if self._on_exit is not None:
            self._on_exit(code, why)

    def _close_port(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _after_tick(self) -> None:
        if self._crash_at_tokens is not None and self.stats.generation_tokens.value >= self._crash_at_tokens:
            self._crash_at_tokens = None
            self.die(1, "crash on command")

    # Faults.

    def inject(self, fault: Fault) -> None:
        """Make ``fault`` happen, or hold from now on."""
        self.faults.add(fault)
        self._apply(fault)

    def clear_faults(self, only: Kind | None = None) -> None:
        """End all faults, or those of one kind."""
        self.faults.clear(only)
        if self.faults.get(Kind.HANG) is None:
            self.core.hang(False)
        if self.faults.get(Kind.SLOW) is None:
            self.core.slow(1.0)
        if self.faults.get(Kind.METRICS) is None:
            self._frozen = None
        if self.faults.get(Kind.CRASH) is None:
            self._crash_at_tokens = None

    def _apply(self, fault: Fault) -> None:
        if fault.kind is Kind.HANG:
            self.core.hang(True)
        elif fault.kind is Kind.SLOW:
            self.core.slow(fault.factor)
        elif fault.kind is Kind.METRICS:
            self._frozen = self._render() if fault.mode is MetricsMode.FROZEN else None
        elif fault.kind is Kind.CRASH:
            self._crash_at_tokens = self.stats.generation_tokens.value + fault.after_tokens
            if not fault.after_tokens:
                self._clock.call_at(self._clock.now_s() + CRASH_REAL_S * self._clock.speed, self._after_tick)
        elif fault.kind is Kind.ABORT:
            self._generation.abort_all()
        elif fault.kind is Kind.CUT:
            self._generation.cut_all()
        elif fault.kind is Kind.ENGINE_DEAD:
            self.state = State.DEAD
            self._generation.fail_all()
            self.core.close()
            self._clock.call_at(self._clock.now_s() + EXIT_S, lambda: self.die(1, "the engine process died on command"))

    # HTTP.

    def opened(self, connection: Connection) -> bool:
        """See `http.Service`."""
        return self.connections.opened(connection)

    def closed(self, connection: Connection) -> None:
        """See `http.Service`."""
        self.connections.closed(connection)

    def idle(self, connection: Connection, is_idle: bool) -> None:
        """See `http.Service`."""
        self.connections.idle(connection, is_idle)

    def _make_routes(self) -> dict[str, dict[str, Callable[[Exchange], None]]]:
        plain = {
            "/v1/models": self._models,
            "/metrics": self._metrics,
            "/health": self._health,
            "/ping": self._health,
            "/load": lambda exchange: exchange.respond(200, _json({"server_load": len(self._generation.live)})),
            "/version": lambda exchange: exchange.respond(200, _json({"version": VERSION})),
            "/is_sleeping": lambda exchange: exchange.respond(200, _json({"is_sleeping": False})),
        }
        routes: dict[str, dict[str, Callable[[Exchange], None]]] = {path: {"GET": answer} for path, answer in plain.items()}
        routes["/ping"]["POST"] = self._health
        routes["/v1/chat/completions"] = {"POST": lambda exchange: self._generation.handle(exchange, chat=True)}
        routes["/v1/completions"] = {"POST": lambda exchange: self._generation.handle(exchange, chat=False)}
        routes["/detokenize"] = {"POST": detokenized}
        for path, form in FORMS.items():
            routes[path] = {"POST": functools.partial(self._generation.handle, chat=form.chat, form=form)}
        for path in ("/tokenize", "/v1/messages/count_tokens"):
            routes[path] = {"POST": lambda exchange: counted(exchange, prompt_tokens)}
        routes["/emulator/fault"] = {"GET": self._show_faults, "POST": self._command, "DELETE": self._clear}
        return routes

    def handle(self, exchange: Exchange) -> None:
        """Answer one request, or start to."""
        request = exchange.request
        methods = self._routes.get(request.path)
        if request.path.startswith("/v1/responses/"):
            methods = dict.fromkeys(("GET", "POST"), self._generation.kept.ask)
        # A known path asked with a wrong method is nobody's in vLLM's counts, as an unknown path is.
        self._count(exchange, request.path if methods is not None and request.method in methods else "none")
        try:
            if not lets_in(request.path, request.headers.get(b"authorization", b""), self._api_keys):
                raise Unauthorized
            if methods is None:
                raise ApiError(404, "Not Found", "Not Found")
            answer = methods.get(request.method)
            if answer is None:
                allowed = ", ".join(methods).encode()
                raise ApiError(405, "Method Not Allowed", "Method Not Allowed", headers=b"allow: " + allowed + b"\r\n")
            if self.state is not State.READY and request.path not in {"/health", "/emulator/fault"}:
                raise ApiError(503, "Service Unavailable", f"The engine is {self.stage or self.state}.")
            answer(exchange)
        except ApiError as error:
            exchange.respond(error.status, error.body, headers=error.headers)

    def _count(self, exchange: Exchange, handler: str) -> None:
        begun_s = self._clock.now_s()
        request = exchange.request
        length = request.headers.get(b"content-length", b"0")
        size = int(length) if length.isdigit() else 0

        def done(status: int, content_length: int) -> None:
            seconds = self._clock.now_s() - begun_s
            self._http.ended(handler, request.method, status, (size, content_length), seconds, self._clock.wall_s())

        exchange.on_done = done

    def _health(self, exchange: Exchange) -> None:
        if self.state is State.LOADING:
            exchange.respond(503, _json({"stage": self.stage}))
        elif self.state is State.READY:
            exchange.respond(200, b"", None)
        else:
            exchange.respond(503, b"", None)

    def _models(self, exchange: Exchange) -> None:
        card = {
            "id": self.model,
            "object": "model",
            "created": int(self._clock.wall_s()),
            "owned_by": "vllm",
            "root": self.model,
            "parent": None,
            "max_model_len": self.profile.context_tokens,
            "permission": [],
        }
        adapters = [{**card, "id": name, "root": name, "parent": self.model, "max_model_len": None} for name in self._adapters]
        exchange.respond(200, _json({"object": "list", "data": [card, *adapters]}))

    def _render(self) -> bytes:
        self.core.refresh()
        return self._page.render()

    def _metrics(self, exchange: Exchange) -> None:
        fault = self.faults.get(Kind.METRICS)
        if fault is None:
            exchange.respond(200, self._render(), CONTENT_TYPE)
        elif fault.mode is MetricsMode.MISSING:
            raise ApiError(fault.status, "Not Found" if fault.status == 404 else "Internal Server Error", "Not Found")
        elif fault.mode is MetricsMode.CLOSED:
            exchange.cut()
        else:
            exchange.respond(200, self._frozen or spoil(self._render(), fault), CONTENT_TYPE)

    def _show_faults(self, exchange: Exchange) -> None:
        exchange.respond(200, _json(list(self.faults)))

    def _clear(self, exchange: Exchange) -> None:
        self.clear_faults()
        exchange.respond(200, b"[]")

    def _command(self, exchange: Exchange) -> None:
        try:
            command = decode(exchange.request.body)
        except ValueError as error:
            raise ApiError(400, "BadRequestError", str(error)) from error
        if isinstance(command, Command):
            self.clear_faults(command.only)
        else:
            self.inject(command)
        exchange.respond(200, _json(list(self.faults)), JSON)


def _stages(profile: Profile, cold: bool, warm: bool, behaviour: Behaviour, chance: random.Random) -> list[tuple[str, float]]:
    """(name, seconds) of each stage that the start passes through; what is over already is taken off the first ones."""
    start = profile.cold_start
    stages = [("provision", start.provision_s), ("weights", start.weights_s), ("init", start.init_s)]
    passed = stages if cold else stages[1:] if warm else []
    over_s = behaviour.started_before_s
    made: list[tuple[str, float]] = []
    for name, seconds in passed:
        drawn_s = seconds * (1 + chance.uniform(-behaviour.start_jitter, behaviour.start_jitter))
        made.append((name, max(0.0, drawn_s - over_s)))
        over_s = max(0.0, over_s - drawn_s)
    return made
