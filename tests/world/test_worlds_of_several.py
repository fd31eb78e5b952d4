"""Worlds with two gateways: replicas are never shared, whichever of gateways and controller crash or are cut off; and sabotage is found out."""

import msgspec
import pytest

from forebay.admission import lessee, shares
from forebay.app.world.clients import Wish
from forebay.app.world.plan import OF_SEVERAL, Event, Trouble, draw
from forebay.app.world.promises import WAITED_CODES
from forebay.app.world.run import VIRTUAL_S_MAX, World, judge
from forebay.domain.profile import ColdStart
from forebay.testing.loop import run

SABOTAGE_SEEDS = range(6)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 25, 48])
def test_a_world_of_two_gateways_holds_its_promises(seed):
    verdict = judge(seed, gateways=2)
    assert verdict.ok, verdict.broken
    assert verdict.told["complete"] > 0


@pytest.mark.parametrize("seed", [21, 106])
def test_a_world_of_three_gateways_holds_its_promises(seed):
    verdict = judge(seed, gateways=3)
    assert verdict.ok, verdict.broken


def test_three_gateways_and_the_same_seed():
    first, again = judge(4, gateways=3), judge(4, gateways=3)
    assert first.ok, first.broken
    assert first.digest == again.digest


def test_plans_of_several_have_troubles_of_their_own_and_else_the_same_world():
    one, two = draw(3), draw(3, gateways=2)
    assert two.wishes == one.wishes
    assert two.events[: len(one.events)] == one.events
    assert {event.trouble for seed in range(20) for event in draw(seed, gateways=2).events} > OF_SEVERAL
    assert not {event.trouble for seed in range(40) for event in draw(seed).events} & OF_SEVERAL


def crashing(seed):
    """A world with a replica or two more, of which one dies every 37 s."""
    plan = draw(seed, gateways=2)
    (pool,) = plan.spec.pools
    pool = msgspec.structs.replace(pool, scaling=msgspec.structs.replace(pool.scaling, min_replicas=4, max_replicas=5))
    crashes = tuple(Event(60.0 + 37.0 * number, 1.0, Trouble.CRASH, 7 * number + seed) for number in range(9))
    return msgspec.structs.replace(plan, spec=msgspec.structs.replace(plan.spec, pools=(pool,)), events=crashes)


def test_where_replicas_die_streams_go_on_at_the_other_gateway_and_are_billed_once():
    async def main():
        world = World(crashing(5))
        answers = await world.live()
        records = [record for front in world.fronts for record in front.gateway.records.unusual]
        return world.verdict(answers), [record for record in records if record.continued and record.left]

    verdict, elsewhere = run(main, 5, time_limit_s=VIRTUAL_S_MAX)
    assert verdict.ok, verdict.broken
    assert len(elsewhere) >= 3
    assert {record.outcome for record in elsewhere} <= {"completed", "client_gone"}


def hanging():
    """A world whose only replica is on its way while some wait for it at both gateways, and hangs once all of them wait at one."""
    plan = draw(0, gateways=2)
    (pool,) = plan.spec.pools
    pool = msgspec.structs.replace(pool, queued_max=64, scaling=msgspec.structs.replace(pool.scaling, min_replicas=1, max_replicas=1))
    profile = msgspec.structs.replace(plan.profile, sequences_max=2, cold_start=ColdStart(5.0, 10.0, 1.0, 5.0))
    # A few long ones at the one gateway, which gets the replica for them, and short ones at the other.
    asked = [(number, 300) for number in (0, 2, 4)] + [(number, 10) for number in (1, 3, 5, 7, 9)]
    wishes = tuple(Wish(number, 1.0 + number / 10, prompt, 40, stream=True, key="sk-high", patience_s=1000.0) for number, prompt in asked)
    spec = msgspec.structs.replace(plan.spec, pools=(msgspec.structs.replace(pool, profile=profile),))
    return msgspec.structs.replace(plan, spec=spec, profile=profile, wishes=wishes, events=(Event(28.0, 300.0, Trouble.HANG, 0),))


def test_what_waits_at_one_gateway_and_then_at_another_waits_no_longer_than_its_tier():
    async def main():
        world = World(hanging())
        answers = await world.live()
        return (
            world.verdict(answers),
            answers,
            [sum(front.gateway.desk.pools["pool"].ways.peers.forwarded.values()) for front in world.fronts],
        )

    verdict, answers, forwarded = run(main, 0, time_limit_s=VIRTUAL_S_MAX)
    assert [broken for broken in verdict.broken if broken.promise != "work gets done"] == []
    assert max(forwarded) >= 3
    assert sum(answer.detail in WAITED_CODES for answer in answers) >= 2


def one_of_two_hangs(seed):
    plan = draw(seed, gateways=2)
    (pool,) = plan.spec.pools
    pool = msgspec.structs.replace(pool, scaling=msgspec.structs.replace(pool.scaling, min_replicas=2, max_replicas=2))
    hangs = (Event(100.0, 500.0, Trouble.HANG, 0),)
    plan = msgspec.structs.replace(plan, spec=msgspec.structs.replace(plan.spec, pools=(pool,)), events=hangs)

    async def main():
        world = World(plan)
        answers = await world.live()
        return world.verdict(answers), answers, [front.gateway.desk.pools["pool"].outliers.ejections_total for front in world.fronts]

    return run(main, seed, time_limit_s=VIRTUAL_S_MAX)


@pytest.mark.parametrize("seed", range(12))
def test_where_one_of_two_replicas_hangs_for_long_the_other_gateway_serves_its_clients(seed):
    """Each gateway has one of the two, so neither looked whether its own hung: clients were told 504, or waited for as long.

    And what the one had forwarded to the other, which lost its last replica, was told 503 there as a last word, in every second world.
    """
    verdict, answers, ejections = one_of_two_hangs(seed)
    assert verdict.ok, verdict.broken
    assert sum(ejections) >= 1
    assert [answer for answer in answers if answer.status >= 500] == []


def broken_promises():
    """Of the first worlds in which any is broken."""
    for seed in SABOTAGE_SEEDS:
        promises = {broken.promise for broken in judge(seed, gateways=2).broken}
        if promises:
            return promises
    return set()


def test_a_gateway_that_uses_what_it_had_for_ever_is_found_out(monkeypatch):
    monkeypatch.setattr(lessee, "HELD_FRACTION", 100.0)
    assert "no replica is shared" in broken_promises()


def test_a_controller_that_gives_each_gateway_all_of_a_limit_is_found_out(monkeypatch):
    monkeypatch.setattr(shares, "divided", lambda limit, asks, turn: dict.fromkeys(asks, limit))
    monkeypatch.setattr(shares._Seat, "holds", lambda seat, key: 0)
    assert "limits hold over all gateways" in broken_promises()
