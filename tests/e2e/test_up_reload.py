"""A running Forebay whose configuration file is edited: a key comes and goes under a live stream, and a bad file changes nothing."""

import asyncio
import signal
import urllib.request

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.xdist_group("up usage")]

CONFIG = """
pools:
  chat:
    model: llama-3.1-8b
    profile: slow
    engine: {kind: emulated, stop_grace: 1s}
    slo: {ttft: 20s, itl: 2s, attainment: 0.5}
    scaling: {min: 1, max: 1, cold_start: 5m}
profiles:
  slow:
    base: llama-3.1-8b-h100
    step: {base: 100ms}
    cold_start: {provision: 0s, weights: 16GB, bandwidth: 16GB/s, init: 1s}
teams:
  search:
    keys: [{key: sk-one-0123456789, tier: interactive}]
gateway: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
"""


def test_a_key_is_changed_under_a_stream_and_a_bad_file_is_refused(up, wait_until, wait_until_async, fetch):
    fleet = up(CONFIG).until_ready()
    file = fleet.folder / "forebay.yaml"
    gateway = fleet.child("gateway").pid

    def gauge(name):
        page = fleet_metrics(fleet)
        return next(line.split()[-1] for line in page.splitlines() if line.startswith(name))

    async def main():
        async with fleet.client("sk-one-0123456789") as old, fleet.client("sk-two-0123456789") as new:
            (living,) = await fleet.begun(old, 1, 60)
            file.write_text(CONFIG.replace("sk-one", "sk-two"))
            await wait_until_async(lambda: gauge('forebay_config_reloads_total{result="taken"}') == "1.0", "the new configuration")
            assert (await fleet.stream(new, 3)).whole
            assert "Incorrect or missing API key" in (await fleet.stream(old, 3)).error
            file.write_text(CONFIG.replace("sk-one", "sk-two").replace("max: 1", "max: 9") + "nonsense: 1\n")
            await wait_until_async(lambda: gauge("forebay_config_refused") == "1.0", "the bad one to be refused")
            assert (await fleet.stream(new, 3)).whole
            return await living

    assert asyncio.run(main()).whole
    assert fleet.child("gateway").pid == gateway
    assert "config_refused" in (fleet.state / "logs" / "gateway.log").read_text()
    # One that starts again serves by the last that was taken, not by the file that is wrong.
    fleet.child("gateway").send_signal(signal.SIGKILL)

    async def again():
        async with fleet.client("sk-two-0123456789") as new:
            return await fleet.stream(new, 3)

    assert wait_until(lambda: asyncio.run(again()).whole, "the next gateway")


def fleet_metrics(fleet):
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{fleet.gateway}/metrics", timeout=20) as answer:
        return answer.read().decode()
