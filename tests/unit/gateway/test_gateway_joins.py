"""Gateway and controller prove to each other that they know the same secret, before anything else is said; who doesn't is told what to do."""

import asyncio
import itertools
import random

import msgspec
import pytest
from gateway_values import SPEC

from forebay.adapters.upstream import HttpUpstream
from forebay.app.keys import join_secret, join_troubles
from forebay.controller.channel import PROOF_REAL_S, Channel
from forebay.domain.errors import BadInput
from forebay.domain.joining import Challenge, Proof, Refused, by_controller, by_gateway, proves
from forebay.domain.roster import Hello, Roster
from forebay.gateway.link import Link
from forebay.gateway.service import Gateway
from forebay.spec.types import Listen
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.ids import CountingIds
from forebay.testing.loop import run

SECRET = "a secret of sixteen"
ROSTER = Roster(1, 1, 10.0, ())
PORT = 20_700


def nonces():
    counter = itertools.count()
    return lambda: f"nonce {next(counter)}"


def told(controller, gateway, seconds=20.0):
    """What the controller heard, and the kinds and words of the gateway's events, where the two have these secrets."""

    async def main():
        heard, sink, clock = [], ListSink(), LoopClock()
        channel = Channel(heard.append, lambda _: None, controller, nonces())
        await channel.start("127.0.0.1", PORT)
        channel.publish(ROSTER)
        front = Gateway(SPEC, clock, CountingIds(), HttpUpstream(), random.Random(1), sink, "g")
        link = Link(front, clock, random.Random(2), sink, "127.0.0.1", PORT, secret=gateway, nonce=nonces())
        linking = asyncio.create_task(link.run())
        await asyncio.sleep(seconds)
        linking.cancel()
        await asyncio.gather(linking, return_exceptions=True)
        await channel.close()
        await front.close()
        return heard, [(event.kind, event.message) for event in sink.events]

    return run(main)


def test_two_that_know_the_secret_talk():
    heard, events = told(SECRET, SECRET)
    assert heard[0] == Hello("g")
    assert events[0] == ("controller_found", "roster of term 1, version 1")


@pytest.mark.parametrize(
    ("controller", "gateway", "words"),
    [
        (SECRET, "another one of sixteen", "set the variable that gateway.join_secret_env names"),
        (SECRET, "", "the controller asks for a secret: name its variable in gateway.join_secret_env"),
        ("", SECRET, "the controller proved no secret: give it the same gateway.join_secret_env"),
    ],
)
def test_two_of_which_one_knows_it_not_say_nothing_else_and_what_to_do_once(controller, gateway, words):
    heard, events = told(controller, gateway, seconds=60.0)
    assert heard == [] if controller else all(not isinstance(message, Proof) for message in heard)
    ((kind, message),) = events
    assert kind == "join_refused"
    assert words in message


def dialled(talk, secret=SECRET):
    """Run ``talk(reader, writer)`` against a controller with ``secret``; what it heard."""

    async def main():
        heard = []
        channel = Channel(heard.append, lambda _: None, secret, nonces())
        await channel.start("127.0.0.1", PORT)
        channel.publish(ROSTER)
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        await talk(reader, writer)
        writer.close()
        await channel.close()
        return heard

    return run(main)


def line(value):
    return msgspec.json.encode(value) + b"\n"


async def said(reader, kind):
    return msgspec.json.decode(await reader.readline(), type=kind)


@pytest.mark.parametrize(
    "first",
    [
        line(Hello("g")),
        b"\n",
        b"no JSON\n",
        line(Proof("", "n")),
        line(Proof(by_gateway(SECRET, "nonce 0", ""), "")),
        line(Proof(by_gateway(SECRET, "nonce 7", "n"), "n")),
        line(Proof(by_controller(SECRET, "nonce 0", "n"), "n")),
        line(Proof("é", "n")),
    ],
    ids=["hello", "nothing", "noise", "empty", "no nonce", "another connection's", "the controller's own", "not ASCII"],
)
def test_what_is_no_proof_is_refused(first):
    async def talk(reader, writer):
        assert await said(reader, Challenge) == Challenge("nonce 0")
        writer.write(first + line(Hello("g")))
        assert "join_secret_env" in (await said(reader, Refused)).why
        assert await reader.read() == b"", "no roster, and the end"

    assert dialled(talk) == []


def test_who_says_nothing_is_not_waited_for():
    async def talk(reader, writer):
        await said(reader, Challenge)
        began_s = asyncio.get_running_loop().time()
        await said(reader, Refused)
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(PROOF_REAL_S, abs=0.1)

    dialled(talk)


def test_a_proof_is_answered_by_one():
    async def talk(reader, writer):
        challenge = await said(reader, Challenge)
        writer.write(line(Proof(by_gateway(SECRET, challenge.nonce, "n"), "n")) + line(Hello("g")))
        answer = await said(reader, Proof)
        assert proves(answer.proof, by_controller(SECRET, challenge.nonce, "n"))
        assert (await said(reader, Roster)).version == 1

    assert dialled(talk) == [Hello("g")]


def test_the_secret_stands_in_the_environment():
    spec = msgspec.structs.replace(SPEC, join=Listen("10.0.0.5", 8082), join_secret_env="JOIN")
    assert join_secret(spec, {"JOIN": SECRET}) == SECRET
    assert list(join_troubles(spec, {"JOIN": SECRET})) == []
    for environment in ({}, {"JOIN": "short"}):
        with pytest.raises(BadInput, match="openssl rand"):
            join_secret(spec, environment)
        assert len(list(join_troubles(spec, environment))) == 1


@pytest.mark.parametrize(
    ("host", "warned"), [("10.0.0.5", True), ("gw.example", True), ("127.0.0.1", False), ("::1", False), ("localhost", False)]
)
def test_an_open_join_is_warned_of_where_others_reach_it(host, warned):
    spec = msgspec.structs.replace(SPEC, join=Listen(host, 8082))
    assert any("join_secret_env" in words for words in join_troubles(spec, {})) == warned
    assert join_secret(spec, {}) == ""
