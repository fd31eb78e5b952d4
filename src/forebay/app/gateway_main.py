"""The gateway's process: under `forebay up` with rosters from the controller, or alone over attached engines."""

import argparse
import asyncio
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from forebay.adapters.clock import LoopClock
from forebay.app import config, gateway_wiring, listening, open_files, process
from forebay.app.certificates import Certificate
from forebay.app.files import check_ready_file, save_spec, saved_spec, state_folder, write_value
from forebay.app.gateway_names import gateway_name, ready_marker
from forebay.app.gateway_wiring import GatewaySystem
from forebay.app.own_ledger import OwnLedger
from forebay.app.own_roster import OwnRoster
from forebay.app.reloading import Reloader
from forebay.domain.errors import BadInput
from forebay.gateway.link import Link
from forebay.gateway.remembering import Remembering
from forebay.gateway.service import Gateway
from forebay.spec.formats import parse_listen, write_listen
from forebay.spec.types import Listen, Spec

NAME = gateway_name(0)
READY_POLL_S = 0.02
USAGE_LOST = 1
"""The exit code of one that ended in order, with usage that no ledger has and no disk took."""


class Joining(msgspec.Struct, frozen=True):
    """How a gateway alone belongs to others."""

    name: str
    controller: Listen
    hops: socket.socket
    """Where the others forward to."""


class Ready(msgspec.Struct, frozen=True):
    """What one gateway says of itself."""

    gateway: str
    """Where it is reached; under a supervisor the address that is its alone: empty where it is the only one."""
    pid: int


async def _under_supervisor(arguments: argparse.Namespace) -> int:
    spec = saved_spec(arguments.spec)
    stop = process.stop_event()
    process.end_with_the_lifeline()
    host, _, port = arguments.channel.rpartition(":")
    certificate = Certificate(spec.tls) if spec.tls is not None else None
    system = gateway_wiring.gateway(spec, process.world_clock(arguments), arguments.name, arguments.state, _context(certificate), _say)
    remembering = gateway_wiring.remembering(system, arguments.state)
    await remembering.begin()
    if arguments.hops_fd is not None:
        await system.gateway.take_hops_on(process.inherited(arguments.hops_fd))
    open_files.bound(system, open_files.take_all())
    await system.gateway.start_on(process.inherited(arguments.gateway_fd))
    process.settle()
    marking = asyncio.create_task(_mark_ready(arguments.state / ready_marker(arguments.name), system.gateway, spec), name="ready marker")
    reloading = _reloading(arguments.config, system, lambda spec: save_spec(spec, arguments.state), arguments.spec)
    link = gateway_wiring.gateway_link(system, host, int(port), gateway_wiring.roster_keeping(system, arguments.state, arguments.run))
    return await _linked(system, link, remembering, certificate, stop, marking, reloading)


async def _linked(
    system: GatewaySystem,
    link: Link,
    remembering: Remembering,
    certificate: Certificate | None,
    stop: asyncio.Event,
    marking: asyncio.Task[None],
    reloading: "asyncio.Future[list[None]]",
) -> int:
    """Serve by the rosters that come by ``link`` until told to stop; drain, and say goodbye. The exit code."""
    linking = asyncio.create_task(link.run(), name="link")
    keeping = asyncio.create_task(remembering.run(), name="responses")
    watching = _watching(certificate)
    await stop.wait()
    marking.cancel()
    watching.cancel()
    reloading.cancel()
    await system.gateway.drain()
    await link.goodbye()
    lost = await system.gateway.metering.leave()
    linking.cancel()
    keeping.cancel()
    await asyncio.gather(linking, marking, watching, reloading, keeping, return_exceptions=True)
    await remembering.close()
    return USAGE_LOST if lost else 0


async def _joined(
    path: Path, spec: Spec, state: Path, opened: socket.socket, certificate: Certificate | None, ready_file: Path | None, join: Joining
) -> int:
    stop = process.stop_event()
    system = gateway_wiring.gateway(spec, LoopClock(spec.speed), join.name, state, _context(certificate), _say)
    remembering = gateway_wiring.remembering(system, state)
    await remembering.begin()
    await system.gateway.take_hops_on(join.hops)
    open_files.bound(system, open_files.take_all())
    await system.gateway.start_on(opened)
    process.settle()
    url = listening.url(opened, certificate is not None)
    print(
        f"forebay: gateway {url}, forwarded to at {system.gateway.url}, joins {write_listen(join.controller)}", file=sys.stderr, flush=True
    )

    async def say_ready() -> None:
        while not system.gateway.pools_served():
            await asyncio.sleep(READY_POLL_S)
        if ready_file is not None:
            write_value(ready_file, Ready(url, os.getpid()))

    marking = asyncio.create_task(say_ready(), name="ready file")
    reloading = _reloading(path, system, lambda _: None)
    # It is one of several, and keeps no roster: it has no lease to use one by before the controller answers.
    link = gateway_wiring.gateway_link(system, join.controller.host, join.controller.port)
    return await _linked(system, link, remembering, certificate, stop, marking, reloading)


async def _mark_ready(marker: Path, gateway: Gateway, spec: Spec) -> None:
    """Leave the marker once each pool that keeps replicas has one, so that the first request needs no cold start."""
    needed = {pool.name for pool in spec.pools if pool.scaling.min_replicas > 0}
    while not needed <= gateway.pools_served():
        await asyncio.sleep(READY_POLL_S)
    write_value(marker, Ready(gateway.url, os.getpid()))


def main() -> int:
    """The process under the supervisor; the exit code."""
    arguments = process.parser("gateway", ("gateway",), ("hops",))
    arguments.add_argument("--name", default=NAME)
    arguments.add_argument("--channel", required=True)
    arguments.add_argument(
        "--run", required=True, help="Whose engines these are: a roster that was kept by another run's gateway is not used"
    )
    arguments.add_argument("--config", type=Path, help="The file that --spec was made of: changes to it are taken while it runs")
    parsed = arguments.parse_args()
    return process.run(lambda: _under_supervisor(parsed))


async def _standalone(
    path: Path, spec: Spec, state: Path, opened: socket.socket, certificate: Certificate | None, ready_file: Path | None
) -> int:
    stop = process.stop_event()
    system = gateway_wiring.gateway(spec, LoopClock(spec.speed), NAME, state, _context(certificate), _say)
    roster = OwnRoster(system)
    remembering = gateway_wiring.remembering(system, state)
    await remembering.begin()
    await roster.begin()
    open_files.bound(system, open_files.take_all())
    await system.gateway.start_on(opened)
    process.settle()
    ledger = OwnLedger(system, state)
    reloading = _reloading(path, system, roster.take)
    accounting = asyncio.create_task(ledger.run(), name="ledger")
    keeping = asyncio.create_task(remembering.run(), name="responses")
    watching = _watching(certificate)
    url = listening.url(opened, certificate is not None)
    if ready_file is not None:
        write_value(ready_file, Ready(url, os.getpid()))
    print(f"forebay: gateway {url}", file=sys.stderr, flush=True)
    await stop.wait()
    watching.cancel()
    reloading.cancel()
    await roster.close()
    await system.gateway.drain()
    accounting.cancel()
    keeping.cancel()
    await asyncio.gather(accounting, watching, reloading, keeping, return_exceptions=True)
    await remembering.close()
    await ledger.close()
    return USAGE_LOST if await system.gateway.metering.leave() else 0


def _context(certificate: Certificate | None) -> ssl.SSLContext | None:
    return certificate.context if certificate is not None else None


def _watching(certificate: Certificate | None) -> "asyncio.Future[None]":
    """What looks after the certificate, if there is one."""
    if certificate is None:
        return asyncio.get_running_loop().create_future()
    return asyncio.create_task(certificate.watch(_say), name="certificate")


def _reloading(
    path: Path | None, system: GatewaySystem, keep: Callable[[Spec], object], kept: Path | None = None
) -> "asyncio.Future[list[None]]":
    """What takes changes of the configuration at ``path``, and of engines' keys; SIGHUP: at once. ``kept``: see `Reloader`."""
    tasks = []
    if system.keys is not None:
        watching = system.keys.watch(system.say, system.gateway.desk.knock)
        tasks.append(asyncio.create_task(watching, name="engines' keys"))
    if path is not None:
        reloader = Reloader(path, system, keep, kept)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.ask)
        tasks.append(asyncio.create_task(reloader.run(), name="configuration"))
    return asyncio.gather(*tasks)


def _say(words: str) -> None:
    print(f"forebay: {words}", file=sys.stderr, flush=True)


def standalone(
    path: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    ready_file: Path | None = None,
    state_dir: Path | None = None,
    join: str | None = None,
    hops: str | None = None,
    name: str | None = None,
) -> int:
    """A gateway alone over pools that attach, or one that joins the controller at ``join``; the exit code.

    Raises BadInput where it joins nobody and a pool starts its engines. Usage and records of requests are kept in ``state_dir``
    (default: the file's), or by the controller that it joins; where that can't be written, it says so and serves.
    """
    spec = config.load(path)
    starting = [pool.name for pool in spec.pools if pool.engine.kind != "attach"]
    if starting and join is None:
        raise BadInput(
            f"{path}: pools {', '.join(starting)} start their engines, which `forebay gateway` does not do; "
            "give them `attach: [http://host:port]`, use `forebay up`, or `--join` the controller that starts them"
        )
    check_ready_file(ready_file)
    certificate = Certificate(spec.tls) if spec.tls is not None else None
    listen = Listen(host or spec.gateway.host, spec.gateway.port if port is None else port)
    opened = listening.opened("--port" if port is not None else "gateway", listen)
    opened.setblocking(False)
    state = (state_dir or path.resolve().parent / spec.state_dir).resolve()
    if any(spill.usd_per_hour for pool in spec.pools for spill in pool.overflow.spill):
        state_folder(state)
    if join is not None:
        joining = _joining(join, hops, name)
        return process.run(lambda: _joined(path, spec, state, opened, certificate, ready_file, joining))
    return process.run(lambda: _standalone(path, spec, state, opened, certificate, ready_file))


def _joining(join: str, hops: str | None, name: str | None) -> Joining:
    controller = _address("--join", join)
    own = Listen(listening.own_host(controller), 0) if hops is None else _address("--hops", hops)
    taken = listening.opened("--hops", own)
    taken.setblocking(False)
    return Joining(name or socket.gethostname(), controller, taken)


def _address(option: str, text: str) -> Listen:
    try:
        listen = parse_listen(text)
    except ValueError as error:
        raise BadInput(f"{option}: found {text!r}; allowed: host:port, such as 10.0.0.5:8082{f'; {error}' if str(error) else ''}") from None
    if listen.host in listening.ANY_HOSTS:
        raise BadInput(f"{option}: found {text!r}; allowed: an address by which other machines reach it; any address is none")
    return listen


if __name__ == "__main__":
    sys.exit(main())
