"""A forwarded request is counted by exactly one gateway, wherever its hop ends: a broken connection, a client that leaves, a gateway that dies."""

import random

import msgspec
import pytest
from gateway_values import SPEC
from several_gateways import BODY, CHAT, several
from test_gateway_several import dies_at_once, engines, hangs, whole

from forebay.domain.usage import COUNT_NAMES
from forebay.gateway import hop_counts
from forebay.gateway.hop_counts import HOPS, HopCounts
from forebay.gateway.usage import UsageBook
from forebay.ports.journal import NoJournal
from forebay.testing.clock import LoopClock
from forebay.testing.loop import run


def counted(world):
    """By gateway: what became of the requests that it has counted for the ledger, and their output tokens."""
    kinds = ("completed", "truncated", "left", "failed", "shed", "refused")
    found = {}
    for name, gateway in world.gateways.items():
        sums = [dict(zip(COUNT_NAMES, row, strict=True)) for _, row in gateway.usage.shown()]
        told = {kind: sum(row[kind] for row in sums) for kind in kinds}
        found[name] = ({kind: count for kind, count in told.items() if count}, sum(row["output_tokens"] for row in sums))
    return found


def break_hops(world):
    """Every connection between the gateways, under the requests that are on it."""
    for connection in list(world.gateways["b"].servers[1].connections):
        connection.abort()


async def three_then_hangs(seen, answer):
    answer.stream()
    for text in ("one", "two", "three"):
        answer.token(text)
    await answer.gone.wait()


async def begin(world, *, stream=True, name="a"):
    client = await world.client(name)
    client.send(CHAT, {**BODY, "stream": stream})
    await world.sleep(0.1)
    assert world.inside() == {"a": 1, "b": 1}
    return client


def test_a_stream_whose_hop_breaks_between_two_that_live_is_counted_once_by_who_told_its_client():
    async def test(world):
        world.lease("b")
        client = await begin(world)
        break_hops(world)
        assert (await client.read()).events()[-2]["error"]["code"] == "stream_truncated"
        await world.sleep(5.0)
        assert counted(world) == {"a": ({"truncated": 1}, 3), "b": ({}, 0)}

    several(test, three_then_hangs)


def test_what_goes_on_elsewhere_after_its_hop_broke_is_counted_once_where_it_is_answered():
    async def test(world):
        world.lease("b")
        client = await begin(world, stream=False)
        world.engines[0].script = whole
        world.lease("a", to="a")
        break_hops(world)
        assert (await client.read()).status == 200
        await world.sleep(5.0)
        assert counted(world) == {"a": ({"completed": 1}, 2), "b": ({}, 0)}

    several(test, hangs)


@pytest.mark.parametrize(("script", "stream", "tokens"), [(three_then_hangs, True, 3), (hangs, False, 0)])
def test_a_client_that_leaves_is_counted_where_it_was_served(script, stream, tokens):
    async def test(world):
        world.lease("b")
        (await begin(world, stream=stream)).close()
        await world.sleep(5.0)
        assert counted(world) == {"a": ({}, 0), "b": ({"left": 1}, tokens)}

    several(test, script)


def test_a_gateway_that_forwards_and_dies_is_stood_in_for():
    async def test(world):
        world.lease("b")
        await begin(world)
        world.gateways["a"].usage = UsageBook("nobody", NoJournal("none"))  # as nothing is counted by who is dead
        await world.gateways["a"].close()
        await world.sleep(5.0)
        assert counted(world)["b"] == ({"left": 1}, 3)

    several(test, three_then_hangs)


def test_the_other_ones_word_that_comes_before_the_break_is_seen_is_taken():
    """It asks about a hop that looks whole from here: this one counts the request then, whatever ends it."""

    async def test(world):
        world.lease("b")
        client = await begin(world)
        counts = world.gateways["a"].peering.counts
        (call,) = next(place for place in world.gateways["a"].desk.spills if place.peer == "b").calls.values()
        asked = msgspec.json.encode([call._hop.decode()])
        assert counts.answer(asked) == b"[true]"
        world.gateways["b"].peering.counts.answer(asked)  # as b would leave it to a by then
        client.close()
        await world.sleep(5.0)
        assert counted(world) == {"a": ({"left": 1}, 3), "b": ({}, 0)}

    several(test, three_then_hangs)


def test_an_answer_that_was_whole_at_the_other_gateway_is_not_counted_again():
    async def test(world):
        world.lease("b")
        client = await begin(world)
        (call,) = next(place for place in world.gateways["a"].desk.spills if place.peer == "b").calls.values()
        world.gateways["b"].peering.counts.mine(call._hop)  # its last bytes are lost on the way
        break_hops(world)
        await client.read()
        await world.sleep(5.0)
        assert counted(world)["a"] == ({}, 0)

    several(test, three_then_hangs)


def test_one_that_hangs_until_its_time_is_over_is_counted_where_its_client_was_told():
    async def test(world):
        world.lease("b")
        world.gateways["a"].reload(msgspec.structs.replace(SPEC, limits=msgspec.structs.replace(SPEC.limits, total_s=3.0)))
        client = await begin(world, stream=False)
        for _ in range(5):
            await world.sleep(1.0)
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["code"]) == (504, "engine_timeout")
        record = world.gateways["a"].records.unusual[-1]
        assert (record.pool, record.left, record.outcome) == ("chat/b", ("chat",), "failed")
        assert record.why == "The gateway b, to which the request was forwarded, did not answer in time."
        (event,) = [event for event in world.sinks["a"].events if event.kind == "engine_failed"]
        assert event.message.startswith("b at http://127.0.0.1:")
        await world.sleep(5.0)
        assert counted(world) == {"a": ({"failed": 1}, 0), "b": ({}, 0)}

    several(test, hangs)


def test_where_all_fail_it_is_counted_once():
    async def test(world):
        world.lease("a", "b")
        answer = await world.ask("a")
        assert answer.status == 503
        await world.sleep(5.0)
        assert counted(world) == {"a": ({}, 0), "b": ({"shed": 1}, 0)}

    several(test, dies_at_once, dies_at_once)


@pytest.mark.parametrize("stream", [False, True])
def test_a_gateway_past_its_drain_is_one_that_is_not_there(stream):
    """Its 503 was the answer, though this gateway could serve the request by then."""

    async def test(world):
        world.lease("b", "b")
        client = await begin(world, stream=stream)
        world.lease("b", "a", to="a")
        for engine in world.engines:
            engine.script = whole
        await world.gateways["b"].drain()
        assert (await client.read()).status == 200
        await world.sleep(5.0)
        assert counted(world) == {"a": ({"completed": 1}, 2), "b": ({}, 0)}

    several(test, hangs, hangs, limits=msgspec.structs.replace(SPEC.limits, drain_s=1.0))


def test_where_the_gateway_past_its_drain_had_all_replicas_the_others_wait_for_them():
    async def test(world):
        world.lease("b")
        client = await begin(world, stream=False)
        await world.gateways["b"].drain()
        await world.sleep(1.0)
        assert (world.inside()["a"], engines(world)) == (1, [1])
        world.engines[0].script = whole
        world.lease("a", to="a")
        assert (await client.read()).status == 200

    several(test, hangs, limits=msgspec.structs.replace(SPEC.limits, drain_s=1.0))


def test_only_gateways_are_told_who_counts_what():
    async def test(world):
        world.lease("a", "b")
        client = await world.client("a", hops=True)
        target = HOPS.decode()
        assert (await client.ask(target, ["a/x.1.1"])).status == 403
        key = {"x-forebay-hop": "hop-key"}
        assert (await client.ask(target, ["a/x.1.1", "é", ""], key)).json() == [False, False, False]
        assert (await client.ask(target, {"no": "list"}, key)).status == 400
        assert (await (await world.client("a")).ask(target, ["a/x.1.1"], key)).status == 404, "not at the address that clients know"

    several(test, whole, whole)


# -- the machine alone -------------------------------------------------------------------------------------------------


class Pair:
    """Two, joined by a line that can be cut; ``counts``: who has counted what."""

    def __init__(self):
        self.clock = LoopClock()
        self.cut = False
        self.live = {"a": set(), "b": set()}
        self.counts = {}
        self.asked = 0
        self.of = {name: HopCounts(name, "run", self.clock, self._ask, lambda _, hop, name=name: hop in self.live[name]) for name in "ab"}

    async def _ask(self, gateway, body):
        await self.clock.sleep_until(self.clock.now_s() + 0.01)
        self.asked += 1
        return None if self.cut or gateway not in self.of else self.of[gateway].answer(body)

    def settle(self, at, gateway, hop):
        self.of[at].settle(gateway, hop, lambda: self.counts.setdefault(hop, []).append(at))


def paired(test):
    async def main():
        pair = Pair()
        await test(pair)
        for counts in pair.of.values():
            await counts.settled()

    run(main)


@pytest.mark.parametrize("seed", range(20))
def test_of_many_broken_hops_each_is_counted_once_whoever_notices_first(seed):
    chance = random.Random(seed)

    async def test(pair):
        hops = []
        for ticket in range(300):
            hop = pair.of["a"].fresh(ticket)
            kind = chance.choice(["broke", "client left", "was whole", "a is dead to b"])
            hops.append(hop)
            pair.live["a"].add(hop)
            notices = ["a", "b"]
            chance.shuffle(notices)
            if kind == "was whole":
                pair.of["b"].mine(hop)
                pair.counts[hop] = ["b"]
                notices = ["a"]
            for who in notices:
                if who == "a":
                    pair.live["a"].discard(hop)
                    if kind != "client left":
                        pair.of["a"].mine(hop)
                        pair.settle("a", "b", hop)
                    elif hop in pair.of["a"]._mine:  # adopted meanwhile: counted here however it ends
                        pair.settle("a", "b", hop)
                else:
                    pair.settle("b", "" if kind != "a is dead to b" else "nobody", hop)
                if chance.random() < 0.3:
                    await pair.clock.sleep_until(pair.clock.now_s() + chance.random() * 0.05)
        await pair.clock.sleep_until(pair.clock.now_s() + 10.0)
        once = {hop: len(pair.counts.get(hop, [])) for hop in hops}
        assert set(once.values()) == {1}, {hop: count for hop, count in once.items() if count != 1}

    paired(test)


def test_who_can_ask_nobody_counts():
    async def test(pair):
        pair.cut = True
        hops = [pair.of["a"].fresh(ticket) for ticket in range(500)]
        for hop in hops:
            pair.settle("b", "", hop)
        await pair.clock.sleep_until(5.0)
        assert pair.counts == {hop: ["b"] for hop in hops}
        assert pair.asked == 3, "and does not ask for each alone"

    paired(test)


def test_what_is_open_at_the_end_is_counted():
    async def test(pair):
        pair.settle("b", "", b"a/run.1.1")
        pair.of["b"].close()
        assert pair.counts == {b"a/run.1.1": ["b"]}

    paired(test)


def test_more_than_can_be_asked_about_is_counted_unasked(monkeypatch):
    monkeypatch.setattr(hop_counts, "PENDING_MAX", 10)

    async def test(pair):
        for number in range(11):
            pair.settle("b", "", b"a/run.1.%d" % number)
        assert pair.counts == {b"a/run.1.10": ["b"]}
        pair.of["b"].close()

    paired(test)
