"""A configuration that changes while requests are inside: they keep what they came with, the next go by the new one."""

import asyncio

import msgspec
import pytest

from forebay.domain.errors import BadInput
from forebay.spec.live import check_live
from forebay.spec.types import Limits, Model, Team, TeamLimits

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 50}
replace = msgspec.structs.replace


async def quick(_, answer):
    answer.json(200, {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 20, "completion_tokens": 5}})


async def slow(seen, answer):
    await asyncio.sleep(5)
    await quick(seen, answer)


async def streamed(_, answer):
    answer.stream()
    answer.role()
    for _ in range(5):
        answer.token("a")
        await asyncio.sleep(1)
    answer.token("b", "stop")
    answer.done()


def key(secret):
    return {"authorization": f"Bearer {secret}"}


class Compared(str):
    """A team's name, of which all are counted with others that it is compared to."""

    __slots__ = ()
    times = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Compared.times += 1
        return str.__eq__(self, other)


def test_a_reload_compares_each_team_with_a_few_and_not_with_all(world, spec):
    """With 4,000 teams all streams waited for more than a second: each was looked for among all, for each of its tiers."""

    def of(count, weight):
        limits = TeamLimits(requests_per_minute=60 * weight)
        return tuple(Team(Compared(f"t{number}"), ((f"sk-{number}", "standard"),), weight=weight, limits=limits) for number in range(count))

    async def test(front):
        front.gateway.reload(replace(spec, teams=of(300, 1)))
        Compared.times = 0
        front.gateway.reload(replace(spec, teams=of(300, 2)))
        assert Compared.times < 30 * 300

    world(test, quick, spec=replace(spec, teams=of(1, 1)))


def test_a_key_comes_and_a_key_goes_and_no_connection_is_dropped(world, team_spec):
    async def test(front):
        client = await front.client()
        for _ in range(3):  # so that the head is known by its bytes
            assert (await client.ask("/v1/chat/completions", CHAT, key("sk-search"))).status == 200
        front.engines[0].script = streamed
        living = await front.client()
        living.send("/v1/chat/completions", CHAT | {"stream": True}, key("sk-search"))
        await front.sleep(1.5)
        search, mail = team_spec.teams
        front.gateway.reload(replace(team_spec, teams=(replace(search, keys=(("sk-new", "interactive"),)), mail)))
        refused = await client.ask("/v1/chat/completions", CHAT, key("sk-search"))
        assert refused.status == 401
        front.engines[0].script = quick
        assert (await client.ask("/v1/chat/completions", CHAT, key("sk-new"))).status == 200
        answer = await living.read()
        assert answer.complete
        assert answer.events()[-1] == "[DONE]"

    world(test, quick, spec=team_spec)


def test_teams_may_be_the_first_ones(world, team_spec):
    async def test(front):
        client = await front.client()
        assert (await client.ask("/v1/chat/completions", CHAT)).status == 200
        front.gateway.reload(team_spec)
        assert (await client.ask("/v1/chat/completions", CHAT)).status == 401

    world(test, quick)


def test_a_file_without_its_teams_opens_the_gateway_to_nobody(world, spec, team_spec):
    async def test(front):
        client = await front.client()
        with pytest.raises(BadInput, match=r"teams: found none; allowed while Forebay runs: one at least"):
            front.gateway.reload(spec)
        assert (await client.ask("/v1/chat/completions", CHAT)).status == 401
        assert (await client.ask("/v1/chat/completions", CHAT, key("sk-search"))).status == 200
        front.gateway.reload(replace(team_spec, teams=team_spec.teams[:1]))
        assert (await client.ask("/v1/chat/completions", CHAT, key("sk-search"))).status == 200

    world(test, quick, spec=team_spec)


def test_a_request_that_waits_keeps_its_longest_wait_and_the_next_has_the_new_one(world, spec, one_slot):
    def within(longest_wait_s):
        return replace(spec, tiers=(replace(spec.tiers[0], longest_wait_s=longest_wait_s), *spec.tiers[1:]))

    async def test(front):
        busy = asyncio.create_task(front.ask(CHAT))
        await front.sleep(0.1)
        patient = asyncio.create_task(front.ask(CHAT))
        await front.sleep(0.1)
        front.gateway.reload(within(1.0))
        begun_s = front.clock.now_s()
        hasty = await front.ask(CHAT)
        assert (hasty.status, front.clock.now_s() - begun_s <= 1.5) == (429, True)
        assert [(await one).status for one in (busy, patient)] == [200, 200]

    world(test, slow, spec=within(30.0), capacity=one_slot)


def test_limits_of_a_team_change_with_what_it_has_in_flight_counted(world, spec):
    def limited(**limits):
        return replace(spec, teams=(Team("one", (("sk-one", "interactive"),), limits=TeamLimits(**limits)),))

    async def test(front):
        first = asyncio.create_task(front.ask(CHAT, key("sk-one")))
        await front.sleep(0.1)
        front.gateway.reload(limited(requests_in_flight=1))
        assert (await front.ask(CHAT, key("sk-one"))).status == 429
        assert (await first).status == 200
        front.engines[0].script = quick
        assert (await front.ask(CHAT, key("sk-one"))).status == 200
        front.gateway.reload(limited())
        answers = await asyncio.gather(*(front.ask(CHAT, key("sk-one")) for _ in range(3)))
        assert [answer.status for answer in answers] == [200, 200, 200]

    world(test, slow, spec=limited(requests_in_flight=5))


def test_a_minutes_worth_is_as_full_as_it_was(world, spec):
    def limited(requests):
        return replace(spec, teams=(Team("one", (("sk-one", "interactive"),), limits=TeamLimits(requests_per_minute=requests)),))

    async def test(front):
        for _ in range(5):
            await front.ask(CHAT, key("sk-one"))
        front.gateway.reload(limited(20))
        answer = await front.ask(CHAT, key("sk-one"))
        assert answer.headers["x-ratelimit-limit-requests"] == "20"
        assert int(answer.headers["x-ratelimit-remaining-requests"]) == 9

    world(test, quick, spec=limited(10))


def test_weights_aliases_and_bounds_count_from_the_next_request_on(world, team_spec):
    async def test(front):
        assert (await front.ask(CHAT | {"model": "newer"}, key("sk-search"))).status == 404
        await front.ask(CHAT, key("sk-search"))
        changed = replace(
            team_spec,
            teams=tuple(replace(team, weight=4.0) for team in team_spec.teams),
            models=(Model("llama", 8192, aliases=("newer",)),),
            limits=Limits(body_bytes_max=60, streamed_body_bytes_max=60),
        )
        front.gateway.reload(changed)
        assert (await front.ask(CHAT | {"model": "newer", "pad": "x" * 100}, key("sk-search"))).status == 413
        front.gateway.reload(replace(changed, limits=Limits()))
        assert (await front.ask(CHAT | {"model": "newer"}, key("sk-search"))).status == 200
        accounts = front.gateway.desk.pools["chat"].admission._lanes[0].order.accounts
        assert {account.per_weight for account in accounts.values()} == {0.25}

    world(test, quick, spec=team_spec)


def test_what_can_not_change_is_named_and_nothing_is_changed(world, team_spec):
    async def test(front):
        tier = replace(team_spec.tiers[0], rank=5, ttft_s=9.0)
        bad = replace(team_spec, teams=team_spec.teams[:1], tiers=(tier, *team_spec.tiers[1:]), state_dir="elsewhere")
        with pytest.raises(BadInput, match=r"tiers.interactive \(rank\), state; allowed while Forebay runs: teams, limits"):
            front.gateway.reload(bad)
        assert (await front.ask(CHAT)).status == 401
        assert front.gateway.spec is team_spec

    world(test, quick, spec=team_spec)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda spec: replace(spec, pools=(replace(spec.pools[0], queued_max=5, model="qwen"),)), r"pools.chat \(model, queued_max\)"),
        (lambda spec: replace(spec, pools=(*spec.pools, replace(spec.pools[0], name="more"))), "pools \\(which there are"),
        (lambda spec: replace(spec, models=(replace(spec.models[0], context_tokens=1),)), r"models.llama \(context_tokens\)"),
        (lambda spec: replace(spec, gateway=replace(spec.gateway, port=9)), "gateway.listen"),
    ],
)
def test_each_place_is_named_as_it_stands_in_the_file(spec, change, named):
    with pytest.raises(BadInput, match=named):
        check_live(spec, change(spec))


def test_what_may_change_is_no_news(team_spec):
    tiers = tuple(replace(tier, ttft_s=7.0, longest_wait_s=70.0, idle_s=3.0, total_s=9.0) for tier in team_spec.tiers)
    check_live(team_spec, replace(team_spec, teams=team_spec.teams[:1], tiers=tiers, limits=Limits(drain_s=1.0)))
