"""The gateway's process, built from a Spec. Apart from the controller's, so that a gateway starts (again) in half the time."""

import os
import random
import secrets
import ssl

import msgspec

from forebay.adapters.clock import LoopClock, RandomIds
from forebay.adapters.log import LogSink
from forebay.adapters.tokenizer import FileTokenizer
from forebay.adapters.upstream import HttpUpstream
from forebay.domain.errors import BadInput
from forebay.gateway.link import Link
from forebay.gateway.service import Gateway
from forebay.spec.types import Spec


class GatewaySystem(msgspec.Struct):
    """The gateway's process, joined."""

    gateway: Gateway
    upstream: HttpUpstream
    clock: LoopClock
    sink: LogSink
    chance: random.Random


def gateway(spec: Spec, clock: LoopClock, name: str, tls: ssl.SSLContext | None = None) -> GatewaySystem:
    """Build the gateway's process. Raises BadInput for an API key that isn't in the environment, or a tokenizer that can't be read."""
    upstream, sink = HttpUpstream(), LogSink()
    chance = random.Random(secrets.randbits(64))
    made = Gateway(spec, clock, RandomIds(), upstream, chance, sink, name, tls, _keys(spec))
    for pool in spec.pools:
        if pool.estimate.tokenizer:
            made.desk.pools[pool.name].sizing.counter = FileTokenizer(pool.estimate.tokenizer, f"pools.{pool.name}.estimate.tokenizer")
    return GatewaySystem(made, upstream, clock, sink, chance)


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
