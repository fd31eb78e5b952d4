"""Relay workers as real processes over real sockets: what a lent connection is to its two holders, and what each one's end does."""

import asyncio
import json
import os
import random
import resource
import signal
import sys

import pytest
import uvloop

from forebay.adapters.clock import LoopClock, RandomIds
from forebay.adapters.crew import ProcessCrew, processes
from forebay.adapters.crew.packets import POSTS_BYTES_MAX, POSTS_MAX, Packets, pair
from forebay.adapters.upstream import HttpUpstream
from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.gateway.service import Gateway
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Limits, Model, Pool, Spec
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import FakeEngine
from forebay.testing.raw_client import RawClient

COMMAND = (sys.executable, "-m", "forebay.app.relay_worker_main")
CHAT = "/v1/chat/completions"
ASK = {"model": "m", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 5000, "stream": True}
ROOM = Capacity(
    kv_tokens=10**7, sequences=64, prefill_tokens=10**6, prefill_tokens_per_s=1e5, decode_tokens_per_s=1e5, context_tokens=100_000
)
WAIT_S = 30.0
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


def event(**choice):
    made = {"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    made["choices"] = [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None, **choice}]
    return b"data: %b\n\n" % json.dumps(made, separators=(",", ":")).encode()


def token(number, words=" word"):
    return event(delta={"content": words}, token_ids=[number])


async def until(condition, what):
    for _ in range(int(WAIT_S / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{what}: not within {WAIT_S:g} s")


class Place:
    """A gateway with real workers, and its engine."""

    def __init__(self, gateway, crew, engine, sink, port):
        self.gateway, self.crew, self.engine, self.sink, self.port = gateway, crew, engine, sink, port

    @property
    def lending(self):
        return self.gateway.lending

    @property
    def meter(self):
        return self.gateway.desk.pools["chat"].meters["interactive"]

    async def lent(self, count=1):
        await until(lambda: self.lending.streams == count, f"{count} streams are lent")


def served(loop, script, test, workers=1, limits=None):
    """Run ``test(place)`` on the real ``loop``; nothing may be left."""

    async def main():
        clock, sink = LoopClock(), ListSink()
        pool = Pool("chat", "m", EngineKind("attach"))
        spec = Spec((pool,), (Model("m", 100_000),), DEFAULT_TIERS, limits=limits or Limits())
        crew = ProcessCrew(workers, COMMAND, print)
        gateway = Gateway(spec, clock, RandomIds(), HttpUpstream(), random.Random(7), sink, "g", crew=crew)
        engine = FakeEngine(script)
        await engine.start()
        port = await gateway.start("127.0.0.1", 0)
        gateway.apply(Roster(1, 1, 10.0, (RosterPool("chat", (RosterReplica("r0", engine.url, ROOM),)),)))
        await until(lambda: gateway.lending.workers == workers, "the workers have started")
        try:
            await test(Place(gateway, crew, engine, sink, port))
            await until(lambda: gateway.desk.live == 0, "nothing is inside")
            gateway.check()
            pids = crew.pids()
        finally:
            await gateway.close()
            engine.stop()
        assert pids
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        await asyncio.sleep(0.05)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


@pytest.fixture(params=LOOPS)
def loop(request):
    return request.param


def answering(count, pause_s=0.002, words=" word", then=None):
    async def script(_, engine):
        engine.stream()
        for number in range(count):
            engine.chunk(token(number, words))
            if pause_s or number < 50:
                await asyncio.sleep(pause_s or 0.002)
        if then is not None:
            await then(engine)
            return
        engine.chunk(event(finish_reason="stop"))
        engine.done()

    return script


def test_a_stream_goes_there_and_comes_back_and_both_connections_are_used_again(loop):
    async def test(place):
        client = await RawClient.connect(place.port)
        for turn in range(1, 4):
            client.send(CHAT, ASK)
            await place.lent()
            answer = await client.read()
            assert answer.complete
            assert len(answer.events()) == 102
            assert place.lending.lent_total == turn
        assert place.engine.accepted == 1
        client.close()

    served(loop, answering(100), test)


def test_many_streams_at_two_workers_are_all_whole(loop):
    async def test(place):
        clients = [await RawClient.connect(place.port) for _ in range(40)]
        for answer in await asyncio.gather(*(client.ask(CHAT, ASK) for client in clients)):
            assert answer.complete
            assert len(answer.events()) == 302
        assert place.lending.lent_total == 40
        assert place.lending.early_total == 0
        assert place.meter.output_tokens == 40 * 301  # this engine tells no usage: events with content or an end are counted
        for client in clients:
            client.close()

    served(loop, answering(300), test, workers=2)


def recall_some(place, chance):
    """And have the others lent as often as they can be."""
    for call in place.gateway.desk.pools["chat"].calls.values():
        call._early = call._unsettled = 0
        if call._lent is not None and not call._lent.recalled and chance.random() < 0.3:
            place.lending.recall(call._lent, lambda: None)


def test_streams_that_go_there_and_back_all_the_time_lose_nothing(loop):
    chance = random.Random(5)

    async def script(_, engine):
        engine.stream()
        for number in range(500):
            engine.chunk(token(number, f" w{number}"))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.choice([0.001, 0.004]))
        engine.chunk(event(finish_reason="stop"))
        engine.done()

    async def test(place):
        clients = [await RawClient.connect(place.port) for _ in range(8)]
        tasks = [asyncio.create_task(client.ask(CHAT, ASK)) for client in clients]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.003)
            recall_some(place, chance)
        expected = [f" w{number}" for number in range(500)]
        for task in tasks:
            events = task.result().events()
            assert [each["choices"][0]["delta"]["content"] for each in events[:500]] == expected
            assert events[-1] == "[DONE]"
        assert place.lending.lent_total > 100
        assert place.engine.accepted == 8
        for client in clients:
            client.close()

    served(loop, script, test, workers=2)


@pytest.mark.parametrize("how", ["close", "cut"])
def test_an_engine_that_ends_inside_a_chunk_is_seen_by_the_owner(loop, how):
    async def end(engine):
        engine.raw(b"40\r\ndata: {half")
        await asyncio.sleep(0.05)
        getattr(engine, how)()

    async def test(place):
        client = await RawClient.connect(place.port)
        client.send(CHAT, ASK)
        await place.lent()
        answer = await client.read()
        assert answer.complete
        assert answer.events()[-2]["error"]["code"] == "stream_truncated"
        assert len(answer.events()) == 52
        client.close()

    served(loop, answering(50, then=end), test)


def test_a_client_that_leaves_is_noticed_and_its_engine_stopped(loop):
    gone = asyncio.Event()

    async def script(_, engine):
        engine.stream()
        for number in range(5000):
            engine.chunk(token(number))
            await asyncio.sleep(0.002)
            if engine.gone.is_set():
                gone.set()
                return

    async def test(place):
        client = await RawClient.connect(place.port)
        client.send(CHAT, ASK)
        await place.lent()
        began_s = asyncio.get_running_loop().time()
        client.close()
        async with asyncio.timeout(WAIT_S):
            await gone.wait()
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s < 5.0  # 0.1 s on a machine that has nothing else to do
        assert place.meter.outcomes["client_gone"] == 1

    served(loop, script, test)


def test_a_slow_client_gets_all_of_it(loop):
    """What it doesn't take fills the worker's buffer to its bound; then the engine waits, and the owner knows why."""

    async def test(place):
        client = await RawClient.connect(place.port)
        client.send(CHAT, ASK)
        await place.lent()
        client.writer.transport.pause_reading()
        (call,) = place.gateway.desk.pools["chat"].calls.values()
        await until(lambda: call._paused, "it is slow")
        await asyncio.sleep(0.1)
        client.writer.transport.resume_reading()
        answer = await client.read()
        assert answer.complete
        assert len(answer.events()) == 6002
        assert place.lending.lent_total == 1
        client.close()

    served(loop, answering(6000, 0, "x" * 3000), test, limits=Limits(client_buffer_bytes_max=16 * 1024))


def test_a_stream_is_given_back_only_when_its_client_has_taken_all_that_is_written(loop):
    async def test(place):
        client = await RawClient.connect(place.port)
        client.send(CHAT, ASK)
        await place.lent()
        client.writer.transport.pause_reading()
        (call,) = place.gateway.desk.pools["chat"].calls.values()
        await until(lambda: call._paused, "it is slow")
        call._early = 1000  # it stays, once it is back
        place.lending.recall(call._lent, lambda: None)
        await asyncio.sleep(0.2)
        assert place.lending.streams == 1
        client.writer.transport.resume_reading()
        answer = await client.read()
        assert answer.complete
        assert len(answer.events()) == 6002
        assert place.lending.lent_total == 1
        client.close()

    served(loop, answering(6000, 0, "x" * 3000), test, limits=Limits(client_buffer_bytes_max=64 * 1024))


def test_what_the_owner_ends_is_let_go_of_by_its_worker(loop):
    """A client that takes nothing is dropped: neither it nor the engine is held open by the worker's own hold on them."""
    gone = asyncio.Event()

    async def script(_, engine):
        engine.stream()
        for number in range(50):
            engine.chunk(token(number))
            await asyncio.sleep(0.002)
        for number in range(6000):
            engine.chunk(token(number, "x" * 3000))
        await engine.gone.wait()
        gone.set()

    async def test(place):
        client = await RawClient.connect(place.port)
        client.send(CHAT, ASK)
        await place.lent()
        client.writer.transport.pause_reading()
        async with asyncio.timeout(WAIT_S):
            await gone.wait()
        assert place.meter.outcomes["client_slow"] == 1
        client.writer.transport.resume_reading()
        assert not (await client.read()).complete
        client.close()

    served(loop, script, test, limits=Limits(idle_s=1.0, client_buffer_bytes_max=64 * 1024))


def test_a_killed_worker_closes_its_streams_inside_their_answers_and_is_started_again(loop):
    async def test(place):
        client, other = await RawClient.connect(place.port), await RawClient.connect(place.port)
        client.send(CHAT, ASK)
        await place.lent()
        (pid,) = place.crew.pids()
        os.kill(pid, signal.SIGKILL)
        answer = await client.read()
        assert not answer.complete
        assert answer.events(), "no half event either"
        await until(lambda: place.lending.workers_lost == 1, "it is seen")
        assert place.meter.outcomes["truncated"] == 1
        (event,) = [each for each in place.sink.events if each.kind == "relay_worker_lost"]
        assert event.message == "worker-0 was ended by signal 9; 1 streams ended with it"
        place.engine.script = answering(20)
        assert (await other.ask(CHAT, ASK)).complete
        await until(lambda: place.lending.workers == 1, "another one has started")
        assert place.crew.pids() != [pid]
        place.engine.script = answering(200)
        other.send(CHAT, ASK)
        await place.lent()
        assert (await other.read()).complete
        client.close()
        other.close()

    served(loop, answering(5000), test)


def test_a_worker_that_hangs_takes_no_more_and_the_owner_relays(loop):
    """Its line is full some day: the streams stay, and nothing is lost but what it has."""

    async def test(place):
        (pid,) = place.crew.pids()
        os.kill(pid, signal.SIGSTOP)
        (line,) = place.lending._posts
        while line._packets.offer(b"\x92\xa6recall\x01", []):
            pass
        client = await RawClient.connect(place.port)
        assert (await client.ask(CHAT, ASK)).complete
        assert place.lending.lent_total == 0
        os.kill(pid, signal.SIGCONT)
        client.send(CHAT, ASK)
        await place.lent()
        assert (await client.read()).complete
        client.close()

    served(loop, answering(200), test)


@pytest.mark.parametrize("room", [0, 1])
def test_a_worker_that_may_open_no_more_files_gives_back_at_once_what_it_is_lent(loop, room):
    """Of the two connections none, or one, comes along."""

    async def test(place):
        (pid,) = place.crew.pids()
        open_files = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        limit = [number for number in range(1000) if number not in open_files][room]
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
        client = await RawClient.connect(place.port)
        answer = await client.ask(CHAT, ASK)
        assert answer.complete
        assert len(answer.events()) == 202
        assert place.lending.lent_total == place.lending.early_total == 3
        assert place.lending.workers == 1
        assert {int(name) for name in os.listdir(f"/proc/{pid}/fd")} == open_files
        client.close()

    served(loop, answering(200), test)


def test_a_program_that_can_not_be_started_is_tried_again_and_said(capsys):
    async def main():
        crew = ProcessCrew(1, ("/nowhere/at/all",), print)
        crew.start(None)
        await asyncio.sleep(0.3)
        await crew.close()

    asyncio.run(main())
    assert "worker-0 can't be started" in capsys.readouterr().out


def test_packets_wait_in_order_and_are_no_more_than_a_bound(loop):
    async def main():
        left, right = pair()
        got, over = [], asyncio.Event()
        sender = Packets(left, lambda *_: None, lambda: None)
        sent = 0
        while sender.post(b"%d" % sent):
            sent += 1
        assert sent >= POSTS_MAX
        assert not sender.offer(b"now", []), "it would overtake those that wait"
        receiver = Packets(right, lambda packet, files: got.append((packet, files)), over.set)
        await until(lambda: len(got) == sent, "all came")
        assert got == [(b"%d" % number, []) for number in range(sent)]
        sender.close()
        async with asyncio.timeout(WAIT_S):
            await over.wait()
        assert not receiver.post(b"to nobody")

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


def test_packets_that_wait_are_bound_in_bytes_too(loop):
    """Large ones made 4 GiB of as many as may wait."""

    async def main():
        left, right = pair()
        sender = Packets(left, lambda *_: None, lambda: None)
        packet = bytes(60_000)
        sent = 0
        while sender.post(packet):
            sent += 1
        waiting = sum(len(post) for post in sender._posts)
        assert POSTS_BYTES_MAX - len(packet) < waiting <= POSTS_BYTES_MAX
        got, over = [], asyncio.Event()
        Packets(right, lambda packet, _: got.append(len(packet)), over.set)
        await until(lambda: len(got) == sent, "all came")
        assert sender.post(packet), "there is room again"
        sender.close()
        async with asyncio.timeout(WAIT_S):
            await over.wait()
        assert got == [len(packet)] * (sent + 1)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


class SlowToDie:
    """A process that has closed its end, and is seen to be gone at the fifth look; whoever waits for it holds up all."""

    pid = 1
    made: list["SlowToDie"] = []

    def __init__(self, *_, **__):
        self.looks = self.kills = 0
        self.made.append(self)

    def kill(self):
        self.kills += 1

    def poll(self):
        self.looks += 1
        return -9 if self.looks >= 5 else None


def test_a_worker_that_is_slow_to_die_holds_nobody_up(loop, monkeypatch):
    """The owner waited for it, and relayed nothing meanwhile."""

    class Overseer:
        lost_why = ""

        def told(self, *_):
            raise AssertionError("it never spoke")

        def lost(self, _, why):
            self.lost_why = why

    async def main():
        crew, overseer = ProcessCrew(1, ("any",), print), Overseer()
        crew.start(overseer)  # the other end of its line is nobody's, and closes at once
        await until(lambda: SlowToDie.made[0].looks, "its end is heard of")
        assert overseer.lost_why == ""
        await until(lambda: overseer.lost_why, "it is told of")
        assert overseer.lost_why == "was ended by signal 9"
        await until(lambda: len(SlowToDie.made) == 2, "the next one")
        await until(lambda: SlowToDie.made[1].looks, "and its end")
        await crew.close()
        assert SlowToDie.made[1].looks == 5, "it is reaped by who closes"

    monkeypatch.setattr(processes.subprocess, "Popen", SlowToDie)
    monkeypatch.setattr(SlowToDie, "made", [])
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())
