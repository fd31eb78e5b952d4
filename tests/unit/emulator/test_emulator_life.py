"""From a cold start through its stages to SIGTERM, both of vLLM's ways."""

import asyncio

import pytest

from forebay.emulator.behaviour import Behaviour
from forebay.emulator.engine_server import EngineServer, LoadFailed
from forebay.emulator.faults import Fault, Faults, Kind
from forebay.testing.clock import LoopClock
from forebay.testing.loop import run


async def refused(port):
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


@pytest.mark.parametrize(("options", "seconds"), [({"cold": True}, 115.0), ({"warm": True}, 15.0), ({}, 0.0)])
def test_connections_are_refused_until_it_is_ready(profile, options, seconds):
    async def main():
        engine = EngineServer(profile, "tiny", LoopClock(), **options)
        task = asyncio.create_task(engine.start(port=4000))
        if seconds:
            await asyncio.sleep(seconds - 0.1)
            assert await refused(4000)
        await task
        at_s = asyncio.get_running_loop().time()
        assert not await refused(4000)
        await engine.stop()
        return at_s

    assert run(main) == pytest.approx(seconds)


def test_a_cold_start_reports_its_stages_when_asked_to(serve):
    async def main(world):
        seen = []
        for _ in range(13):
            answer = await world.get("/health")
            seen.append((answer.status, answer.body and answer.json["stage"]))
            other = await world.get("/v1/models")
            assert other.status == answer.status
            await asyncio.sleep(10)
        return seen, (await world.chat(2)).complete

    seen, complete = serve(main, cold=True, report_stages=True)
    assert seen == [(503, "provision")] * 10 + [(503, "weights"), (503, "init"), (200, b"")]
    assert complete


def test_jitter_is_drawn_from_the_seed(profile):
    def started(seed):
        async def main():
            engine = EngineServer(profile, "tiny", LoopClock(), cold=True, seed=seed, behaviour=Behaviour(start_jitter=0.2))
            await engine.start()
            at_s = asyncio.get_running_loop().time()
            await engine.stop()
            return at_s

        return run(main)

    assert started(1) == started(1)
    assert started(1) != started(2)
    assert all(115 * 0.8 <= started(seed) <= 115 * 1.2 for seed in range(5))


def test_out_of_memory_fails_the_start_while_it_loads(profile):
    async def main():
        engine = EngineServer(profile, "tiny", LoopClock(), cold=True, faults=Faults(Fault(Kind.OOM)))
        with pytest.raises(LoadFailed):
            await engine.start()
        return asyncio.get_running_loop().time()

    assert run(main) == pytest.approx(110.0)


def test_out_of_memory_of_a_reporting_engine_ends_its_process(profile):
    async def main():
        ended = asyncio.get_running_loop().create_future()
        engine = EngineServer(
            profile,
            "tiny",
            LoopClock(),
            warm=True,
            report_stages=True,
            faults=Faults(Fault(Kind.OOM)),
            on_exit=lambda *how: ended.set_result(how),
        )
        port = await engine.start()
        how = await ended
        return how, await refused(port)

    (code, why), is_refused = run(main)
    assert code == 1
    assert "memory" in why
    assert is_refused


def test_stopping_while_it_loads_leaves_nothing(profile):
    async def main():
        for report_stages in (False, True):
            engine = EngineServer(profile, "tiny", LoopClock(), cold=True, report_stages=report_stages)
            task = asyncio.create_task(engine.start(port=4000))
            await asyncio.sleep(1)
            await engine.stop()
            await asyncio.gather(task, return_exceptions=True)
            assert await refused(4000)
        return asyncio.get_running_loop().time()

    assert run(main) < 3


def test_by_default_sigterm_ends_streams_politely_and_quickly(serve):
    async def main(world):
        running = [asyncio.create_task(world.chat(500)) for _ in range(4)]
        await asyncio.sleep(0.1)
        whole = asyncio.create_task(world.chat(500, stream=False))
        await asyncio.sleep(0.9)
        ends = asyncio.create_task(world.engine.shut_down())
        await asyncio.sleep(0.01)
        health = await world.get("/health")
        answers = await asyncio.gather(*running, whole)
        streams_s = asyncio.get_running_loop().time()
        page = world.engine.stats
        await asyncio.sleep(1)
        is_refused = await refused(world.port)
        await ends
        return answers, health.status, streams_s, is_refused, asyncio.get_running_loop().time(), page.ended_abort.value

    answers, health, streams_s, is_refused, end_s, aborted = serve(main)
    assert health == 503
    assert streams_s < 1.1
    assert [answer.finish for answer in answers] == [["abort"]] * 5
    for answer in answers[:4]:
        assert answer.complete
        assert answer.events[-1][1] == "[DONE]"
        assert answer.usage["completion_tokens"] == len(answer.text_times) > 10
    # The fifth waited for a slot: it has nothing to show.
    assert answers[4].usage["completion_tokens"] == 0
    assert is_refused
    assert end_s == pytest.approx(3.0)
    assert aborted == 5


def test_with_a_shutdown_timeout_what_runs_and_waits_finishes(serve):
    async def main(world):
        running = [asyncio.create_task(world.chat(800)) for _ in range(6)]
        await asyncio.sleep(1)
        ends = asyncio.create_task(world.engine.shut_down(60))
        await asyncio.sleep(0.01)
        new = [await world.chat(1), await world.chat(1, stream=False)]
        health = (await world.get("/health")).status, (await world.get("/metrics")).status
        answers = await asyncio.gather(*running)
        last_s = asyncio.get_running_loop().time()
        await ends
        return answers, new, health, last_s, asyncio.get_running_loop().time(), await refused(world.port)

    answers, new, health, last_s, end_s, is_refused = serve(main)
    assert all(answer.complete and answer.finish == ["length"] for answer in answers)
    assert [answer.status for answer in new] == [500, 500]
    assert "after shutdown" in new[0].json["error"]["message"]
    assert health == (200, 200)
    assert end_s == pytest.approx(last_s, abs=0.01)
    assert end_s > 10.0
    assert is_refused


def test_a_graceful_shutdown_lingers_when_idle_and_aborts_at_its_timeout(serve):
    async def idle(world):
        await world.engine.shut_down(60)
        return asyncio.get_running_loop().time()

    async def busy(world):
        running = asyncio.create_task(world.chat(1000))
        await asyncio.sleep(1)
        await world.engine.shut_down(2)
        return await running

    assert serve(idle) == pytest.approx(9.0)
    answer = serve(busy)
    assert answer.finish == ["abort"]
    assert answer.complete
    assert answer.events[-1][0] == pytest.approx(3.0, abs=0.01)
