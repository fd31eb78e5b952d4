"""Attached engines whose list changes: the new are watched, those that served drain until they are told to stop, the others go at once."""

import pytest

from forebay.adapters.local import AttachedFleet, Contexts
from forebay.adapters.local.attached import KEY_LOOK_EVERY
from forebay.domain.replica import ReplicaState as S
from forebay.ports.upstream import End, ResponseHead
from forebay.spec.types import EngineKind, Model, Pool, Spec
from forebay.testing import loop
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink

A, B, C = (f"http://10.0.0.{number}:8000" for number in (1, 2, 3))


class Engines:
    """Which answer 200, but those in ``sick``, and serve ``model``."""

    def __init__(self, *sick, model="m", guarded=()):
        self.sick, self.asked, self.forgotten = set(sick), [], []
        self.guarded, self.statuses = dict(guarded), []
        self.body = b'{"data": [{"id": "%b"}]}' % model.encode()

    def send(self, url, request, sink, timeout_s=None):
        self.asked.append(url)
        status = self.guarded.get(request.split(b" ")[1].decode(), 500 if url in self.sick else 200)
        self.statuses.append(status)
        sink.head(ResponseHead(status, (), False, len(self.body)))
        sink.data(self.body, self.body, True, True)
        sink.end(End.COMPLETE, "")

    def forget(self, url):
        self.forgotten.append(url)


def listing(*urls):
    return Spec((Pool("chat", "m", EngineKind("attach", attach=urls)),), (Model("m"),), ())


def played(test, engines, *urls, sink=None):
    """``test(fleet, look)`` after a second; ``look()`` is the states by address, a second later."""

    async def main():
        clock = LoopClock()
        fleet = AttachedFleet(listing(*urls), clock, engines, sink or ListSink())
        await fleet.adopt()

        async def look():
            await clock.sleep_until(clock.now_s() + 1.0)
            return {view.url: view.state for view in await fleet.observe()}

        await look()
        await test(fleet, look)
        await fleet.close()

    loop.run(main)


def test_what_is_listed_anew_is_watched_and_the_others_stay_as_they_were():
    async def test(fleet, look):
        before = (await fleet.observe())[0]
        assert fleet.use(listing(A, B)) == {"chat@10.0.0.2:8000"}
        assert (await fleet.observe())[0] is before
        assert await look() == {A: S.READY, B: S.READY}

    played(test, Engines(), A)


def test_the_same_list_in_another_order_changes_no_state():
    async def test(fleet, look):
        before = set(await fleet.observe())
        assert fleet.use(listing(B, A)) == frozenset()
        assert set(await fleet.observe()) == before
        assert engines.forgotten == []

    engines = Engines()
    played(test, engines, A, B)


def test_what_served_and_left_drains_unwatched_until_it_is_told_to_stop():
    async def test(fleet, look):
        fleet.use(listing(B))
        assert await look() == {A: S.DRAINING, B: S.READY}
        asked = engines.asked.count(A)
        fleet.use(listing(B))  # the next change finds it draining
        for _ in range(9):
            assert await look() == {A: S.DRAINING, B: S.READY}
        assert engines.asked.count(A) == asked
        await fleet.drain("chat@10.0.0.1:8000", 600.0)
        await fleet.stop("chat@10.0.0.1:8000")
        assert await look() == {B: S.READY}
        assert engines.forgotten == [A]
        assert not fleet.knows("chat@10.0.0.1:8000")
        assert sink.kinds() == [], "to stop it is no advice"

    engines, sink = Engines(), ListSink()
    played(test, engines, A, B, sink=sink)


def test_what_does_not_serve_goes_at_once():
    async def test(fleet, look):
        assert await look() == {A: S.FAILED, B: S.READY}
        fleet.use(listing(B))
        assert await look() == {B: S.READY}
        assert engines.forgotten[-1] == A

    engines = Engines(A)
    played(test, engines, A, B)


def test_what_is_listed_again_while_it_drains_serves_and_is_watched():
    async def test(fleet, look):
        fleet.use(listing(B))
        assert fleet.use(listing(B, A)) == frozenset()
        assert await look() == {A: S.READY, B: S.READY}
        engines.sick.add(A)
        for _ in range(40):
            states = await look()
        assert states == {A: S.FAILED, B: S.READY}

    engines = Engines()
    played(test, engines, A, B)


def test_nothing_is_watched_before_it_is_begun_with_or_after_its_end():
    async def main():
        fleet = AttachedFleet(listing(A), LoopClock(), engines, ListSink())
        fleet.use(listing(A, B))
        await LoopClock().sleep_until(LoopClock().now_s() + 9.0)
        assert engines.asked == []
        await fleet.adopt()
        await fleet.close()
        fleet.use(listing(C))
        await LoopClock().sleep_until(LoopClock().now_s() + 9.0)

    engines = Engines()
    loop.run(main)
    assert set(engines.asked) <= {A, B}


def test_an_engine_that_is_listed_anew_is_asked_for_its_model_once():
    async def main():
        clock, sink, engines = LoopClock(), ListSink(), Engines(model="tiny")
        fleet, contexts = AttachedFleet(listing(A), clock, engines, sink), Contexts(listing(A), engines, clock, sink)
        await fleet.adopt()
        for urls in ((A,), (A, B), (A, B), (B, A)):
            if new := fleet.use(listing(*urls)):
                contexts.attached(new)
            for _ in range(3):
                await clock.sleep_until(clock.now_s() + 1.0)
                contexts.see(await fleet.observe())
        await contexts.close()
        await fleet.close()
        return [event.message.split()[0] for event in sink.events if event.kind == "model_differs"]

    assert loop.run(main) == ["chat@10.0.0.1:8000", "chat@10.0.0.2:8000"]


@pytest.mark.parametrize("path", ["/v1/models", "/health"])
def test_an_engine_that_refuses_its_key_is_failed_and_told_once_and_serves_when_it_takes_one(path):
    """Its health is good, and every request to it would have been refused."""
    engines, sink = Engines(guarded={path: 401}), ListSink()

    async def test(fleet, look):
        for _ in range(20):
            assert await look() == {A: S.FAILED}
        (view,) = await fleet.observe()
        assert view.asks_key
        assert view.problem.startswith("asks for a key (it answers 401), and is given none: name the environment variable")
        assert sink.kinds() == ["engine_asks_key"]
        assert sink.events[0].message.startswith("chat@10.0.0.1:8000 asks for a key (it answers 401)")
        assert engines.statuses.count(401) <= 6, "it is asked as seldom as one that is ready"
        engines.guarded.clear()
        fleet.look_again()
        assert await look() == {A: S.READY}
        (view,) = await fleet.observe()
        assert (view.asks_key, view.problem) == (False, "")

    played(test, engines, A, sink=sink)


def test_one_that_asks_for_a_key_later_is_found_out_though_its_health_stays_good():
    engines = Engines()

    async def test(fleet, look):
        assert await look() == {A: S.READY}
        engines.guarded["/v1/models"] = 403
        fleet.look_again()
        for _ in range(6):
            states = await look()
        assert states == {A: S.FAILED}
        engines.guarded.clear()
        for _ in range(6):
            states = await look()
        assert states == {A: S.READY}
        engines.guarded["/v1/models"] = 401
        for _ in range(5 * KEY_LOOK_EVERY + 5):
            states = await look()
        assert states == {A: S.FAILED}, "nobody said that there is another key"

    played(test, engines, A)


def test_an_engine_that_was_down_and_comes_back_behind_a_key_is_told():
    engines, sink = Engines(A), ListSink()

    async def test(fleet, look):
        assert await look() == {A: S.FAILED}
        engines.sick.clear()
        engines.guarded["/v1/models"] = 401
        assert await look() == {A: S.FAILED}
        (view,) = await fleet.observe()
        assert "asks for a key" in view.problem
        assert sink.kinds() == ["engine_asks_key"]

    played(test, engines, A, sink=sink)


def test_one_that_asked_for_a_key_and_is_down_now_is_said_to_be_down():
    engines = Engines(guarded={"/v1/models": 401})

    async def test(fleet, look):
        await look()
        assert (await fleet.observe())[0].asks_key
        engines.sick.add(A)
        for _ in range(6):
            assert await look() == {A: S.FAILED}
        (view,) = await fleet.observe()
        assert (view.asks_key, view.problem) == (False, "/health answered 500")

    played(test, engines, A)
