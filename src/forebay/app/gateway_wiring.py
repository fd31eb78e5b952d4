"""The gateway's process, built from a Spec. Apart from the controller's, so that a gateway starts (again) in half the time."""

import random
import secrets
import ssl
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from forebay.adapters.clock import LoopClock, RandomIds
from forebay.adapters.crew import ProcessCrew, available
from forebay.adapters.journal import FileJournal
from forebay.adapters.log import LogSink
from forebay.adapters.upstream import HttpUpstream
from forebay.app.engine_keys import EngineKeys
from forebay.app.gateway_names import responses_file, roster_file
from forebay.app.kept_file import ROSTER_BYTES_MAX, KeptFile
from forebay.app.keys import join_secret, spill_keys
from forebay.app.named_files import tokenizers
from forebay.app.spent import SPENT_FILE, SpentFile
from forebay.domain.errors import BadInput
from forebay.domain.events import Event
from forebay.domain.joining import NONCE_BYTES
from forebay.gateway.keeping import Keeping
from forebay.gateway.link import Link
from forebay.gateway.remembering import BYTES_MAX, Remembering
from forebay.gateway.service import Gateway
from forebay.spec.types import Spec

USAGE_FOLDER = "usage"
RELAY_WORKER = (sys.executable, "-m", "forebay.app.relay_worker_main")
"""What starts a relay worker's process."""


class GatewaySystem(msgspec.Struct):
    """The gateway's process, joined."""

    gateway: Gateway
    upstream: HttpUpstream
    clock: LoopClock
    sink: LogSink
    chance: random.Random
    keys: EngineKeys | None = None
    """Of engines that ask for one."""

    def say(self, kind: str, message: str) -> None:
        """An event of this gateway."""
        self.sink.emit(Event(kind, self.clock.now_s(), self.clock.wall_s(), "", message, {"gateway": self.gateway.name}))


def gateway(spec: Spec, clock: LoopClock, name: str, state: Path, tls: ssl.SSLContext | None, say: Callable[[str], None]) -> GatewaySystem:
    """Build the gateway's process. Raises BadInput for an API key that isn't there, or a tokenizer that can't be read.

    Its journal of usage and what it has spent elsewhere are below the folder ``state``; where that can't be written it goes on in
    memory, and says so.
    """
    upstream, sink, ids = HttpUpstream(), LogSink(), RandomIds()
    chance = random.Random(secrets.randbits(64))
    journal = FileJournal(state / USAGE_FOLDER, name, ids.fresh("journal"))
    spent = SpentFile(state / SPENT_FILE, say)
    crew = relay_workers(spec, say)
    built = Gateway(spec, clock, ids, upstream, chance, sink, name, tls, spill_keys(spec), spent, journal, crew)
    keys = EngineKeys(spec, upstream.authorize)
    built.meet = keys.meet
    for pool, counter in tokenizers(spec).items():
        built.desk.pools[pool].sizing.counter = counter
    return GatewaySystem(built, upstream, clock, sink, chance, keys)


def relay_workers(spec: Spec, say: Callable[[str], None]) -> ProcessCrew | None:
    """The processes that carry streams for a gateway, where its configuration has some. Raises BadInput where this system can't."""
    if not spec.relay_workers:
        return None
    if not available():
        raise BadInput(
            f"gateway.workers: found {spec.relay_workers}; allowed: 0 on this system, which has no sockets that keep packets apart "
            "(Linux does); remove it"
        )
    return ProcessCrew(spec.relay_workers, RELAY_WORKER, say)


def gateway_link(system: GatewaySystem, host: str, port: int, keeping: Keeping | None = None) -> Link:
    """The gateway's connection to its controller. Raises BadInput for a secret that isn't in the environment."""
    gateway, nonce = system.gateway, partial(secrets.token_hex, NONCE_BYTES)
    return Link(gateway, system.clock, system.chance, system.sink, host, port, keeping, join_secret(gateway.spec), nonce)


def remembering(system: GatewaySystem, state: Path) -> Remembering:
    """What keeps in the folder ``state`` which replica has which response."""
    gateway = system.gateway
    return Remembering(gateway, KeptFile(state / responses_file(gateway.name), "what is known of kept responses", BYTES_MAX))


def roster_keeping(system: GatewaySystem, state: Path, run: str) -> Keeping:
    """What keeps its rosters of ``run`` in the folder ``state``."""
    gateway = system.gateway
    return Keeping(gateway, system.clock, KeptFile(state / roster_file(gateway.name), "a roster", ROSTER_BYTES_MAX), run)
