"""Two gateway processes behind one address, as people run them: each has replicas of its own, and each process may be killed."""

import asyncio
import collections
import json
import signal
import socket
import subprocess
import sys
import urllib.request

import openai
import psutil
import pytest
from typer.testing import CliRunner

from forebay.cli.main import app

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("up several")]

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
    step: {base: 500ms}
    sequences: 16
    cold_start: {provision: 0s, weights: 16GB, bandwidth: 16GB/s, init: 1s}
tiers:
  interactive: {rank: 0, ttft: 20s, longest_wait: 1h}
teams:
  demo:
    keys: [{key: sk-demo-interactive, tier: interactive}]
gateway: {listen: "127.0.0.1:0", count: 2}
admin: {listen: "127.0.0.1:0"}
speed: 10
"""
"""A token each 50 ms of real time, as in the other tests of crashes."""


@pytest.fixture(scope="module")
def fleet(up_module):
    return up_module(CONFIG).until_ready()


def gateways(fleet):
    """Process by the gateway's name."""
    found = {}
    for process in psutil.Process(fleet.process.pid).children():
        try:
            words = process.cmdline()
        except psutil.NoSuchProcess:
            continue  # it was just killed
        if "forebay.app.gateway_main" in words:
            found[words[words.index("--name") + 1]] = process
    return found


def holders(fleet):
    """Gateway by replica."""
    return {row["id"]: row["gateway"] for row in fleet.pool()["detail"]}


def shared_out(fleet):
    """Each has one of the two."""
    return sorted(holders(fleet).values()) == ["gateway-0", "gateway-1"]


def test_explain_finds_a_request_whichever_gateway_answered_it(fleet):
    """Behind the shared address it was a lottery: the gateway that was asked may be the other one."""
    own = own_addresses(fleet)
    assert list(own) == ["gateway-0", "gateway-1"]
    ready = {name: json.loads((fleet.state / f"{name}.ready").read_text())["gateway"] for name in own}
    assert ready == own
    output = fleet.output.read_text()
    assert all(f"{name} alone: {url}" in output for name, url in own.items())

    async def main():
        async with fleet.client() as client:
            for number in range(6):
                await asked(client, 1, request_id=f"req-lottery-{number}")

    asyncio.run(main())
    for number in range(6):
        for _ in range(2):
            words = ["--request", f"req-lottery-{number}", "--key", "sk-demo-interactive", "--state", str(fleet.state), "--json", "-"]
            result = CliRunner().invoke(app, ["explain", *words], catch_exceptions=False)
            assert json.loads(result.stdout)["outcome"] == "completed"


def test_a_record_is_told_at_the_shared_address_whichever_gateway_takes_the_question(fleet):
    """Of eight questions three were answered 404: each gateway knew its own requests only."""

    async def main():
        async with fleet.client() as client:
            for number in range(8):
                await asked(client, 1, request_id=f"req-asked-{number}")

    asyncio.run(main())
    for number in range(8):
        url = f"{fleet.gateway}/forebay/v1/requests/req-asked-{number}"
        request = urllib.request.Request(url, headers={"authorization": "Bearer sk-demo-interactive"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["outcome"] == "completed"


async def asked(client, count, tokens=5, request_id=None):
    """``count`` requests at once, each on a connection of its own; by whom each was answered, and how often it was forwarded."""

    async def one():
        answer = await client.chat.completions.with_raw_response.create(
            model="llama-3.1-8b",
            messages=[{"role": "user", "content": "Count."}],
            max_tokens=tokens,
            extra_body={"ignore_eos": True},
            extra_headers={"connection": "close", **({"x-request-id": request_id} if request_id else {})},
        )
        assert answer.parse().usage.completion_tokens == tokens
        return answer.headers["x-forebay-replica"], answer.headers.get("x-forebay-gateway", "")

    return collections.Counter(await asyncio.gather(*(one() for _ in range(count))))


def test_each_has_a_replica_and_all_are_used(fleet, wait_until):
    fleet.ready(2)
    wait_until(lambda: shared_out(fleet), "a replica each")
    assert fleet.status()["gateways"] == {"gateway-0": "ok", "gateway-1": "ok"}

    async def main():
        async with fleet.client() as client:
            return await asked(client, 24)

    answered = asyncio.run(main())
    assert sum(answered.values()) == 24


def test_streams_of_the_one_do_not_notice_the_other_ones_death_and_its_replica_is_used_by_the_next_process(fleet, wait_until):
    wait_until(lambda: shared_out(fleet), "a replica each")
    before = gateways(fleet)

    async def main():
        async with fleet.client() as client:
            streams = await fleet.begun(client, 8, 100)
            before["gateway-1"].kill()
            meanwhile = await asked(client, 6)
            return await asyncio.gather(*streams), meanwhile

    streams, meanwhile = asyncio.run(main())
    assert sum(meanwhile.values()) == 6, "whoever lives accepts"
    whole = [stream for stream in streams if stream.whole]
    assert all(stream.whole or stream.error for stream in streams), "what is cut does not look whole"
    after = gateways(fleet)
    assert after["gateway-0"].pid == before["gateway-0"].pid
    wait_until(lambda: gateways(fleet).get("gateway-1", before["gateway-1"]).pid != before["gateway-1"].pid, "the next process")
    wait_until(lambda: shared_out(fleet) and fleet.status()["gateways"]["gateway-1"] == "ok", "a replica each again")
    assert len(whole) < 8 or meanwhile, "some streams were the other one's"


def test_conversations_go_on_whichever_gateway_accepts_and_after_one_was_killed(fleet, wait_until):
    """Via the one that had not answered it was 404, and so was all that was answered before a restart."""
    wait_until(lambda: shared_out(fleet), "a replica each")

    async def turn(client, previous=None):
        more = {} if previous is None else {"previous_response_id": previous.id}
        close = {"connection": "close"}
        answer = await client.responses.create(model="llama-3.1-8b", input="Count.", max_output_tokens=5, extra_headers=close, **more)
        assert (await client.responses.retrieve(answer.id, extra_headers=close)).id == answer.id
        return answer

    async def turns(before, count, retries=0):
        async with fleet.client() as plain:
            client = plain.with_options(max_retries=retries)
            for _ in range(count):
                before = await asyncio.gather(*(turn(client, answer) for answer in before))
        return before

    begun = asyncio.run(turns([None] * 6, 4))
    kept = [fleet.state / f"{name}.responses" for name in gateways(fleet)]
    wait_until(lambda: all(any(turn.id in path.read_text() for path in kept if path.exists()) for turn in begun), "them to be kept")
    before = gateways(fleet)["gateway-1"]
    before.kill()
    wait_until(lambda: gateways(fleet).get("gateway-1", before).pid != before.pid, "the next process")
    wait_until(lambda: shared_out(fleet) and fleet.status()["gateways"]["gateway-1"] == "ok", "a replica each again")
    # Which replica the next process has by now, the other one may hear a second later: 503 until then, which clients ask again after.
    asyncio.run(turns(begun, 2, retries=5))


def test_a_gateway_that_stays_away_loses_its_replica_to_the_other(fleet, wait_until):
    """A process that is stopped keeps its connections: nothing is known of it but that it is silent."""
    wait_until(lambda: shared_out(fleet), "a replica each")
    stopped = gateways(fleet)["gateway-1"]
    stopped.suspend()
    try:
        wait_until(lambda: set(holders(fleet).values()) == {"gateway-0"}, "the other one to have both")
    finally:
        stopped.resume()
    wait_until(lambda: shared_out(fleet), "a replica each again")
    kinds = [event["kind"] for event in fleet.events()]
    assert "lease_lapsed" in kinds

    async def main():
        async with fleet.client() as client:
            return await asked(client, 12)

    assert sum(asyncio.run(main()).values()) == 12


def test_both_serve_on_while_the_controller_is_gone(fleet, wait_until):
    wait_until(lambda: shared_out(fleet), "a replica each")
    term, had = fleet.status()["term"], holders(fleet)
    controller = fleet.child("controller")

    async def main():
        async with fleet.client() as client:
            streams = await fleet.begun(client, 4, 60)
            controller.kill()
            meanwhile = await asked(client, 12)
            return await asyncio.gather(*streams), meanwhile

    streams, meanwhile = asyncio.run(main())
    assert [stream for stream in streams if not stream.whole] == []
    assert sum(meanwhile.values()) == 12
    wait_until(lambda: fleet.status()["term"] > term, "the next controller")
    wait_until(lambda: holders(fleet) == had, "everybody to have what it had")


def own_addresses(fleet):
    """Where each gateway alone is reached, by its name: its metrics are there."""
    return json.loads((fleet.state / "up.json").read_text())["gateways"]


def counted(address, name, **labels):
    """The sum of a metric's samples."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    rows = [line for line in lines if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items())]
    return sum(float(row.rsplit(" ", 1)[1]) for row in rows)


def test_the_only_replica_of_a_gateway_hangs_and_its_clients_are_served_by_the_other(fleet, fetch, wait_until):
    """Its whole answers were told 504 after their whole time, and its streams waited for their idle time."""
    wait_until(lambda: shared_out(fleet) and fleet.status()["gateways"] == {"gateway-0": "ok", "gateway-1": "ok"}, "a replica each")
    (replica,) = [row for row in fleet.pool()["detail"] if row["gateway"] == "gateway-0"]
    address = own_addresses(fleet)["gateway-0"]
    ejections = counted(address, "forebay_ejections_total", pool="chat")

    async def main():
        async with fleet.client() as client:
            streams = await fleet.begun(client, 12, 60)
            whole = asyncio.create_task(asked(client, 12))
            await asyncio.sleep(0.1)
            fetch(f"{replica['url']}/emulator/fault", {"kind": "hang"})
            streams, answered = await asyncio.gather(*streams), await whole
            assert [stream.error for stream in streams if not stream.whole] == []
            while "gateway-1" not in {gateway for _, gateway in answered}:  # whichever is free accepts
                answered += await asked(client, 4)
            return answered

    answered = asyncio.run(main())
    assert sum(count for (name, gateway), count in answered.items() if gateway == "gateway-1" and name != replica["id"]) > 0
    assert counted(address, "forebay_forwarded_total", gateway="gateway-1") > 0
    assert counted(address, "forebay_ejections_total", pool="chat") == ejections + 1
    fetch(f"{replica['url']}/emulator/fault", {"kind": "clear"})

    async def served_there():
        async with fleet.client() as client:
            return replica["id"] in {name for name, _ in await asked(client, 4)}

    wait_until(lambda: asyncio.run(served_there()), "it to be probed back")


def test_one_replica_serves_what_comes_in_at_both_and_everything_is_counted_once(up, wait_until):
    fleet = up(CONFIG.replace("{min: 2, max: 2,", "{min: 1, max: 1,")).until_ready()
    (holder,) = wait_until(lambda: [name for name in holders(fleet).values() if name], "the lease")

    async def main():
        answered = collections.Counter()
        async with fleet.client() as client:
            for _ in range(20):
                answered += await asked(client, 8)
                if {gateway for _, gateway in answered} == {"", holder}:
                    return answered, await fleet.stream(client, 20)
        raise AssertionError(f"nothing came in at the other one: {answered}")

    answered, stream = asyncio.run(main())
    assert stream.whole
    total = sum(answered.values()) + 1
    addresses = own_addresses(fleet).values()
    completed = [counted(address, "forebay_requests_total", outcome="completed") for address in addresses]
    assert sorted(completed) == [0, total], "metered where it was answered"
    assert sum(counted(address, "forebay_output_tokens_total") for address in addresses) == 5 * (total - 1) + 20
    moved = sum(counted(address, "forebay_forwarded_total", gateway=holder) for address in addresses)
    assert moved >= sum(count for (_, gateway), count in answered.items() if gateway)


ATTACHED = """
pools:
  chat:
    model: llama-3.1-8b
    attach: {urls}
gateway: {{listen: "127.0.0.1:0", join: "127.0.0.1:{port}"}}
admin: {{listen: "127.0.0.1:0"}}
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def test_a_gateway_joins_from_elsewhere_and_leaves_in_order(up, wait_until, tmp_path):
    """As on another machine: it is started by nobody but its user, and knows only the address where others join."""
    started = []

    def start(name, *words):
        ready = tmp_path / f"{name}.json"
        started.append(subprocess.Popen([sys.executable, "-m", "forebay.cli.main", *words, "--ready-file", str(ready)], cwd=tmp_path))
        return lambda: json.loads(ready.read_text()) if ready.exists() else None

    try:
        urls = wait_until(start("engines", "emulate", "--model", "llama-3.1-8b", "--engines", "2"), "the engines")["urls"]
        port = free_port()
        text = ATTACHED.format(urls=json.dumps(urls), port=port)
        fleet = up(text).until_ready()
        (tmp_path / "same.yaml").write_text(text)
        words = ("gateway", "-c", "same.yaml", "--port", "0", "--join", f"127.0.0.1:{port}", "--name", "rack-2")
        address = wait_until(start("joined", *words), "the gateway that joins")["gateway"]
        wait_until(lambda: sorted(holders(fleet).values()) == ["gateway-0", "rack-2"], "a replica each")
        for url in (fleet.gateway, address):
            with openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=20) as client:
                message = {"role": "user", "content": "hi"}
                answer = client.chat.completions.create(model="llama-3.1-8b", messages=[message], max_tokens=3)
                assert answer.usage.completion_tokens > 0
        started[-1].send_signal(signal.SIGTERM)
        assert started[-1].wait(30) == 0
        wait_until(lambda: set(holders(fleet).values()) == {"gateway-0"}, "both to be the first one's, at once")
        assert fleet.status()["gateways"] == {"gateway-0": "ok"}
    finally:
        for process in started:
            process.kill()
            process.wait()
