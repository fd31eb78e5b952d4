"""One world from its seed to its verdict: build the live services, let clients and troubles loose, keep watch, judge."""

import asyncio
import hashlib
import traceback

import msgspec

from forebay.adapters.scrape import ScrapeSource
from forebay.adapters.upstream import HttpUpstream
from forebay.app import wiring
from forebay.app.world.clients import Answer, Told, send
from forebay.app.world.fleet import WorldFleet
from forebay.app.world.fronts import Front, excused, lost_with_workers, shared
from forebay.app.world.limits import LimitsWatch
from forebay.app.world.plan import MODEL, WORLD_S, Event, Plan, Trouble, draw
from forebay.app.world.promises import LOOK_S, Broken, WatchedPolicy, at_the_end, bill, each_second, hopeless, waited
from forebay.controller.channel import Channel
from forebay.controller.service import Controller, PoolPolicy
from forebay.domain.replica import ReplicaState
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.loop import network, run
from forebay.testing.store import MemoryStore

CHANNEL_PORT = 9000
VIRTUAL_S_MAX = 3600.0
LINES_MAX = 400


class Verdict(msgspec.Struct, frozen=True):
    """What came of a world. The same seed gives the same ``digest``."""

    seed: int
    ok: bool
    digest: str
    requests: int
    told: dict[str, int]
    troubles: tuple[str, ...]
    replicas_started: int
    replicas_max: int
    broken: tuple[Broken, ...]
    log: tuple[str, ...]


class World:
    """The services of one world, and what is kept of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clock = LoopClock()
        self.sink = ListSink()
        self.store = MemoryStore()
        self.broken: list[Broken] = []
        self.served_s: list[float] = []
        """When some engine was seen to serve."""
        self.fleet = WorldFleet(self.clock, plan.profile, MODEL, plan.seed)
        self.fronts = [Front(number, plan, self.clock, self.sink, CHANNEL_PORT) for number in range(plan.spec.gateways)]
        self.controller: Controller | None = None
        self._channel: Channel | None = None
        self._control: asyncio.Task[None] | None = None
        self._scraper: HttpUpstream | None = None

    async def start_controller(self) -> None:
        """A controller over the fleet as it is and the store as it was left."""
        spec = self.plan.spec
        watched = {
            name: PoolPolicy(WatchedPolicy(policy.policy, spec.pool(name).scaling.max_replicas, self.broken), policy.capacity)
            for name, policy in wiring.policies(spec).items()
        }
        self._scraper = HttpUpstream()
        self.controller = Controller(
            spec,
            self.clock,
            self.fleet,
            ScrapeSource(self._scraper, self.clock),
            self.store,
            self.sink,
            watched,
            lambda pool, seen: wiring.capacity_of(spec, pool, seen),
            f"hops of {self.plan.seed}",
        )
        self._channel = Channel(self.controller.hear, self.controller.lost)
        await self._channel.start("127.0.0.1", CHANNEL_PORT)
        self._control = asyncio.create_task(self.controller.run(self._channel.publish), name="controller")

    async def stop_controller(self) -> None:
        """As a crash would: nothing is told, engines and gateway go on."""
        assert self._channel is not None
        assert self._scraper is not None
        if self._control is not None:
            self._control.cancel()
            await asyncio.gather(self._control, return_exceptions=True)
        await self._channel.close()
        network().cut(CHANNEL_PORT)
        await self._scraper.close()

    async def watch(self) -> None:
        """Check each second; a controller that died is a broken promise."""
        limits = LimitsWatch(self.plan.spec, self.clock.now_s())
        while True:
            await self.clock.sleep_until(self.clock.now_s() + LOOK_S)
            if self.fleet.serves(network().held_ports):
                self.served_s.append(self.clock.now_s())
            for front in self.fronts:
                self.broken += each_second(front.gateway, self.clock.now_s())
            self.broken += shared(self.fronts, self.clock.now_s())
            self.broken += limits.each_second(self.fronts, self.clock.now_s())
            if self.controller is not None:
                self.controller.retreat.check()
                if self.controller.leasing is not None:
                    self.controller.leasing.leases.check()
            if self._control is not None and self._control.done() and not self._control.cancelled():
                error = self._control.exception()
                where = "".join(traceback.format_exception(error)[-2:]) if error else ""
                self.broken.append(Broken(self.clock.now_s(), "the controller lives", where))
                self._control = None
                return

    async def happen(self, event: Event) -> None:
        """Let one trouble begin and end."""
        await self.clock.sleep_until(event.at_s)
        ready = sorted(name for name, replica in self.fleet.replicas.items() if replica.state is ReplicaState.READY)
        victims = ready if event.trouble is Trouble.METRICS_ALL else ready[event.draw % len(ready) :][:1] if ready else []
        port = self.fleet.replicas[victims[0]].port if victims else 0
        front = self.fronts[event.draw % len(self.fronts)]
        match event.trouble:
            case Trouble.GATEWAY_CRASH | Trouble.GATEWAY_CUT_OFF | Trouble.HOPS_CUT | Trouble.WORKER_KILLED:
                await front.suffer(event)
            case Trouble.CHANNEL_CUT:
                network().cut(CHANNEL_PORT)
            case Trouble.CHANNEL_HELD:
                await self._held(CHANNEL_PORT, event.for_s)
            case Trouble.PARTITION if port:
                await self._held(port, event.for_s)
            case Trouble.CONTROLLER_RESTART:
                await self.stop_controller()
                await self.clock.sleep_until(self.clock.now_s() + event.for_s / 4)
                await self.start_controller()
            case _:
                for name in victims:
                    self.fleet.fault(name, event.fault())
                await self.clock.sleep_until(self.clock.now_s() + event.for_s)
                for name in victims:
                    self.fleet.fault(name, None)

    async def _held(self, port: int, for_s: float) -> None:
        network().hold(port)
        await self.clock.sleep_until(self.clock.now_s() + for_s)
        network().hold(port, False)

    async def troubles(self) -> None:
        """All of them, in order: one that lasts does not delay the next, but a controller restarts once at a time."""
        restarts = [event for event in self.plan.events if event.trouble is Trouble.CONTROLLER_RESTART]
        others = [event for event in self.plan.events if event.trouble is not Trouble.CONTROLLER_RESTART]

        async def one_by_one() -> None:
            for event in sorted(restarts, key=lambda event: event.at_s):
                await self.happen(event)

        await asyncio.gather(one_by_one(), *(self.happen(event) for event in others))

    async def live(self) -> list[Answer]:
        """The whole life; the answers that clients got."""
        await self.start_controller()
        for front in self.fronts:
            await front.start()
        watching = asyncio.create_task(self.watch(), name="watch")
        troubles = asyncio.create_task(self.troubles(), name="troubles")
        ports = [front.port for front in self.fronts]
        told = await asyncio.gather(*(send(wish, ports[wish.number % len(ports)], MODEL, self.clock) for wish in self.plan.wishes))
        await troubles
        answers, more = lost_with_workers(excused(told, self.plan.wishes, self.fronts), self.plan.wishes, self.fronts)
        self.broken += more
        await self.clock.sleep_until(max(WORLD_S, self.clock.now_s() + 60.0))
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        now_s = self.clock.now_s()
        crashed = any(front.crashes for front in self.fronts)
        longest_s = {key: self.plan.spec.tier(tier, team.name).longest_wait_s for team in self.plan.spec.teams for key, tier in team.keys}
        self.broken += waited(answers, self.plan.wishes, longest_s)
        no_chance = hopeless(answers, self.plan.wishes, self.served_s)
        self.broken += at_the_end([front.gateway for front in self.fronts], answers, len(self.plan.wishes), now_s, crashed, no_chance)
        if not crashed:  # a crash loses what no ledger has yet
            self.broken += bill([front.gateway for front in self.fronts], self.store, len(self.plan.wishes), now_s)
        self.broken += [Broken(now_s, "a drain cuts no stream", promise) for promise in self.fleet.broken_promises]
        for front in self.fronts:
            await front.unlink()
            await front.gateway.drain()
        await self.stop_controller()
        await self.fleet.close()
        return answers

    def verdict(self, answers: list[Answer]) -> Verdict:
        """Judge what was kept."""
        told = {kind.value: sum(answer.told is kind for answer in answers) for kind in Told}
        log = [f"{event.at_s:9.3f} {event.kind:18} {event.pool} {event.message}" for event in self.sink.events]
        lines = [*log, *(f"{answer.ended_s:.6f} {answer.number} {answer.told} {answer.status}" for answer in answers)]
        scales = [record.decision.replicas for record in self.store.decisions("pool", limit=10_000)]
        return Verdict(
            seed=self.plan.seed,
            ok=not self.broken,
            digest=hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16],
            requests=len(answers),
            told=told,
            troubles=tuple(f"{event.at_s:.1f} {event.trouble}" for event in sorted(self.plan.events, key=lambda event: event.at_s)),
            replicas_started=self.fleet.started_total,
            replicas_max=max(scales, default=0),
            broken=tuple(self.broken),
            log=tuple(log[-LINES_MAX:]),
        )


def judge(seed: int, gateways: int = 1, workers: int | None = None) -> Verdict:
    """Run the world of ``seed``, with so many gateways, and relay workers behind each (None: as drawn).

    An error anywhere in it is a broken promise too, with where it came from.
    """
    plan = draw(seed, gateways, workers)

    async def main() -> Verdict:
        world = World(plan)
        answers = await world.live()
        return world.verdict(answers)

    try:
        return run(main, seed, time_limit_s=VIRTUAL_S_MAX)
    except Exception as error:
        where = "".join(traceback.format_exception(error)[-6:])
        return Verdict(seed, False, "", len(plan.wishes), {}, (), 0, 0, (Broken(0.0, "the world runs", where),), ())
