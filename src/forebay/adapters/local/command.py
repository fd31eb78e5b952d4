"""From a pool's declaration to an argument list, an environment and a port.

Placeholders are replaced literally, not by ``str.format``: engine options are full of JSON and its braces.
"""

import itertools
import os
import random
import socket
import sys
from collections.abc import Collection
from pathlib import Path

import msgspec

from forebay.adapters.local.life import Life
from forebay.adapters.local.shim import LIFELINE_VARIABLE
from forebay.domain.errors import ForebayError
from forebay.spec.types import Pool

SHIM = Path(__file__).with_name("shim.py")
DEVICES = "{devices}"
HOST = "127.0.0.1"
PORT_LEAST = 20_000
PORT_MOST = 31_999
"""Below Linux's ephemeral ports: an engine may bind minutes after its port was chosen; no outgoing connection may take it meanwhile."""
PORT_TRIES_MAX = 200


class NoFreePort(ForebayError):
    """No free port was found for an engine."""


def free_port(chance: random.Random, taken: Collection[int]) -> int:
    """A port on the loopback that nothing is bound to and that is not in ``taken``; raises NoFreePort."""
    for _ in range(PORT_TRIES_MAX):
        port = chance.randint(PORT_LEAST, PORT_MOST)
        if port in taken:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            return port
    raise NoFreePort(f"no free port among {PORT_TRIES_MAX} tried between {PORT_LEAST} and {PORT_MOST} on {HOST}: stop what listens there")


def engine_command(pool: Pool, life: Life, port: int, speed: float) -> list[str]:
    """The engine's own arguments. An emulated pool's ``command`` is appended to the emulator's (``--seed 7``)."""
    given = list(pool.engine.command)
    if pool.engine.kind == "emulated":
        given = [*_emulator(pool, speed), *given]
    return [_filled(argument, _values(pool, life, port, speed)) for argument in given]


def wants_devices(pool: Pool) -> bool:
    """Whether the pool's command or environment says ``{devices}``: numbers of GPUs (or cores) that no other replica here has."""
    return any(DEVICES in text for text in (*pool.engine.command, *(value for _, value in pool.engine.env)))


def free_devices(pool: Pool, taken: Collection[int]) -> tuple[int, ...]:
    """The lowest numbers not ``taken``, as many as one replica has GPUs."""
    count = pool.profile.gpus if pool.profile is not None else 1
    return tuple(itertools.islice((number for number in itertools.count() if number not in taken), count))


def _values(pool: Pool, life: Life, port: int, speed: float) -> dict[str, str]:
    return {
        "{port}": str(port),
        "{replica}": life.id,
        "{model}": pool.model,
        "{speed}": f"{speed:g}",
        DEVICES: ",".join(map(str, life.devices)),
    }


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _emulator(pool: Pool, speed: float) -> list[str]:
    options = {
        "--port": "{port}",
        "--profile-json": msgspec.json.encode(pool.profile).decode(),
        "--model": pool.model,
        "--speed": f"{speed:g}",
        "--shutdown-timeout": f"{pool.scaling.drain_s_max:g}",
    }
    adapters = ["--lora-modules", *pool.adapters] if pool.adapters else []
    return [
        sys.executable,
        "-m",
        "forebay.emulator",
        *(word for pair in options.items() for word in pair),
        "--cold",
        "--report-stages",
        *adapters,
    ]


def shim_command(owner: str, replica_id: str, grace_real_s: float, command: list[str]) -> list[str]:
    """``command`` under a shim that is marked with whose it is."""
    marks = ["--owner", owner, "--replica", replica_id, "--grace", f"{grace_real_s:g}"]
    return [sys.executable, "-I", "-S", str(SHIM), *marks, "--", *command]


def engine_environment(pool: Pool, life: Life, port: int, speed: float, lifeline_fd: int | None) -> dict[str, str]:
    """Our own environment, the pool's variables (filled in like the command) on top, and the lifeline's number for the shim."""
    values = _values(pool, life, port, speed)
    environment = {**os.environ, **{name: _filled(value, values) for name, value in pool.engine.env}}
    environment.pop(LIFELINE_VARIABLE, None)
    if lifeline_fd is not None:
        environment[LIFELINE_VARIABLE] = str(lifeline_fd)
    return environment
