"""Hostile engines and clients around one whole gateway, its modules compiled; and the same in Python: both must do the same.

Every input is a small world in virtual time (`testing.loop`): one gateway or two, four engines, a few clients. Clients send bodies with absurd
values in the fields that are read, read slowly, or leave at any moment; engines answer with whole answers and streams that were
mutated, cut anywhere, or broken off. It must hold that

1. nothing raises, and every client is answered, or its connection ends;
2. when all have left, no permit, no body and no request is left, and the page of metrics can be read;
3. ``--digests FILE`` writes what clients and engines got, and what was counted, by input: with the same seed the file is the same
   with ``FOREBAY_PURE=1``.

Usage: python bench/hostile_fuzz.py [--inputs 20000] [--seed 1] [--digests FILE] [--only N]
"""

import argparse
import asyncio
import collections
import hashlib
import json
import random
import time
import traceback
from pathlib import Path

import msgspec
from hostile_values import HEADERS, PATHS, TAILS, answer, asked, mutated

from forebay import HANDLED_IN
from forebay.adapters.upstream import HttpUpstream
from forebay.domain.roster import Capacity, Heard, Peer, PeerPool, Roster, RosterPool, RosterReplica
from forebay.gateway.carrying import Worker
from forebay.gateway.service import Gateway
from forebay.spec.types import EngineKind, Limits, Model, Overflow, Pool, Spec, Spill, Team, TeamLimits, Tier
from forebay.testing.clock import LoopClock
from forebay.testing.crew import FakeCrew
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import Answer, FakeEngine, Seen
from forebay.testing.ids import CountingIds
from forebay.testing.loop import CallbackErrors, run

CAPACITY = Capacity(
    kv_tokens=20_000, sequences=3, prefill_tokens=8_000, prefill_tokens_per_s=10_000.0, decode_tokens_per_s=1000.0, context_tokens=8192
)
TIERS = (
    Tier("interactive", rank=0, ttft_s=1.0, longest_wait_s=5.0),
    Tier("batch", rank=1, ttft_s=60.0, longest_wait_s=20.0, preemptible=True),
)
LIMITS = Limits(body_bytes_max=200_000, idle_s=8.0, total_s=20.0, client_buffer_bytes_max=4096)
TEAMS = (
    Team("mail", keys=(("sk-mail-1234", "interactive"), ("sk-bulk-1234", "batch")), overflow=("degrade", "spill")),
    Team("capped", keys=(("sk-capped-1", "interactive"),), limits=TeamLimits(tokens_per_minute=5000, requests_in_flight=2)),
)
KEYS = ("sk-mail-1234", "sk-bulk-1234", "sk-capped-1")
LEASE_S = 15.0
END_S = 400.0
"""Long enough for three tries of three requests, one after the other."""


def spec_of(chance: random.Random, far: str) -> Spec:
    """A pool, its smaller sibling, and perhaps a place to spill to."""
    kind = EngineKind("attach", continues=chance.choice((None, None, False)), abort_by_id=chance.random() < 0.2)
    spill = (Spill("far", f"{far}/v1", "there", "FAR_KEY", usd_per_hour=100.0, prompt_usd_per_mtok=1.0, output_usd_per_mtok=1.0),)
    overflow = Overflow("tiny", 2.0, spill if chance.random() < 0.5 else (), 2.0) if chance.random() < 0.5 else Overflow()
    pools = (Pool("chat", "llama", kind, queued_max=20, overflow=overflow), Pool("small", "tiny", kind, queued_max=20))
    return Spec(pools, (Model("llama", 8192, ("alias",)), Model("tiny", 8192)), TIERS, teams=TEAMS, limits=LIMITS)


def requests(chance: random.Random) -> bytes:
    """What one client writes."""
    written = b""
    for _ in range(chance.choice((1, 1, 2, 3))):
        path = chance.choice(PATHS)
        data = json.dumps(asked(chance, path)).encode()
        if chance.random() < 0.05:
            data = mutated(chance, data)
        elif chance.random() < 0.1:  # names that are there twice, or written in another way; what is no JSON at its end
            data = data[:-1] + chance.choice(TAILS)
        lines = [f"POST {path} HTTP/1.{chance.choice('1111110')}", "host: a", "content-type: application/json"]
        lines += [f"authorization: Bearer {chance.choice(KEYS)}", f"content-length: {len(data)}"]
        lines += [chance.choice(HEADERS) for _ in range(chance.choice((0, 0, 1, 2)))]
        written += "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + data
    return written


class World:
    """One input."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.got: list[bytes] = []
        self.seen: collections.Counter[str] = collections.Counter()

    async def engine(self, seen: Seen, answer_: Answer) -> None:
        """Answer badly."""
        chance = random.Random(self.chance.random())
        self.got.append(b"ENGINE " + seen.head + seen.body)
        step_s = chance.choice((0.0, 0.001, 0.01, 0.3))
        end = chance.random()
        parts = answer(chance, seen)
        if chance.random() < 0.04:
            await asyncio.sleep(30.0)  # says nothing
        for part in parts:
            if step_s:
                await asyncio.sleep(step_s)
            if chance.random() < 0.004:
                await asyncio.sleep(15.0)
            if chance.random() < 0.004:
                answer_.cut()
            answer_.raw(part)
        if end < 0.1:
            answer_.close()
        elif end < 0.15:
            answer_.cut()

    async def client(self, port: int, number: int) -> None:
        """Ask, one request behind the other; read, slowly perhaps; leave, early perhaps."""
        chance = random.Random(self.chance.random())
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.01, 0.5, 2.0)))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            return
        writer.write(requests(chance))
        leave = chance.random()
        try:
            async with asyncio.timeout(chance.choice((0.0, 0.005, 0.05, 0.5, 3.0)) if leave < 0.3 else END_S):
                while True:
                    part = await reader.read(chance.choice((10, 1000, 100_000)))
                    self.got.append(b"CLIENT %d " % number + part)
                    if not part:
                        break
                    if leave > 0.9:
                        await asyncio.sleep(0.2)
        except (TimeoutError, ConnectionError) as error:
            self.got.append(b"CLIENT %d " % number + type(error).__name__.encode())
        writer.transport.abort()

    async def main(self) -> None:
        """Start all, let it happen, and look that nothing is left."""
        chance = self.chance
        self.engines = [FakeEngine(self.engine) for _ in range(4)]
        for engine in self.engines:
            await engine.start()
        self.spec = spec_of(chance, self.engines[3].url)
        self.clock = LoopClock(1.0)
        names = "ab" if chance.random() < 0.3 else "a"
        self.gateways = [self._gateway(name) for name in names]
        ports = [await gateway.start("127.0.0.1", 0) for gateway in self.gateways]
        if len(names) > 1:
            for gateway in self.gateways:
                await gateway.take_hops_on(None)
        controls = asyncio.ensure_future(self._control())
        clients = [asyncio.ensure_future(self.client(chance.choice(ports), number)) for number in range(chance.choice((1, 2, 5, 9)))]
        await asyncio.sleep(END_S - 5)
        connections = [each for gateway in self.gateways for server in gateway.servers for each in server.connections]
        busy = [each.request.target for each in connections if each.request is not None]
        assert not busy, f"not answered: {busy}"
        await asyncio.sleep(10.0)
        await asyncio.gather(*clients)
        await asyncio.sleep(2.0)
        controls.cancel()
        if asyncio.get_running_loop().errors:  # type: ignore[attr-defined]
            return  # which is the cause of whatever else is wrong
        for gateway, port in zip(self.gateways, ports, strict=True):
            await self._look(gateway, port)
            await gateway.close()
        for engine in self.engines:
            engine.stop()

    def _gateway(self, name: str) -> Gateway:
        crew = FakeCrew(1, lambda owner: Worker(self.clock, owner)) if self.chance.random() < 0.4 else None
        ids, chance = CountingIds(), random.Random(7)
        return Gateway(self.spec, self.clock, ids, HttpUpstream(), chance, ListSink(), name, keys={"FAR_KEY": "sk-far"}, crew=crew)

    async def _control(self) -> None:
        """Rosters, leases and configurations, as controller and operator bring them."""
        chance, several = random.Random(self.chance.random()), len(self.gateways) > 1
        holders = [chance.choice("ab") if several else "" for _ in range(3)]
        gone, version = -1, 0
        while True:
            replicas = [
                RosterReplica(f"r{number}", engine.url, CAPACITY, holders[number])
                for number, engine in enumerate(self.engines[:3])
                if number != gone
            ]
            version += 1
            pools = (RosterPool("chat", tuple(replicas[:-1])), RosterPool("small", tuple(replicas[-1:])))
            for gateway in self.gateways:
                gateway.apply(Roster(1, version, LEASE_S, pools, leased=several))
                if several and gateway.peering is not None:
                    gateway.peering.heard(self._heard(gateway, pools))
                if chance.random() < 0.1:
                    limits = Limits(body_bytes_max=chance.choice((1024, 200_000)), idle_s=8.0, total_s=20.0, client_buffer_bytes_max=4096)
                    gateway.reload(msgspec.structs.replace(self.spec, limits=limits, teams=chance.choice((TEAMS, TEAMS[1:]))))
            await asyncio.sleep(5.0)
            gone = chance.choice((-1, -1, -1, 0, 2))

    def _heard(self, gateway: Gateway, pools: tuple[RosterPool, ...]) -> Heard:
        peers = []
        for other in self.gateways:
            if other is not gateway:
                counts = [(pool.pool, sum(replica.gateway == other.name for replica in pool.replicas)) for pool in pools]
                peers.append(Peer(other.name, other.url, tuple(PeerPool(name, count, 0.0, 1000.0 * count) for name, count in counts), True))
        return Heard(self.clock.now_s(), "hop-key", tuple(peers))

    async def _look(self, gateway: Gateway, port: int) -> None:
        """Nothing may be left, and what is told of it can be told."""
        gateway.check()
        streams = [replica.streams for load in gateway.snapshot().pools for replica in load.replicas]
        left = (gateway.desk.live, sum(streams), gateway.http.bodies_bytes, gateway.held_ids.held_bytes, len(gateway.direct))
        assert left == (0, 0, 0, 0, 0), f"left: {left}"
        for pool in (*gateway.desk.pools.values(), *gateway.desk.spills):
            for meter in pool.meters.values():
                self.seen.update({outcome.value: count for outcome, count in meter.outcomes.items()})
                self.seen.update({"continued": meter.continued, "retries": meter.retries, "requeued": meter.requeued})
        self.seen["lent"] += gateway.lending.lent_total if gateway.lending is not None else 0
        msgspec.json.encode((gateway.report(), gateway.records.leaving.take(), gateway.metering.outgoing()))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        page = b""
        while part := await reader.read(100_000):
            page += part
        assert page.startswith(b"HTTP/1.1 200"), page[:300]
        self.got.append(page)
        self.got.append(repr(sorted((str(key), counts) for key, counts in gateway.usage.shown())).encode())
        writer.transport.abort()


def played(seed: int, number: int, seen: collections.Counter[str]) -> tuple[list[bytes], str]:
    """What came of one input, and what went wrong; ``seen`` counts."""
    world = World(random.Random(f"{seed}/{number}"))
    try:
        run(world.main)
    except CallbackErrors as error:
        cause = error.__cause__
        trace = traceback.extract_tb(cause.__traceback__) if cause is not None else []
        return world.got, f"{error} {cause!r:.200} " + " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(trace))
    except Exception as error:  # every failure of one world is a finding, and the next world is played
        trace = traceback.extract_tb(error.__traceback__)
        return world.got, f"{error!r:.300} at " + " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(trace))
    seen.update(world.seen)
    return world.got, ""


def digest(got: list[bytes]) -> str:
    """By client what it got, and what engines were sent: what happens at one instant may be in any order."""
    parties: dict[bytes, bytes] = collections.defaultdict(bytes)
    for each in got:
        kind, _, rest = each.partition(b" ")
        who, _, part = rest.partition(b" ") if kind == b"CLIENT" else (each, b"", b"")
        parties[kind + who] += part or b"."
    return hashlib.sha256(repr(sorted(parties.items())).encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--digests", type=Path)
    parser.add_argument("--only", type=int)
    args = parser.parse_args()
    if args.only is not None:
        got, wrong = played(args.seed, args.only, collections.Counter())
        print(*(each[:2000] for each in got), wrong, sep="\n")
        return
    begun_s, wrongs, digests = time.process_time(), collections.Counter[str](), []
    firsts: dict[str, int] = {}
    seen: collections.Counter[str] = collections.Counter()
    statuses: collections.Counter[bytes] = collections.Counter()
    for number in range(args.first, args.first + args.inputs):
        got, wrong = played(args.seed, number, seen)
        digests.append(f"{number} {digest(got)} {wrong}")
        for each in got:
            if each.startswith(b"CLIENT") and b"HTTP/1." in each:
                statuses[each[each.index(b"HTTP/1.") :][9:12]] += 1
        if wrong:
            wrongs[wrong] += 1
            firsts.setdefault(wrong, number)
    if args.digests:
        args.digests.write_text("\n".join(digests))
    print(
        f"{args.inputs} worlds of seed {args.seed}, handled in {HANDLED_IN}: {sum(wrongs.values())} went wrong, {time.process_time() - begun_s:.0f} CPU seconds"
    )
    print(dict(seen), sorted(statuses.items()))
    for wrong, count in wrongs.most_common():
        print(f"{count:>6} (first {firsts[wrong]}): {wrong}")
    raise SystemExit(bool(wrongs))


if __name__ == "__main__":
    main()
