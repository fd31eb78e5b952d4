"""The webhook against a real receiver on the loopback: order, retries, bounds, and secrets kept."""

import asyncio
import json
import random

import pytest
from aiohttp import web

from forebay.adapters.webhook import Pace, Webhook
from forebay.domain.errors import BadInput
from forebay.domain.events import Event
from forebay.testing.events import ListSink

pytestmark = pytest.mark.e2e
FAST = Pace(attempts_max=3, pause_first_s=0.01, pause_most_s=0.02, timeout_s=5.0, queue_max=3)


def alert(number):
    return Event("alert", 1.0, 2.0, "chat", f"number {number}", {"n": number})


class Receiver:
    """Answers with the statuses it was given, then 200; keeps the bodies."""

    def __init__(self, *statuses):
        self.statuses = list(statuses)
        self.bodies = []
        self.go = asyncio.Event()
        self.go.set()

    async def handle(self, request):
        await self.go.wait()
        self.bodies.append(json.loads(await request.read()))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 200)

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/secret-token", self.handle)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}/secret-token"
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()


def play(receiver_statuses, scenario):
    async def main():
        async with Receiver(*receiver_statuses) as receiver:
            problems = ListSink()
            hook = Webhook(receiver.url, random.Random(1), problems, pace=FAST)
            await asyncio.wait_for(scenario(hook, receiver), 20)
            await hook.close()
            await hook.close()
            return hook, receiver, problems

    return asyncio.run(main())


async def emit_two(hook, receiver):
    hook.emit(alert(1))
    hook.emit(Event("scale", 0.0, 0.0))
    hook.emit(alert(2))


def test_alerts_arrive_in_order_and_nothing_else_does():
    hook, receiver, problems = play([], emit_two)
    assert [body["message"] for body in receiver.bodies] == ["number 1", "number 2"]
    assert receiver.bodies[0] == {
        "text": "[chat] alert: number 1",
        "kind": "alert",
        "pool": "chat",
        "message": "number 1",
        "wall_s": 2.0,
        "detail": {"n": 1},
    }
    assert (hook.delivered, hook.dropped, problems.kinds()) == (2, 0, [])


def test_a_receiver_in_trouble_is_tried_again():
    hook, receiver, _ = play([500, 429], emit_two)
    assert [body["message"] for body in receiver.bodies] == ["number 1", "number 1", "number 1", "number 2"]
    assert (hook.delivered, hook.dropped) == (2, 0)


@pytest.mark.parametrize(("statuses", "posts"), [([503, 503, 503], 4), ([404], 2), ([302], 2)], ids=["down", "wrong", "moved"])
def test_what_is_given_up_is_told_without_the_address(statuses, posts):
    hook, receiver, problems = play(statuses, emit_two)
    assert len(receiver.bodies) == posts
    assert (hook.delivered, hook.dropped) == (1, 1)
    [problem] = problems.events
    assert problem.kind == "webhook_failed"
    assert f"it answered {statuses[0]}" in problem.message
    assert "127.0.0.1" in problem.message
    assert "secret" not in problem.message


def test_the_queue_is_bounded_and_loses_the_oldest():
    async def scenario(hook, receiver):
        receiver.go.clear()
        hook.emit(alert(0))
        await asyncio.sleep(0.05)
        for number in range(1, 6):
            hook.emit(alert(number))
        receiver.go.set()

    hook, receiver, problems = play([], scenario)
    assert [body["detail"]["n"] for body in receiver.bodies] == [0, 3, 4, 5]
    assert hook.dropped == 2
    assert "the queue is full" in problems.events[0].message


def test_nobody_there_is_told():
    async def main():
        problems = ListSink()
        hook = Webhook("http://127.0.0.1:9/x", random.Random(1), problems, pace=FAST)
        hook.emit(alert(1))
        await hook.close()
        hook.emit(alert(2))
        return hook, problems

    hook, problems = asyncio.run(main())
    assert hook.dropped == 1
    assert "ClientConnectorError" in problems.events[0].message


def test_an_address_must_be_one():
    async def main():
        Webhook("hooks.example/secret", random.Random(1))

    with pytest.raises(BadInput, match="webhook") as error:
        asyncio.run(main())
    assert "secret" not in str(error.value)
