"""Where parts meet: the controller's system, built from a Spec (`app.gateway_wiring`: the gateway's). Nothing else constructs adapters.

`app.world` builds the same services over a simulated world; what differs between the two is only what is passed in.
"""

import random
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from forebay.adapters.clock import LoopClock
from forebay.adapters.local import AttachedFleet, CompositeFleet, Contexts, LocalFleet
from forebay.adapters.log import LogSink
from forebay.adapters.scrape import ScrapeSource
from forebay.adapters.sqlite import SqliteStore
from forebay.adapters.upstream import HttpUpstream
from forebay.adapters.webhook import Webhook
from forebay.admission.capacity import replica_capacity
from forebay.app.engine_keys import EngineKeys
from forebay.app.files import STORE_FILE
from forebay.app.keys import join_secret
from forebay.console.admin import AdminServer
from forebay.controller.channel import Channel
from forebay.controller.reports import Reports
from forebay.controller.service import Controller, PoolPolicy
from forebay.controller.sturdy import SturdyStore
from forebay.domain.events import Event
from forebay.domain.joining import NONCE_BYTES
from forebay.domain.roster import Capacity
from forebay.domain.signal import Known
from forebay.ports import Clock, EngineSignals, EventSink, Fleet, SignalSource, Store
from forebay.scaling.capacity import pool_capacity
from forebay.scaling.policy import QueueFirst
from forebay.spec.types import Pool, Spec


class Sinks:
    """Hands each event to every listener."""

    def __init__(self, *sinks: EventSink) -> None:
        self._sinks = sinks

    def emit(self, event: Event) -> None:
        """Pass ``event`` on."""
        for sink in self._sinks:
            sink.emit(event)


class Recorder:
    """Keeps each event in the history before it is passed on: for those who have no Store of their own."""

    def __init__(self, store: Store, sink: EventSink) -> None:
        self._store = store
        self._sink = sink

    def emit(self, event: Event) -> None:
        """Keep ``event``, and pass it on."""
        self._store.append_event(event)
        self._sink.emit(event)


def policies(spec: Spec) -> dict[str, PoolPolicy]:
    """The queue-first policy of each pool, over the capacity of one replica."""
    made: dict[str, PoolPolicy] = {}
    wake_s = min(spec.tiers, key=lambda tier: tier.rank).longest_wait_s
    for pool in spec.pools:
        capacity = pool_capacity(pool)
        made[pool.name] = PoolPolicy(QueueFirst(pool.scaling, capacity, spec.calendar, pool.name, pool.slo, wake_s), capacity)
    return made


def capacities(spec: Spec) -> Mapping[str, int]:
    """Context limit in tokens of each model."""
    return {model.name: model.context_tokens for model in spec.models}


def capacity_of(spec: Spec, pool: Pool, signals: EngineSignals) -> Capacity:
    """The budgets of one replica, from the profile or from what the engine told."""
    kv_tokens = int(signals.kv_tokens.value) if isinstance(signals.kv_tokens, Known) else None
    sequences = int(signals.sequences_max.value) if isinstance(signals.sequences_max, Known) else None
    return replica_capacity(pool, capacities(spec).get(pool.model, 8192), kv_tokens, sequences)


def build_controller(
    spec: Spec, clock: Clock, fleet: Fleet, signals: SignalSource, store: Store, sink: EventSink, hop_key: str = ""
) -> Controller:
    """The control loop over whatever world it is given."""
    return Controller(spec, clock, fleet, signals, store, sink, policies(spec), lambda pool, seen: capacity_of(spec, pool, seen), hop_key)


class ControllerSystem(msgspec.Struct):
    """The controller's process, joined."""

    controller: Controller
    channel: Channel
    admin: AdminServer
    fleet: CompositeFleet
    attached: AttachedFleet
    contexts: Contexts
    store: SqliteStore
    upstream: HttpUpstream
    webhook: Webhook | None
    keys: EngineKeys

    def take(self, spec: Spec) -> None:
        """Attach to what ``spec`` lists; raises BadInput, with nothing changed, where it differs in what needs a new start."""
        keys = self.keys.read(spec)
        self.controller.use(spec, policies(spec))
        if self.keys.use(keys):
            self.attached.look_again()
        self.contexts.attached(self.attached.use(spec))

    async def close(self) -> None:
        """Let go of everything; engines that run are not stopped by this."""
        await self.admin.stop()
        await self.channel.close()
        await self.fleet.close()
        await self.upstream.close()
        if self.webhook is not None:
            await self.webhook.close()
        self.store.close()


async def controller(spec: Spec, state: Path, clock: LoopClock, lifeline_fd: int | None) -> ControllerSystem:
    """Build the controller's process and adopt what an earlier one left running. Raises BadInput for a key that isn't there."""
    store = SqliteStore(state / STORE_FILE)
    chance = random.Random(secrets.randbits(64))
    log = LogSink()
    webhook = Webhook(spec.webhook, chance, problems=log) if spec.webhook else None
    sink = Sinks(log, *([webhook] if webhook is not None else []))
    upstream = HttpUpstream()
    keys = EngineKeys(spec, upstream.authorize)
    sturdy = SturdyStore(store, lambda kind, message: sink.emit(Event(kind, clock.now_s(), clock.wall_s(), "", message)))
    recorder = Recorder(sturdy, sink)
    started = LocalFleet(
        spec, clock, upstream, store, recorder, log_dir=state / "logs", lifeline_fd=lifeline_fd, chance=chance, meet=keys.meet
    )
    attached = AttachedFleet(spec, clock, upstream, recorder)
    contexts = Contexts(spec, upstream, clock, recorder)
    fleet = CompositeFleet([started, attached], contexts)
    await fleet.adopt()
    control = build_controller(spec, clock, fleet, ScrapeSource(upstream, clock), sturdy, sink, secrets.token_hex(16))
    channel = Channel(control.hear, control.lost, join_secret(spec), partial(secrets.token_hex, NONCE_BYTES))
    admin = AdminServer(Reports(control, sturdy, clock))
    return ControllerSystem(control, channel, admin, fleet, attached, contexts, store, upstream, webhook, keys)
