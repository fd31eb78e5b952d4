"""The gateway's process, built from a Spec. Apart from the controller's, so that a gateway starts (again) in half the time."""

import os
import random
import secrets
import ssl
from pathlib import Path

import msgspec

from forebay.adapters.clock import LoopClock, RandomIds
from forebay.adapters.journal import FileJournal
from forebay.adapters.log import LogSink
from forebay.adapters.upstream import HttpUpstream
from forebay.domain.errors import BadInput
from forebay.gateway.link import Link
from forebay.gateway.service import Gateway
from forebay.spec.types import Spec

USAGE_FOLDER = "usage"


class GatewaySystem(msgspec.Struct):
    """The gateway's process, joined."""

    gateway: Gateway
    upstream: HttpUpstream
    clock: LoopClock
    sink: LogSink
    chance: random.Random


def gateway(spec: Spec, clock: LoopClock, name: str, state: Path, tls: ssl.SSLContext | None = None) -> GatewaySystem:
    """Build the gateway's process. Raises BadInput for an API key of other people's engines that isn't in the environment.

    Its journal of usage is below the folder ``state``; where that can't be written it counts in memory, and says so.
    """
    upstream, sink, ids, keys = HttpUpstream(), LogSink(), RandomIds(), _keys(spec)
    chance = random.Random(secrets.randbits(64))
    journal = FileJournal(state / USAGE_FOLDER, name, ids.fresh("journal"))
    return GatewaySystem(Gateway(spec, clock, ids, upstream, chance, sink, name, tls, keys, journal), upstream, clock, sink, chance)


def _keys(spec: Spec) -> dict[str, str]:
    keys = {}
    for pool in spec.pools:
        for spill in pool.overflow.spill:
            if spill.key_env:
                key = os.environ.get(spill.key_env, "")
                if not key:
                    where = f"pools.{pool.name}.overflow.spill {spill.name}: key_env"
                    raise BadInput(f"{where}: found no {spill.key_env} in the environment, allowed: a variable with the API key; set it")
                if not key.isascii() or not key.isprintable() or " " in key:
                    where = f"pools.{pool.name}.overflow.spill {spill.name}: key_env"
                    raise BadInput(
                        f"{where}: found a {spill.key_env} with blanks or control characters, allowed: visible ASCII; set it anew"
                    )
                keys[spill.key_env] = key
    return keys


def gateway_link(system: GatewaySystem, host: str, port: int) -> Link:
    """The gateway's connection to its controller."""
    return Link(system.gateway, system.clock, system.chance, system.sink, host, port)
