"""The controller's look at an edited file: lists of engines that are right are taken, and what is wrong is left to the gateway to say."""

import asyncio

import pytest

from forebay.app.reattaching import Reattaching
from forebay.app.wiring import controller
from forebay.domain.errors import BadInput
from forebay.testing.clock import LoopClock

FILE = """
pools:
  chat: {{model: llama-3.1-8b, attach: [{}]}}
admin: {{listen: "127.0.0.1:0"}}
"""
ONE, TWO = '"http://127.0.0.1:9"', '"http://127.0.0.1:7"'


@pytest.fixture
def edited(tmp_path):
    path = tmp_path / "forebay.yaml"
    path.write_text(FILE.format(ONE))
    return path


def reloaded(path, take):
    async def main():
        await Reattaching(path, take, path).reload()

    asyncio.run(main())


def test_a_list_that_is_right_is_taken_and_a_file_that_is_wrong_is_not(edited):
    taken = []
    edited.write_text(FILE.format(f"{ONE}, {TWO}"))
    reloaded(edited, taken.append)
    assert taken[0].pools[0].engine.attach == ("http://127.0.0.1:9", "http://127.0.0.1:7")
    edited.write_text(FILE.format(ONE) + "nonsense: 1\n")
    reloaded(edited, taken.append)
    assert len(taken) == 1


def test_what_needs_a_new_start_is_left_to_the_gateway_to_say(edited):
    def refuse(spec):
        raise BadInput("no")

    reloaded(edited, refuse)


def test_an_edit_that_came_before_this_controller_did_is_taken_by_it(edited, tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.app.watched_file.LOOK_EVERY_REAL_S", 0.001)
    saved, taken = tmp_path / "absent", asyncio.Event()

    async def main():
        running = asyncio.create_task(Reattaching(edited, lambda spec: taken.set(), saved).run())
        async with asyncio.timeout(10):
            await taken.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_the_whole_controller_takes_it_fleet_and_rosters_and_history(edited, tmp_path):
    from forebay.app import config

    async def main():
        (tmp_path / "logs").mkdir()
        system = await controller(config.load(edited), tmp_path, LoopClock(), None)
        edited.write_text(FILE.format(TWO))
        system.take(config.load(edited))
        system.take(config.load(edited))
        views = await system.fleet.observe()
        told = [event.message for event in system.store.events(limit=100) if event.kind == "attach_taken"]
        await system.close()
        return [view.id for view in views], told

    assert asyncio.run(main()) == (["chat@127.0.0.1:7"], ["attach: +127.0.0.1:7, -127.0.0.1:9"])
