"""The controller's look at an edited file: lists of engines that are right are taken, and what is wrong is told."""

import asyncio

import pytest

from forebay.app import config
from forebay.app.reattaching import Reattaching
from forebay.app.wiring import controller
from forebay.controller.reports import Reports
from forebay.domain.errors import BadInput
from forebay.domain.reloads import Reloads
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


class Owner:
    """What goes by the file."""

    def __init__(self, path):
        self.spec, self.reloads, self.told = config.load(path), Reloads(), []

    def tell(self, kind, message):
        self.told.append((kind, message))


def reloaded(path, take, owner):
    def taken(spec):
        take(spec)
        owner.spec = spec

    async def main():
        await Reattaching(path, taken, path, owner).reload()

    asyncio.run(main())


def test_a_list_that_is_right_is_taken_and_a_file_that_is_wrong_is_not(edited):
    taken, owner = [], Owner(edited)
    edited.write_text(FILE.format(f"{ONE}, {TWO}"))
    reloaded(edited, taken.append, owner)
    assert taken[0].pools[0].engine.attach == ("http://127.0.0.1:9", "http://127.0.0.1:7")
    assert (owner.told, owner.reloads.taken) == ([], 1), "what was taken the fleet tells"
    edited.write_text(FILE.format(ONE) + "nonsense: 1\n")
    reloaded(edited, taken.append, owner)
    assert len(taken) == 1


def test_a_file_that_the_controller_can_not_take_is_told_once_and_counted_until_it_is_right(edited):
    """It said nothing: where only the controller could not take it, nobody did."""

    def refuse(spec):
        raise BadInput("pools.chat.engine: found no CHAT_KEY in the environment; nothing was started")

    owner = Owner(edited)
    reloaded(edited, refuse, owner)
    words = "the controller keeps the configuration before: pools.chat.engine: found no CHAT_KEY in the environment"
    assert owner.told == [("config_refused", words)]
    assert (owner.reloads.refused, owner.reloads.waits, owner.reloads.taken) == (1, True, 0)
    edited.write_text("pools: [")
    reloaded(edited, lambda spec: None, owner)
    assert [kind for kind, _ in owner.told] == ["config_refused", "config_refused"]
    assert "forebay.yaml:1" in owner.told[1][1]
    edited.write_text(FILE.format(ONE))
    for _ in range(2):
        reloaded(edited, lambda spec: None, owner)
    assert [kind for kind, _ in owner.told] == ["config_refused", "config_refused", "config_taken"]
    assert (owner.reloads.refused, owner.reloads.waits, owner.reloads.taken) == (2, False, 0)


def test_an_edit_that_came_before_this_controller_did_is_taken_by_it(edited, tmp_path, monkeypatch):
    monkeypatch.setattr("forebay.app.watched_file.LOOK_EVERY_REAL_S", 0.001)
    saved, taken = tmp_path / "absent", asyncio.Event()

    async def main():
        running = asyncio.create_task(Reattaching(edited, lambda spec: taken.set(), saved, Owner(edited)).run())
        async with asyncio.timeout(10):
            await taken.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_the_whole_controller_takes_it_fleet_and_rosters_and_history(edited, tmp_path):
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


def test_the_whole_controller_tells_a_file_that_it_refused_in_its_history_and_on_its_page(edited, tmp_path):
    async def main():
        (tmp_path / "logs").mkdir()
        system = await controller(config.load(edited), tmp_path, LoopClock(), None)
        edited.write_text(FILE.format(ONE).replace("llama-3.1-8b", "other"))
        await Reattaching(edited, system.take, edited, system.controller).reload()
        told = [event.message for event in system.store.events(limit=100) if event.kind == "config_refused"]
        families = {family.name: family for family in Reports(system.controller, system.controller._store, LoopClock()).registry.collect()}
        await system.close()
        return told, families

    told, families = asyncio.run(main())
    assert len(told) == 1
    assert "found changes in pools.chat (model)" in told[0]
    assert families["forebay_config_refused"].samples[0].value == 1.0
    assert {sample.labels["result"]: sample.value for sample in families["forebay_config_reloads"].samples} == {"taken": 0, "refused": 1}
