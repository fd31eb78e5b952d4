"""Worlds with two gateways: replicas are never shared, whichever of gateways and controller crash or are cut off; and sabotage is found out."""

import msgspec
import pytest

from forebay.admission import lessee, shares
from forebay.app.world.plan import OF_SEVERAL, Event, Trouble, draw
from forebay.app.world.run import VIRTUAL_S_MAX, World, judge
from forebay.testing.loop import run

SABOTAGE_SEEDS = range(6)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 25, 48])
def test_a_world_of_two_gateways_holds_its_promises(seed):
    verdict = judge(seed, gateways=2)
    assert verdict.ok, verdict.broken
    assert verdict.told["complete"] > 0


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
