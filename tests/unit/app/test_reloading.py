"""A configuration file that is edited: read when it stands still, taken or refused, and said."""

import asyncio
import os
import random

import pytest

from forebay.adapters.clock import LoopClock, RandomIds
from forebay.adapters.upstream import HttpUpstream
from forebay.app import config
from forebay.app.gateway_wiring import GatewaySystem
from forebay.app.reloading import Reloader
from forebay.gateway.service import Gateway
from forebay.testing.events import ListSink

FILE = """
pools:
  chat: {{model: llama-3.1-8b, profile: own, attach: ["http://127.0.0.1:9"]}}
profiles:
  own: {{base: llama-3.1-8b-h100, sequences: 4}}
teams:
  search:
    keys: [{{key: {key}, tier: interactive}}]
"""


@pytest.fixture
def edited(tmp_path):
    """``edited(test)``: ``test(path, reloader, gateway, sink, kept)`` beside a gateway of the file at ``path``."""

    def go(test):
        path, kept, sink = tmp_path / "forebay.yaml", [], ListSink()
        path.write_text(FILE.format(key="sk-one-0123456789"))

        async def main():
            clock, upstream, chance = LoopClock(1.0), HttpUpstream(), random.Random(1)
            gateway = Gateway(config.load(path), clock, RandomIds(), upstream, chance, sink, "gw")
            reloader = Reloader(path, GatewaySystem(gateway, upstream, clock, sink, chance), kept.append)
            await test(path, reloader, gateway, sink, kept)

        asyncio.run(main())

    return go


def test_what_is_right_is_taken_and_kept_for_those_who_start_later(edited):
    async def test(path, reloader, gateway, sink, kept):
        path.write_text(FILE.format(key="sk-two-0123456789"))
        await reloader.reload()
        assert gateway.spec.teams[0].keys == (("sk-two-0123456789", "interactive"),)
        assert kept == [gateway.spec]
        assert sink.kinds() == ["config_taken"]
        await reloader.reload()  # the same again is no news
        assert (sink.kinds(), gateway.reloads.taken) == (["config_taken"], 1)
        # The profile's numbers stand in another line now: the same profile all the same.
        path.write_text("# a comment\n" + FILE.format(key="sk-three-0123456789"))
        await reloader.reload()
        assert gateway.reloads.taken == 2

    edited(test)


@pytest.mark.parametrize("text", ["pools: [", "pools: {}\n", FILE.format(key="sk-one-0123456789") + "colour: red\n"])
def test_what_is_wrong_is_refused_in_the_words_of_check_and_nothing_changes(edited, text):
    async def test(path, reloader, gateway, sink, kept):
        before = gateway.spec
        path.write_text(text)
        await reloader.reload()
        assert gateway.spec is before
        assert (kept, gateway.reloads.refused, gateway.reloads.waits) == ([], 1, True)
        (event,) = sink.events
        assert event.kind == "config_refused"
        assert "the configuration before is kept" in event.message
        assert "forebay.yaml" in event.message
        assert "nothing was started" not in event.message
        refused = gateway.report().refused
        assert refused
        assert refused.removesuffix(" …") in event.message, "the controller is told, for its status"
        path.write_text(FILE.format(key="sk-one-0123456789"))
        await reloader.reload()
        assert (gateway.reloads.waits, gateway.report().refused) == (False, "")
        assert sink.kinds() == ["config_refused", "config_taken"], "who undoes a mistake is told that it is undone"
        assert gateway.reloads.taken == 0
        await reloader.reload()
        assert len(sink.events) == 2

    edited(test)


def test_what_needs_a_new_start_is_refused_by_name(edited):
    async def test(path, reloader, gateway, sink, kept):
        path.write_text(FILE.format(key="sk-one-0123456789").replace("sequences: 4", "sequences: 5") + "state: other\n")
        await reloader.reload()
        assert "found changes in pools.chat (profile)" in sink.events[0].message
        assert kept == []

    edited(test)


def test_it_is_read_once_it_stands_still(edited, monkeypatch):
    monkeypatch.setattr("forebay.app.watched_file.LOOK_EVERY_REAL_S", 0.001)

    async def test(path, reloader, gateway, sink, kept):
        reads, written = [], iter(range(4))

        async def reload():
            reads.append(path.read_text())
            reloader._read = reloader._stamp()
            raise asyncio.CancelledError

        stamp = reloader._stamp

        def stamp_while_it_is_written():
            number = next(written, None)
            if number is not None:
                path.write_text("x" * (number + 1))
                os.utime(path, ns=(number + 1, number + 1))
            return stamp()

        reloader._stamp = stamp_while_it_is_written
        reloader.reload = reload
        with pytest.raises(asyncio.CancelledError):
            await reloader.run()
        assert reads == ["xxxx"]

    edited(test)


def test_a_signal_has_it_read_at_once(edited, monkeypatch):
    monkeypatch.setattr("forebay.app.watched_file.LOOK_EVERY_REAL_S", 3600.0)

    async def test(path, reloader, gateway, sink, kept):
        path.write_text(FILE.format(key="sk-two-0123456789"))
        running = asyncio.create_task(reloader.run())
        reloader.ask()
        async with asyncio.timeout(10):
            while not kept:
                await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    edited(test)


@pytest.mark.parametrize("edited_after", [True, False])
def test_an_edit_just_before_a_crash_is_taken_by_the_process_that_starts_then(edited, tmp_path, monkeypatch, edited_after):
    monkeypatch.setattr("forebay.app.watched_file.LOOK_EVERY_REAL_S", 0.001)

    async def test(path, reloader, gateway, sink, kept):
        saved = tmp_path / "spec.msgpack"
        saved.touch()  # of the configuration that the gateway serves by
        path.write_text(FILE.format(key="sk-two-0123456789"))
        at_ns = saved.stat().st_mtime_ns + (1 if edited_after else -1)
        os.utime(path, ns=(at_ns, at_ns))
        started = Reloader(path, reloader._system, kept.append, saved)
        running = asyncio.create_task(started.run())
        async with asyncio.timeout(10):
            while edited_after and not kept:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert len(kept) == edited_after
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    edited(test)


def test_a_pipe_in_the_files_place_is_refused_and_the_next_file_is_taken(edited):
    async def test(path, reloader, gateway, sink, kept):
        path.unlink()
        os.mkfifo(path)  # to be opened by nobody: a thread would wait for its writer for ever
        async with asyncio.timeout(10):
            await reloader.reload()
        assert "found a pipe or a device; allowed: a file" in sink.events[0].message
        path.unlink()
        path.write_text(FILE.format(key="sk-two-0123456789"))
        await reloader.reload()
        assert sink.kinds() == ["config_refused", "config_taken"]

    edited(test)


def test_a_pipe_that_the_configuration_came_by_is_not_read_again(edited):
    async def test(path, reloader, gateway, sink, kept):
        path.unlink()
        os.mkfifo(path)
        before = reloader._stamp()
        os.utime(path, ns=(1, 1))  # as by reading
        assert reloader._stamp() == before

    edited(test)


def test_a_file_that_lost_its_teams_is_refused(edited):
    async def test(path, reloader, gateway, sink, kept):
        whole = path.read_text()
        path.write_text(whole[: whole.index("teams:")])  # half written, and right by itself
        await reloader.reload()
        assert "teams: found none; allowed while Forebay runs: one at least" in sink.events[0].message
        assert kept == []

    edited(test)
