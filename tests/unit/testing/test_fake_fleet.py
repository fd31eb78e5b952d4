"""The fake fleet keeps the port's contract: idempotent wishes, unknown ids, one report of a stop, cold starts in virtual time."""

import random

import pytest

from forebay.domain.replica import ReplicaState as S
from forebay.domain.replica import StageTime
from forebay.testing import loop
from forebay.testing.clock import LoopClock
from forebay.testing.fleet import FakeFleet, FakeStart

START = FakeStart((StageTime("provision", 100.0), StageTime("weights", 20.0)), stop_s=3.0)


def play(scenario, start=START):
    async def main():
        clock = LoopClock()
        fleet = FakeFleet(clock, random.Random(1), {"chat": start})

        async def at(now_s):
            await clock.sleep_until(now_s)
            return {view.id: view for view in await fleet.observe()}

        return await scenario(fleet, at)

    return loop.run(main)


def test_a_start_takes_its_stages():
    async def scenario(fleet, at):
        await fleet.ensure("chat", ["a"])
        await at(50.0)
        await fleet.ensure("chat", ["a", "b"])
        states = [(await at(now_s))["a"].state for now_s in (99.0, 101.0, 119.0, 121.0)]
        assert states == [S.PROVISIONING, S.LOADING, S.LOADING, S.READY]
        views = await at(121.0)
        assert views["a"].cold_start_s == 120.0
        assert views["a"].since_s == 120.0
        assert views["a"].url == "http://a:8000"
        assert views["b"].state is S.PROVISIONING
        assert fleet.wishes == [("start", "a"), ("start", "b")]

    play(scenario)


def test_unknown_ids_and_pools():
    async def scenario(fleet, at):
        await fleet.drain("nobody", 1.0)
        await fleet.cancel_drain("nobody")
        await fleet.stop("nobody")
        with pytest.raises(KeyError):
            await fleet.ensure("other", ["a"])
        return await fleet.observe()

    assert play(scenario) == ()


def test_a_drain_can_be_cancelled_until_the_stop():
    async def scenario(fleet, at):
        await fleet.ensure("chat", ["a"])
        await fleet.drain("a", 1.0)
        assert (await at(121.0))["a"].state is S.READY
        await fleet.drain("a", 1.0)
        assert (await at(122.0))["a"].state is S.DRAINING
        await fleet.cancel_drain("a")
        assert (await at(123.0))["a"].state is S.READY
        await fleet.stop("a")
        await fleet.stop("a")
        await fleet.cancel_drain("a")
        assert (await at(125.0))["a"].state is S.DRAINING
        assert (await at(127.0))["a"].state is S.STOPPED
        assert await at(128.0) == {}
        assert fleet.wishes == [("start", "a"), ("drain", "a"), ("cancel", "a"), ("stop", "a")]

    play(scenario)


def test_a_pending_one_can_be_stopped_and_does_not_come_back():
    async def scenario(fleet, at):
        await fleet.ensure("chat", ["a"])
        await at(99.0)
        await fleet.stop("a")
        assert (await at(101.5))["a"].state is S.PROVISIONING
        assert (await at(103.0))["a"].state is S.STOPPED
        assert await at(500.0) == {}

    play(scenario)


def test_a_crash_comes_back_in_place_and_a_draining_one_does_not():
    async def scenario(fleet, at):
        await fleet.ensure("chat", ["a", "b"])
        await at(121.0)
        await fleet.drain("b", 1.0)
        fleet.crash("a")
        fleet.crash("b")
        views = await at(122.0)
        assert (views["a"].state, views["b"].state) == (S.FAILED, S.STOPPED)
        assert views["a"].problem == "died of signal 11"
        assert (await at(132.0))["a"].state is S.PROVISIONING
        view = (await at(260.0))["a"]
        assert (view.state, view.restarts, view.problem) == (S.READY, 1, "")

    play(scenario)


def test_starts_fail_by_the_chance():
    async def scenario(fleet, at):
        names = [f"r{number}" for number in range(40)]
        await fleet.ensure("chat", names)
        views = await at(121.0)
        return [views[name].state for name in names]

    states = play(scenario, FakeStart(START.stages, failures=0.5))
    assert 10 < states.count(S.FAILED) < 30
    assert set(states) == {S.FAILED, S.READY}
    assert states == play(scenario, FakeStart(START.stages, failures=0.5))
