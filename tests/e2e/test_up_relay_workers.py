"""`forebay up` with relay workers: each kind of process is killed under live streams, the configuration is read again, and all ends well."""

import asyncio
import signal
import urllib.request

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.xdist_group("up workers")]

CONFIG = """
pools:
  chat:
    model: llama-3.1-8b
    profile: slow
    engine: {kind: emulated, stop_grace: 1s}
    slo: {ttft: 20s, itl: 2s, attainment: 0.5}
    scaling: {min: 2, max: 2, cold_start: 5m}
profiles:
  slow:
    base: llama-3.1-8b-h100
    step: {base: 30ms}
    cold_start: {provision: 0s, weights: 16GB, bandwidth: 16GB/s, init: 1s}
teams:
  demo:
    keys: [{key: sk-demo-interactive, tier: interactive}]
gateway: {listen: "127.0.0.1:0", workers: 2}
admin: {listen: "127.0.0.1:0"}
"""
STREAMS = 12


@pytest.fixture(scope="module")
def fleet(up_module):
    made = up_module(CONFIG).until_ready()
    made.ready(2)
    return made


def metric(fleet, name):
    page = urllib.request.urlopen(f"{fleet.gateway}/metrics", timeout=10).read().decode()
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


def workers(fleet):
    fleet.census()
    return [process for process in fleet.child("gateway").children() if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def not_whole(streams):
    return [stream for stream in streams if not stream.whole]


async def lent(fleet, wait_until_async, client, tokens):
    """So many streams, all at workers."""
    await wait_until_async(lambda: metric(fleet, "forebay_relay_workers ") == 2, "two workers")
    streams = await fleet.begun(client, STREAMS, tokens)
    await wait_until_async(lambda: metric(fleet, "forebay_relay_worker_streams ") == STREAMS, "all streams to be lent")
    return streams


def test_streams_are_carried_by_both_workers_and_counted_by_the_owner(fleet, wait_until_async):
    async def main():
        async with fleet.client() as client:
            before = metric(fleet, "forebay_output_tokens_total")
            streams = await asyncio.gather(*await lent(fleet, wait_until_async, client, 100))
            again = await asyncio.gather(*await lent(fleet, wait_until_async, client, 100))  # over the same connections
            return [*streams, *again], metric(fleet, "forebay_output_tokens_total") - before

    streams, counted = asyncio.run(main())
    assert not_whole(streams) == []
    assert counted == 2 * STREAMS * 100
    assert len(workers(fleet)) == 2
    assert metric(fleet, "forebay_relay_streams_back_early_total") == 0


def test_a_replica_is_killed_and_no_stream_is_truncated(fleet, wait_until_async):
    async def main():
        async with fleet.client() as client:
            streams = await lent(fleet, wait_until_async, client, 150)
            next(iter(fleet.engines().values())).kill()
            return await asyncio.gather(*streams)

    assert not_whole(asyncio.run(main())) == []
    assert metric(fleet, "forebay_continued_total") >= 1
    fleet.ready(2, "after one was killed")


def test_a_worker_is_killed_and_only_its_streams_end_and_not_as_if_they_were_whole(fleet, wait_until_async):
    async def main():
        async with fleet.client() as client:
            streams = await lent(fleet, wait_until_async, client, 150)
            workers(fleet)[0].kill()
            meanwhile = await fleet.stream(client, 5)
            return meanwhile, await asyncio.gather(*streams)

    meanwhile, streams = asyncio.run(main())
    assert meanwhile.whole
    cut = not_whole(streams)
    assert len(cut) == STREAMS // 2
    assert all(stream.error and stream.finish is None and stream.usage_tokens is None for stream in cut)
    assert metric(fleet, "forebay_relay_streams_lost_total") == len(cut)
    assert "relay_worker_lost worker-" in (fleet.state / "logs" / "gateway.log").read_text()
    again = asyncio.run(_whole(fleet, wait_until_async))
    assert not_whole(again) == []


async def _whole(fleet, wait_until_async):
    async with fleet.client() as client:
        return await asyncio.gather(*await lent(fleet, wait_until_async, client, 60))


def test_a_changed_configuration_cuts_nothing_and_another_number_of_workers_is_refused(fleet, wait_until_async):
    file = fleet.folder / "forebay.yaml"

    async def main():
        async with fleet.client() as client:
            streams = await lent(fleet, wait_until_async, client, 150)
            file.write_text(CONFIG + "limits: {idle: 5m}\n")
            fleet.child("gateway").send_signal(signal.SIGHUP)
            await wait_until_async(lambda: metric(fleet, 'forebay_config_reloads_total{result="taken"}') == 1, "the new one")
            file.write_text(CONFIG.replace("workers: 2", "workers: 3"))
            await wait_until_async(lambda: metric(fleet, "forebay_config_refused ") == 1, "the bad one")
            return await asyncio.gather(*streams)

    assert not_whole(asyncio.run(main())) == []
    assert "gateway.workers" in (fleet.state / "logs" / "gateway.log").read_text()


def test_the_gateway_is_killed_and_its_workers_end_with_it(fleet, wait_until, wait_until_async):
    before = workers(fleet)
    fleet.child("gateway").kill()
    wait_until(lambda: not any(process.is_running() for process in before), "its workers to end")
    wait_until(lambda: metric(fleet, "forebay_relay_workers ") == 2, "the next one's workers")
    assert not_whole(asyncio.run(_whole(fleet, wait_until_async))) == []


def test_a_stop_lets_streams_end_that_workers_carry(fleet, wait_until_async):
    async def main():
        async with fleet.client() as client:
            streams = await lent(fleet, wait_until_async, client, 100)
            for process in workers(fleet):
                process.terminate()  # as where all processes of a service are told
            fleet.process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*streams)

    assert not_whole(asyncio.run(main())) == []
    assert fleet.wait() == 0
    assert fleet.left() == []
