"""What survives what: each process of a running Forebay is killed in turn, under streams, and the others carry on."""

import asyncio
import json
import signal
import stat
import urllib.request

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("up crashes")]

CONFIG = """
pools:
  chat:
    model: llama-3.1-8b
    profile: slow
    engine: {kind: emulated, stop_grace: 1s}
    slo: {ttft: 20s, itl: 2s, attainment: 0.5}
    scaling:
      min: 2
      max: 3
      out: {waiting_per_replica: 1, for: 3s}
      in: {calm: 40s, every: 5s, margin: 0.05}
      buffer: false
      noise: 0
      replica_rate: 10/s
      cold_start: 5m
profiles:
  slow:
    base: llama-3.1-8b-h100
    step: {base: 500ms}
    sequences: 4
    cold_start: {provision: 0s, weights: 16GB, bandwidth: 16GB/s, init: 1s}
tiers:
  interactive: {rank: 0, ttft: 20s, longest_wait: 1h}
teams:
  demo:
    keys: [{key: sk-demo-interactive, tier: interactive}]
gateway: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
speed: 10
"""
"""Four places a replica, and a token each 50 ms of real time: streams of seconds at few chunks a second. An engine that is
told to stop while it streams is cut a (real) second later."""


@pytest.fixture(scope="module")
def fleet(up_module):
    return up_module(CONFIG).until_ready()


def pids(engines):
    return {name: process.pid for name, process in engines.items()}


def not_whole(streams):
    return [stream for stream in streams if not stream.whole]


def test_the_controller_is_killed(fleet, wait_until_async):
    """Streams go on, new requests are served, the engines are taken over as they are, and the fleet scales again."""

    async def main():
        async with fleet.client() as client:
            streams = await fleet.begun(client, 4, 60)
            fleet.child("controller").kill()
            meanwhile = await fleet.stream(client, 3)
            await wait_until_async(lambda: fleet.status()["term"] > term, "a new controller")
            return [meanwhile, *await asyncio.gather(*streams)]

    before = fleet.ready(2)
    engines, shims, term = pids(fleet.engines()), pids(fleet.shims()), fleet.status()["term"]
    assert not_whole(asyncio.run(main())) == []
    after = fleet.ready(2, "after the controller was killed")
    assert (pids(fleet.engines()), pids(fleet.shims())) == (engines, shims)
    assert [row["url"] for row in after["detail"]] == [row["url"] for row in before["detail"]]
    assert [row["restarts"] for row in after["detail"]] == [0, 0]
    assert after["gpu_hours"] > before["gpu_hours"]
    assert fleet.status()["gateways"] == {"gateway-0": "ok"}
    assert fleet.cli("explain").returncode == 0

    async def more_than_two_can_bear():
        async with fleet.client() as client:
            streams = [asyncio.create_task(fleet.stream(client, 50)) for _ in range(20)]
            await wait_until_async(lambda: fleet.pool()["replicas"].get("ready") == 3, "a third replica")
            return await asyncio.gather(*streams)

    assert not_whole(asyncio.run(more_than_two_can_bear())) == []


def test_load_goes_and_a_replica_is_drained_under_streams(fleet, wait_until_async):
    """Three streams are kept alive until the third replica has gone: each of them ends whole."""

    async def keep_streaming(client, over, seen):
        # The first is under way when the calm has lasted, and has more than a second to go; the others only keep the fleet used.
        seen.append(await fleet.stream(client, 100))
        while not over.is_set():
            seen.append(await fleet.stream(client, 10))

    async def main():
        over, seen = asyncio.Event(), []
        async with fleet.client() as client:
            streaming = [asyncio.create_task(keep_streaming(client, over, seen)) for _ in range(3)]
            await wait_until_async(lambda: fleet.pool()["replicas"] == {"ready": 2}, "the third replica to go")
            over.set()
            await asyncio.gather(*streaming)
        return seen

    if fleet.pool()["replicas"] != {"ready": 3}:
        asyncio.run(burst(fleet, wait_until_async))
    streams = asyncio.run(main())
    assert len(streams) >= 3
    assert not_whole(streams) == []
    kinds = [event["kind"] for event in fleet.events()]
    assert "replica_draining" in kinds
    assert kinds.index("replica_stopped") > kinds.index("replica_draining")


async def burst(fleet, wait_until_async):
    """As many streams at once as make a third replica be started."""
    async with fleet.client() as client:
        streams = [asyncio.create_task(fleet.stream(client, 50)) for _ in range(20)]
        await wait_until_async(lambda: fleet.pool()["replicas"].get("ready") == 3, "a third replica")
        return await asyncio.gather(*streams)


def test_the_gateway_is_killed(fleet, wait_until):
    """Its streams are cut, for it was what held them; the address answers on, and the engines do not notice."""

    async def main():
        async with fleet.client() as client:
            cut = await fleet.begun(client, 2, 200)
            fleet.child("gateway").kill()
            meanwhile = await asyncio.gather(*(fleet.stream(client, 3) for _ in range(5)))
            return await asyncio.gather(*cut), meanwhile

    fleet.ready(2)
    engines, address = pids(fleet.engines()), fleet.gateway
    cut, meanwhile = asyncio.run(main())
    assert all(stream.error for stream in cut), "a stream that is cut must not look whole"
    assert not_whole(meanwhile) == [], "connections made while there was no gateway wait for the next one"
    assert fleet.gateway == address
    wait_until(lambda: [row["streams"] for row in fleet.ready(2)["detail"]] == [0, 0], "the engines to be free again")
    assert pids(fleet.engines()) == engines
    assert (
        "the gateway was killed (SIGKILL: by somebody, or by the kernel because memory ran out); starting it again"
        in fleet.output.read_text()
    )


def test_the_controller_is_replaced_in_order(fleet, wait_until):
    """As for an upgrade: SIGTERM makes it leave, not take its engines with it."""

    async def main():
        async with fleet.client() as client:
            streams = await fleet.begun(client, 2, 40)
            fleet.child("controller").send_signal(signal.SIGTERM)
            return await asyncio.gather(*streams)

    fleet.ready(2)
    engines, term = pids(fleet.engines()), fleet.status()["term"]
    assert not_whole(asyncio.run(main())) == []
    wait_until(lambda: fleet.status()["term"] == term + 1, "the next controller")
    assert fleet.ready(2)["alerts"] == []
    assert pids(fleet.engines()) == engines
    assert "the controller ended with exit code 0; starting it again" in fleet.output.read_text()


def test_the_gateway_is_replaced_in_order(fleet, wait_until, wait_until_async):
    """As for an upgrade: its streams end whole, and who connects meanwhile waits for the next one."""

    async def main():
        async with fleet.client() as client, fleet.client() as newcomer:
            streams = await fleet.begun(client, 2, 40)
            before.send_signal(signal.SIGTERM)
            await wait_until_async(lambda: "gateway_drain " in log.read_text(), "the old gateway to listen no more")
            meanwhile = await asyncio.gather(*(fleet.stream(newcomer, 3) for _ in range(3)))
            return [*await asyncio.gather(*streams), *meanwhile]

    fleet.ready(2)
    before, log = fleet.child("gateway"), fleet.state / "logs" / "gateway.log"
    assert not_whole(asyncio.run(main())) == []
    wait_until(lambda: fleet.child("gateway").pid != before.pid, "the next gateway")
    wait_until(lambda: "gateway_left" in [event["kind"] for event in fleet.events()], "its goodbye: its silence was no outage")
    assert "the gateway ended with exit code 0; starting it again" in fleet.output.read_text()


def test_the_gateway_is_killed_while_the_controller_is_stopped(fleet, wait_until):
    """The next one serves by the roster that the last one kept, until the controller goes on and says what is so now."""

    async def meanwhile():
        async with fleet.client() as client:
            return await asyncio.gather(*(fleet.stream(client, 3) for _ in range(8)))

    fleet.ready(2)
    controller, log = fleet.child("controller"), fleet.state / "logs" / "gateway.log"
    kept = fleet.state / "gateway-0.roster"
    wait_until(lambda: len(json.loads(kept.read_bytes())["roster"]["pools"][0]["replicas"]) == 2, "the roster to be kept")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    controller.suspend()
    try:
        fleet.child("gateway").kill()
        assert not_whole(asyncio.run(meanwhile())) == []
        assert controller.status() == psutil.STATUS_STOPPED, "nobody else could have said it"
        assert log.read_text().count(" roster_kept ") == 1
        wait_until(lambda: "roster kept: the controller does not answer: serving by" in fleet.output.read_text(), "the word of it")
    finally:
        controller.resume()
    wait_until(lambda: fleet.status()["gateways"] == {"gateway-0": "ok"}, "the controller to hear the gateway")
    assert not_whole(asyncio.run(meanwhile())) == []
    fleet.ready(2, "after the controller went on")


def test_an_engine_is_killed(fleet, wait_until):
    """Its streams go on where the other replica's do, and end whole like them; and it comes back."""

    async def main():
        async with fleet.client() as client:
            streams = await fleet.begun(client, 6, 60)
            fleet.engines()[victim].kill()
            return await asyncio.gather(*streams)

    pool = fleet.ready(2)
    victim = pool["detail"][0]["id"]
    before = continued(fleet)
    assert not_whole(asyncio.run(main())) == []
    assert 0 < continued(fleet) - before < 6, "six streams were spread over two replicas"
    wait_until(lambda: restarts(fleet.pool(), victim) == 1, "the restart")
    assert restarts(fleet.ready(2, "after an engine was killed"), victim) == 1

    async def both_are_needed():
        async with fleet.client() as client:
            return await asyncio.gather(*(fleet.stream(client, 5) for _ in range(8)))

    assert not_whole(asyncio.run(both_are_needed())) == []
    ended = [event["message"] for event in fleet.events() if event["kind"] == "engine_ended"]
    assert any(words.startswith(victim) and ("signal 9" in words or "SIGKILL" in words) for words in ended), ended


def continued(fleet):
    """Streams that went on elsewhere so far."""
    with urllib.request.urlopen(f"{fleet.gateway}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("forebay_continued_total{"))


def restarts(pool, replica):
    return next(row["restarts"] for row in pool["detail"] if row["id"] == replica)


def test_the_supervisor_is_killed_and_nothing_is_left(fleet, wait_until):
    async def main():
        async with fleet.client() as client:
            streams = await fleet.begun(client, 2, 400)
            fleet.census()
            assert len(fleet.left()) >= 7, "supervisor, controller, gateway, two shims, two engines"
            fleet.process.send_signal(signal.SIGKILL)
            return await asyncio.gather(*streams)

    fleet.ready(2)
    assert all(stream.error for stream in asyncio.run(main()))
    assert fleet.wait() == -signal.SIGKILL
    wait_until(lambda: fleet.left() == [], "every process to end", 10)
    status = fleet.cli("status", "--state", str(fleet.state))
    assert status.returncode == 1
    assert "is `forebay up` running" in status.stderr


def test_a_second_signal_ends_everything_at_once(up, wait_until):
    async def main():
        async with fleet.client() as client:
            streams = await fleet.begun(client, 2, 2000)
            fleet.census()
            fleet.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "forebay: stopping" in fleet.output.read_text(), "the first signal to be heard")
            assert fleet.process.poll() is None
            fleet.process.send_signal(signal.SIGINT)
            return await asyncio.gather(*streams)

    fleet = up(CONFIG).until_ready()
    assert all(stream.error for stream in asyncio.run(main()))
    assert fleet.wait() == 1
    assert fleet.left() == []
