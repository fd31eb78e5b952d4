"""Each fault does what real engines were seen to do, and ends when it is cleared."""

import asyncio
import math

import pytest

from forebay.engine.steptime import step_s
from forebay.testing.loop import network


@pytest.mark.parametrize("after_tokens", [0, 7])
def test_a_crash_cuts_streams_and_closes_the_port(serve, after_tokens):
    how = []

    async def main(world):
        task = asyncio.create_task(world.chat(500))
        await asyncio.sleep(0.5)
        tokens = world.engine.stats.generation_tokens.value
        told = await world.fault(kind="crash", after_tokens=after_tokens)
        answer = await task
        with pytest.raises(ConnectionRefusedError):
            await world.connect()
        return told.status, answer, world.engine.stats.generation_tokens.value - tokens

    told, answer, tokens = serve(main, on_exit=lambda *given: how.append(given))
    assert told == 200
    assert not answer.complete
    assert answer.finish == []
    assert len(answer.text_times) > 10
    # Ten milliseconds are less than a step.
    assert after_tokens <= tokens <= max(1, after_tokens)
    assert how == [(1, "crash on command")]


def test_a_dead_engine_says_so_inside_streams_and_then_exits(serve):
    how = []

    async def main(world):
        stream, whole = (asyncio.create_task(world.chat(500, stream=stream)) for stream in (True, False))
        await asyncio.sleep(0.5)
        await world.fault(kind="engine_dead")
        health = await world.get("/health")
        answers = await asyncio.gather(stream, whole)
        await asyncio.sleep(2.1)
        return answers, health.status

    (stream, whole), health = serve(main, on_exit=lambda *given: how.append(given))
    assert stream.complete
    assert stream.chunks[-1]["error"]["code"] == 500
    assert stream.events[-1][1] == "[DONE]"
    assert whole.status == 500
    assert health == 503
    assert how[0][0] == 1


def test_a_hang_stops_tokens_and_gauges_while_health_stays_good(serve):
    async def main(world):
        first = asyncio.create_task(world.chat(100))
        await asyncio.sleep(0.5)
        await world.fault(kind="hang")
        before = await world.metrics()
        second = asyncio.create_task(world.chat(100))
        await asyncio.sleep(100)
        during = await world.metrics(), (await world.get("/health")).status
        await world.fault(kind="clear")
        cleared_s = asyncio.get_running_loop().time()
        return before, during, cleared_s, await first, await second

    before, (during, health), cleared_s, first, second = serve(main)
    assert health == 200
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:generation_tokens_total", "vllm:kv_cache_usage_perc"):
        assert during[name] == before[name]
    assert during["vllm:num_requests_running"] == 1
    assert first.complete
    assert second.complete
    gaps = [b - a for a, b in zip(first.text_times, first.text_times[1:], strict=False)]
    assert sum(gap > 1 for gap in gaps) == 1
    assert max(gaps) == pytest.approx(100, abs=0.1)
    assert second.text_times[0] > cleared_s
    # It goes on from where it stopped: what it missed is not made up for.
    assert min(gaps) > 0.01


def test_what_comes_to_a_hung_idle_engine_starts_when_it_goes_on(serve, profile):
    async def main(world):
        await world.fault(kind="hang")
        task = asyncio.create_task(world.chat(3))
        await asyncio.sleep(10)
        await world.fault(kind="clear")
        return asyncio.get_running_loop().time(), await task

    cleared_s, answer = serve(main)
    assert answer.text_times[0] == pytest.approx(cleared_s + step_s(profile.law, 0, 0, 10), abs=1e-6)


def test_a_client_may_leave_a_hung_engine(serve):
    async def main(world):
        stays, leaves = await world.connect(), await world.connect()
        for client in (stays, leaves):
            client.send("POST", "/v1/completions", {"prompt": "x", "max_tokens": 30, "stream": True})
        await asyncio.sleep(0.1)
        await world.fault(kind="hang")
        leaves.close()
        await asyncio.sleep(1)
        await world.fault(kind="clear", only="hang")
        return await stays.read(), await world.metrics()

    answer, page = serve(main)
    assert answer.complete
    assert page['vllm:request_success_total{finished_reason="length"}'] == 1


def test_slow_steps_take_the_factor_and_recover(serve):
    async def main(world):
        task = asyncio.create_task(world.chat(60))
        await asyncio.sleep(0.3)
        await world.fault(kind="slow", factor=10)
        await asyncio.sleep(1.0)
        await world.fault(kind="clear")
        return await task

    answer = serve(main)
    gaps = [b - a for a, b in zip(answer.text_times, answer.text_times[1:], strict=False)]
    slow = [gap for gap in gaps if gap > 0.1]
    assert 8 <= len(slow) <= 11
    assert all(gap == pytest.approx(0.11, rel=0.05) for gap in slow)
    assert gaps[-1] == pytest.approx(0.011, rel=0.05)


def test_metrics_can_be_missing_closed_frozen_nan_or_renamed(serve, parse_page):
    async def main(world):
        await world.chat(5)
        seen = {}
        for mode, more in (("missing", {}), ("missing", {"status": 500}), ("frozen", {}), ("nan", {}), ("renamed", {})):
            await world.fault(kind="metrics", mode=mode, **more)
            await world.chat(5)
            answer = await world.get("/metrics")
            seen[mode, *more.values()] = answer.status if answer.status != 200 else parse_page(answer.body)
        await world.fault(kind="metrics", mode="closed")
        client = await world.connect()
        client.send("GET", "/metrics")
        with pytest.raises(ConnectionError):
            await client.reader.read(-1)
        await world.fault(kind="clear")
        return seen, await world.metrics()

    seen, after = serve(main)
    assert seen[("missing",)] == 404
    assert seen["missing", 500] == 500
    assert seen[("frozen",)]["vllm:generation_tokens_total"] == 15
    assert math.isnan(seen[("nan",)]["vllm:kv_cache_usage_perc"])
    assert math.isnan(seen[("nan",)]["vllm:num_requests_waiting"])
    assert seen[("nan",)]["vllm:generation_tokens_total"] == 25
    renamed = seen[("renamed",)]
    assert renamed["vllm:gpu_cache_usage_perc"] == 0
    assert "vllm:kv_cache_usage_perc" not in renamed
    assert after["vllm:kv_cache_usage_perc"] == 0
    assert after["vllm:generation_tokens_total"] == 30


def test_requests_can_be_refused_for_a_number_of_times(serve):
    async def main(world):
        await world.fault(kind="all_500", times=2)
        failed = [(await world.chat(1)).status for _ in range(3)]
        healthy = (await world.get("/health")).status
        await world.fault(kind="error_first_event", times=1)
        return failed, healthy, await world.chat(1), await world.chat(1)

    failed, healthy, first, second = serve(main)
    assert failed == [500, 500, 200]
    assert healthy == 200
    assert first.status == 200
    assert first.chunks[0]["error"]["code"] == 503
    assert second.finish == ["length"]


def test_faults_can_be_listed_and_deleted(serve):
    async def main(world):
        await world.fault(kind="slow", factor=2)
        listed = await world.get("/emulator/fault")
        client = await world.connect()
        deleted = await client.request("DELETE", "/emulator/fault")
        return listed.json, deleted.json, world.engine.core.engine.slowdown

    listed, deleted, slowdown = serve(main)
    assert [fault["kind"] for fault in listed] == ["slow"]
    assert deleted == []
    assert slowdown == 1.0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ({"kind": "meteor"}, "hang"),
        ({"kind": "slow", "factor": 0}, "factor"),
        ({"kind": "slow", "faktor": 2}, "faktor"),
        ({"kind": "metrics", "mode": "blue"}, "blue"),
        ({"kind": "metrics", "status": 302}, "status"),
        ({}, "kind"),
    ],
)
def test_a_command_that_makes_no_sense_is_told_what_does(serve, command, words):
    async def main(world):
        return await world.fault(**command), (await world.chat(1)).complete

    answer, works = serve(main)
    assert answer.status == 400
    assert words in answer.json["error"]["message"]
    assert "clear" in answer.json["error"]["message"]
    assert works


def test_a_reset_connection_frees_its_cache(serve, body):
    async def main(world):
        client = await world.connect()
        client.send("POST", "/v1/chat/completions", body(500))
        await asyncio.sleep(0.2)
        running = world.engine.core.engine.running
        network().cut(world.port)
        return running, world.engine.core.engine.running, world.engine.core.engine.kv_usage

    assert serve(main) == (1, 0, 0.0)
