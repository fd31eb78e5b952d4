"""A replica hangs so that the controller can't reach it either, and takes it off the roster: what it has goes on elsewhere all the same."""

import asyncio

import msgspec
import pytest
from emulated_fleet import PROFILE, body, fleet
from gateway_values import SPEC

from forebay.domain.roster import Roster, RosterPool
from forebay.gateway.pool_desk import STALL_S_MIN
from forebay.gateway.prober import PROBE_REAL_S
from forebay.gateway.silence import HUNG, OVERDUE_S_MIN

SPEC_PROFILED = msgspec.structs.replace(SPEC, pools=(msgspec.structs.replace(SPEC.pools[0], profile=PROFILE),))


def only(front, *kept):
    """The controller lists these alone."""
    pool = front.gateway.desk.pools["chat"]
    kept = tuple(each for each in pool.roster.replicas if each.id in kept)
    front.gateway.apply(Roster(1, 2, 10.0, (RosterPool("chat", kept),)))


async def warm(front):
    answers = await asyncio.gather(*[front.ask(body(2, stream=False)) for _ in range(4)])
    assert {answer.headers["x-forebay-replica"] for answer in answers} == {"r0", "r1"}


@pytest.mark.parametrize("listed_s", [0.5, 3.0])
def test_its_streams_go_on_at_another_as_if_nothing_had_been(listed_s):
    """They were told 504 after ten minutes: only a replica that was still listed could be found out."""

    async def test(front):
        await warm(front)
        tasks = [await front.asked(body(400), wait_s=0.0) for _ in range(6)]
        await asyncio.sleep(0.2)
        front.fault(front.engines[0], "hang")
        hung_s = front.clock.now_s()
        await asyncio.sleep(listed_s)
        only(front, "r1")
        answers = await asyncio.gather(*tasks)
        assert front.clock.now_s() - hung_s < STALL_S_MIN + 20
        assert {answer.status for answer in answers} == {200}
        assert front.outcomes == {"completed": 10}

    fleet(test, spec=SPEC_PROFILED)


def test_its_whole_answers_come_from_another():
    async def test(front):
        await warm(front)
        front.fault(front.engines[0], "hang")
        hung_s = front.clock.now_s()
        tasks = [await front.asked(body(20, stream=False), wait_s=0.0) for _ in range(6)]
        await asyncio.sleep(0.5)
        only(front, "r1")
        answers = await asyncio.gather(*tasks)
        assert {(answer.status, answer.headers["x-forebay-replica"]) for answer in answers} == {(200, "r1")}
        assert front.clock.now_s() - hung_s < OVERDUE_S_MIN + PROBE_REAL_S + 3
        assert front.gateway.desk.pools["chat"].silences.found[HUNG] == 1

    fleet(test, spec=SPEC_PROFILED)


def test_one_that_drains_and_is_slow_keeps_what_it_has():
    """It answers whoever asks, so it lives."""

    async def test(front):
        await warm(front)
        front.fault(front.engines[0], "slow", factor=60.0)
        tasks = [await front.asked(body(150, stream=False), wait_s=0.0) for _ in range(4)]
        await asyncio.sleep(0.5)
        only(front, "r1")
        answers = await asyncio.gather(*tasks)
        assert {answer.status for answer in answers} == {200}
        assert front.meter.retries == 0
        assert "r0" in {answer.headers["x-forebay-replica"] for answer in answers}

    fleet(test, spec=SPEC_PROFILED)


def test_where_nobody_is_left_it_is_waited_for():
    async def test(front):
        await warm(front)
        tasks = [await front.asked(body(100), wait_s=0.0), await front.asked(body(20, stream=False), wait_s=0.0)]
        await asyncio.sleep(0.05)
        for engine in front.engines:
            front.fault(engine, "hang")
        only(front)
        await asyncio.sleep(100)
        for engine in front.engines:
            engine.clear_faults()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert front.meter.retries == 0

    fleet(test, spec=SPEC_PROFILED)
