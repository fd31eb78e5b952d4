"""Worlds whose only gateway crashes while the controller is away: the next process serves by the kept roster, and no promise is broken."""

import msgspec
import pytest

from forebay.app.world.clients import Told
from forebay.app.world.plan import Event, Trouble, draw
from forebay.app.world.run import VIRTUAL_S_MAX, World
from forebay.gateway import keeping
from forebay.testing.loop import run

AWAY = Event(250.0, 120.0, Trouble.CONTROLLER_RESTART, 0)
"""For a quarter of the time: to 280 s."""
CRASH = Event(252.0, 2.0, Trouble.GATEWAY_CRASH, 0)


def lived(seed):
    plan = msgspec.structs.replace(draw(seed), events=(AWAY, CRASH))

    async def main():
        world = World(plan)
        answers = await world.live()
        return world, world.verdict(answers), answers

    world, verdict, answers = run(main, seed, time_limit_s=VIRTUAL_S_MAX)
    began = [wish.number for wish in plan.wishes if 254.0 <= wish.at_s < 270.0 and wish.patience_s > 100.0]
    return world, verdict, [answers[number].told for number in began if answers[number].ended_s < 280.0]


@pytest.mark.parametrize("seed", [0, 3, 8])
def test_the_next_process_serves_by_the_kept_roster(seed):
    world, verdict, meanwhile = lived(seed)
    assert verdict.ok, verdict.broken
    assert "roster_kept" in world.sink.kinds()
    assert Told.COMPLETE in meanwhile


def test_without_one_nobody_is_served_meanwhile(monkeypatch):
    monkeypatch.setattr(keeping, "AGE_REAL_S_MAX", -1.0)
    world, _, meanwhile = lived(0)
    assert "roster_unusable" in world.sink.kinds()
    assert meanwhile
    assert Told.COMPLETE not in meanwhile
