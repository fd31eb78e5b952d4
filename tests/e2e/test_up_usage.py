"""The bill of a running Forebay: gateway and controller are killed under load, and every answer that a client got is in it, once."""

import asyncio
import json

import pytest

from forebay.cli.admin_client import history

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.xdist_group("up usage")]

CONFIG = """
pools:
  chat:
    model: llama-3.1-8b
    profile: quick
    engine: {kind: emulated, stop_grace: 1s}
    slo: {ttft: 20s, itl: 2s, attainment: 0.5}
    scaling: {min: 1, max: 1, cold_start: 5m}
profiles:
  quick:
    base: llama-3.1-8b-h100
    cold_start: {provision: 0s, weights: 16GB, bandwidth: 16GB/s, init: 1s}
teams:
  search:
    keys: [{key: sk-search-0123456789, tier: interactive}]
  mail:
    keys: [{key: sk-mail-0123456789, tier: batch}]
gateway: {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
speed: 5
"""


async def ask_on(fleet, client, over, got):
    """One short stream after the other; keeps what each whole one took."""
    number = 0
    while not over.is_set():
        number += 1
        stream = await fleet.stream(client, 3 + number % 5)
        if stream.whole:
            got.append(stream.usage_tokens)
        else:
            await asyncio.sleep(0.05)


async def load(fleet, disturb):
    """Streams of two teams while ``disturb`` runs; output tokens of the whole ones, by team."""
    over, got = asyncio.Event(), {"search": [], "mail": []}
    async with fleet.client("sk-search-0123456789") as search, fleet.client("sk-mail-0123456789") as mail:
        clients = {"search": search, "mail": mail}
        asking = [asyncio.create_task(ask_on(fleet, client, over, got[team])) for team, client in clients.items() for _ in range(4)]
        await disturb(got)
        over.set()
        await asyncio.gather(*asking)
    return got


def bill(fleet):
    told = fleet.cli("usage", "--state", str(fleet.state), "--by", "team", "--json", "-")
    assert told.returncode == 0, told.stderr
    return {line["team"]: (line["completed"], line["output_tokens"]) for line in json.loads(told.stdout)["lines"]}


def billed(fleet, expected):
    """Whether it is billed so; what it is instead is printed where that fails."""
    told = bill(fleet)
    print(told)
    return told == expected


def explained(fleet, request_id):
    told = fleet.cli("explain", "--request", request_id, "--key", "sk-search-0123456789", "--state", str(fleet.state), "--json", "-")
    assert told.returncode == 0, told.stderr
    record = json.loads(told.stdout)
    assert record["candidates"][0]["chosen"]
    return record["outcome"], record["output_tokens"]


def in_history(fleet, request_id):
    """Whether its record is where a killed gateway can't take it along: what ended within that one's last second may not be."""
    with history(str(fleet.state)) as store:
        return store.finished(request_id)


def test_a_killed_gateway_and_a_killed_controller_lose_and_double_nothing(up, wait_until, wait_until_async):
    fleet = up(CONFIG).until_ready()

    async def disturb(got):
        async def until(more):
            target = sum(map(len, got.values())) + more
            await wait_until_async(lambda: sum(map(len, got.values())) >= target, f"{target} answers")

        for name in ("gateway", "controller", "gateway"):
            await until(15)
            fleet.child(name).kill()
        await until(15)

    async def the_first():
        """The first of all is one of the sample whose records are kept."""
        async with fleet.client("sk-search-0123456789") as client:
            return await fleet.stream(client, 3, extra_headers={"x-request-id": "the-first"})

    first = asyncio.run(the_first())
    wait_until(lambda: in_history(fleet, "the-first"), "its record to be in the history")
    got = asyncio.run(load(fleet, disturb))
    got["search"].append(first.usage_tokens)
    expected = {team: (len(tokens), sum(tokens)) for team, tokens in got.items()}
    wait_until(lambda: billed(fleet, expected), f"a ledger of {expected}")
    assert bill(fleet) == expected  # and it stays so
    kinds = {event["kind"] for event in fleet.events()}
    assert "usage_missing" not in kinds
    assert explained(fleet, "the-first") == ("completed", 3)  # of a gateway that was killed twice since
    # What is told after `up` has ended is the same, the last answers in it.
    fleet.process.terminate()
    assert fleet.wait() == 0
    assert bill(fleet) == expected
    assert explained(fleet, "the-first") == ("completed", 3)
    assert list((fleet.state / "usage").rglob("*.usage")) == []
