"""A team's limits at one of two gateways: its share, told by the controller, and nothing once the lease is over."""

import msgspec
from several_gateways import LEASE_S, several

from forebay.domain.roster import LimitShare, SharesGiven
from forebay.spec.types import Team, TeamLimits

LIMITED = (Team("limited", (("sk-limited", "interactive"),), limits=TeamLimits(requests_per_minute=60, tokens_per_minute=6000)),)
KEYED = {"authorization": "Bearer sk-limited"}


async def whole(seen, answer):
    answer.json(200, {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 20, "completion_tokens": 5}})


def given(version, units, fill):
    tokens = LimitShare("limited", "tokens_per_minute", 100 * units, 100.0 * fill)
    return SharesGiven(version, (LimitShare("limited", "requests_per_minute", units, fill), tokens))


def test_a_gateway_has_its_share_and_says_so():
    async def test(world):
        world.lease("a", "b")
        world.heard("a", shares=given(1, 30, 2.0))
        answers = [await world.ask("a", headers=KEYED) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[0].headers["x-ratelimit-limit-requests"] == "30"
        assert answers[0].headers["x-ratelimit-remaining-requests"] == "1"
        assert answers[0].headers["x-ratelimit-limit-tokens"] == "3000"
        assert "60 requests per minute (30 of them at this gateway)" in answers[2].json()["error"]["message"]
        assert 1 <= int(answers[2].headers["retry-after"]) <= 3
        used = world.gateways["a"].report().shares
        assert used.seen == 1
        assert [(row.cap, row.limit, row.units) for row in used.rows] == [
            ("requests_per_minute", 60, 30),
            ("tokens_per_minute", 6000, 3000),
        ]
        assert used.rows[0].wants > 0

    several(test, whole, whole, teams=LIMITED)


def test_before_it_is_told_a_gateway_has_nothing_and_of_an_older_controller_all():
    async def test(world):
        world.lease("a", "b")
        assert (await world.ask("a", headers=KEYED)).headers["x-ratelimit-limit-requests"] == "60", "an older controller divides nothing"
        world.heard("a", shares=SharesGiven(1, ()))
        refused = await world.ask("a", headers=KEYED)
        assert refused.status == 429
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"

    several(test, whole, whole, teams=LIMITED)


def test_what_moves_to_another_gateway_that_hears_the_controller_is_no_more_this_ones():
    async def test(world):
        world.lease("a", "b")
        world.heard("a", shares=given(1, 60, 60.0))
        for _ in range(10):
            await world.sleep(1.0)
            world.heard("b")
        assert world.gateways["a"].peering.lessee.state == "yielded"
        assert (await world.ask("a", headers=KEYED)).status == 429
        world.heard("a", shares=SharesGiven(2, ()))
        assert (await world.ask("a", headers=KEYED)).status == 429, "it gave its shares up"
        world.heard("a", shares=given(3, 10, 1.0))
        assert (await world.ask("a", headers=KEYED)).status == 200

    several(test, whole, whole, teams=LIMITED)


def test_without_its_controller_a_gateway_keeps_its_share():
    async def test(world):
        world.lease("a", "b")
        for name in "ab":
            world.heard(name, shares=given(1, 30, 30.0))
        await world.sleep(4 * LEASE_S)
        for name in "ab":
            answers = [await world.ask(name, headers=KEYED) for _ in range(31)]
            assert [answer.status for answer in answers] == [200] * 30 + [429]

    several(test, whole, whole, teams=LIMITED)


def test_limits_that_change_while_it_runs_change_shares():
    async def test(world):
        world.lease("a", "b")
        world.heard("a", shares=given(1, 30, 30.0))
        gateway = world.gateways["a"]
        teams = (msgspec.structs.replace(LIMITED[0], limits=TeamLimits(requests_per_minute=20)),)
        more = Team("more", (("sk-more", "interactive"),), limits=TeamLimits(requests_per_minute=2))
        gateway.reload(msgspec.structs.replace(gateway.spec, teams=(*teams, more)))
        assert (await world.ask("a", headers=KEYED)).headers["x-ratelimit-limit-requests"] == "10", "by proportion, at once"
        assert (await world.ask("a", headers={"authorization": "Bearer sk-more"})).status == 429, "it has no share yet"
        world.heard("a", shares=SharesGiven(2, (LimitShare("more", "requests_per_minute", 1, 1.0),)))
        assert (await world.ask("a", headers={"authorization": "Bearer sk-more"})).status == 200

    several(test, whole, whole, teams=LIMITED)


def test_a_gateway_alone_has_all_of_a_limit_whatever_its_file_allows(world, spec):
    async def test(front):
        chat = {"model": "llama", "messages": [{"role": "user", "content": "hello"}]}
        assert (await front.ask(chat, KEYED)).headers["x-ratelimit-limit-requests"] == "60"

    world(test, whole, spec=msgspec.structs.replace(spec, gateways=2, teams=LIMITED))
