"""What a gateway that runs alone asks of each of its engines once: whether it is there, and what it serves.

Without a controller nobody looks at engines but the requests that go to them: the first of those would find out that an address is
wrong, and its client be told that the model does not exist which is only named otherwise. An engine that is not there is out of
routing from the start, so that ``/ready`` is right, and is asked again until it is.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from forebay.adapters.local.health import asks_key
from forebay.app.gateway_wiring import GatewaySystem
from forebay.domain.events import Event
from forebay.domain.roster import RosterReplica
from forebay.ports.upstream import ASKS_KEY, End, FetchFailed, fetch, get_request
from forebay.spec.types import Pool

MODELS_PATH = "/v1/models"
BODY_BYTES_MAX = 2**20
ANSWER_REAL_S = 5.0
AGAIN_REAL_S = 5.0
START_REAL_S = 1.0
"""So long requests wait for the first look at most."""
AT_ONCE_MAX = 64
NAMES_TOLD_MAX = 8


class _Model(msgspec.Struct):
    id: str = ""


class _Models(msgspec.Struct):
    data: list[_Model] = []


class FirstLook:
    """At the engines of one gateway's static roster."""

    def __init__(self, system: GatewaySystem) -> None:
        self._system = system
        self._looking = asyncio.Semaphore(AT_ONCE_MAX)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By replica, of each that is listed."""

    async def begin(self) -> None:
        """Look at all; returns once each has answered or been found to be gone, after `START_REAL_S` at the latest."""
        firsts = [asyncio.create_task(first.wait()) for first in self.go_on()]
        if firsts:
            _, late = await asyncio.wait(firsts, timeout=START_REAL_S)
            for each in late:
                each.cancel()

    def go_on(self) -> list[asyncio.Event]:
        """Look at those that the gateway's roster lists anew, and no more at those that have left; what is set when each was looked at."""
        gateway = self._system.gateway
        pools = {pool.name: pool for pool in gateway.spec.pools}
        listed = {replica.id: (pools[pool.pool], replica) for pool in gateway.roster.pools for replica in pool.replicas}
        for replica_id in self._tasks.keys() - listed.keys():
            self._tasks.pop(replica_id).cancel()
        firsts = []
        for replica_id, (pool, replica) in listed.items():
            if replica_id not in self._tasks:
                firsts.append(first := asyncio.Event())
                self._tasks[replica_id] = asyncio.create_task(self._look(pool, replica, first), name=f"first look at {replica_id}")
        return firsts

    async def close(self) -> None:
        """Look no more."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _look(self, pool: Pool, replica: RosterReplica, first: asyncio.Event) -> None:
        while True:
            async with self._looking:
                there = await self._ask(pool, replica)
            first.set()
            if there:
                return
            await asyncio.sleep(AGAIN_REAL_S)

    async def _ask(self, pool: Pool, replica: RosterReplica) -> bool:
        """Whether it has said what there is to say."""
        system = self._system
        try:
            request = get_request(replica.url, MODELS_PATH)
            status, body = await fetch(system.upstream, replica.url, request, BODY_BYTES_MAX, ANSWER_REAL_S)
        except FetchFailed as failed:
            if failed.end is End.REFUSED:
                desk = system.gateway.desk
                desk.failed(desk.pools[pool.name], replica.id, f"nobody listens at {replica.url}", gone=True)
            return False
        if status not in ASKS_KEY and pool.engine.metrics != "vllm":
            status = await asks_key(system.upstream, replica.url, pool.engine.metrics, ANSWER_REAL_S) or status
        if status in ASKS_KEY:
            system.gateway.asks_key(replica.url, status, sure=True)
            return False
        if status == 200:
            found = served(body)
            for kind, words in differences(pool, replica, found) if found else ():
                self._tell(kind, pool, words)
            for adapter in _lacking(pool, found) if found else ():
                desk = system.gateway.desk
                desk.pools[pool.name].lacking.add(adapter, replica.id, system.clock.now_s())
        return status < 500

    def _tell(self, kind: str, pool: Pool, words: str) -> None:
        clock = self._system.clock
        self._system.sink.emit(Event(kind, clock.now_s(), clock.wall_s(), pool.name, words, {"gateway": self._system.gateway.name}))


def served(body: bytes) -> list[str]:
    """Names of models; empty where it is no such answer."""
    try:
        return [one.id for one in msgspec.json.decode(body, type=_Models).data]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


def differences(pool: Pool, replica: RosterReplica, models: list[str]) -> Iterable[tuple[str, str]]:
    """``(kind, words)`` of what would be answered 404 there."""
    names = ", ".join(models[:NAMES_TOLD_MAX])
    if pool.model not in models and pool.engine.metrics == "vllm":  # llama.cpp answers to any name
        yield (
            "model_differs",
            f"{replica.id} at {replica.url} serves {names}, and not {pool.model}: call the model so, or start it with "
            f"--served-model-name {pool.model}",
        )
    if lacking := _lacking(pool, models):
        yield "adapters_lacking", f"{replica.id} at {replica.url} has not the adapters {', '.join(lacking)} of pool {pool.name}"


def _lacking(pool: Pool, served: list[str]) -> list[str]:
    return [name for name in pool.adapters if name not in served]
