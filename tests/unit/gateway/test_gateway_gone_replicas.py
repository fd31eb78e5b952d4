"""Where nobody listens any more: requests wait for a replica, as they do where the roster has none, in place of a 503 each."""

import pytest
from several_gateways import BODY, CHAT, several

from forebay.admission.machine import NO_REPLICAS_HOLD_S
from forebay.admission.outliers import EJECT_S
from forebay.testing.loop import network


async def whole(seen, answer):
    answer.json(200, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})


async def asked(front, count):
    clients = [await front.client() for _ in range(count)]
    for client in clients:
        client.send(CHAT, BODY)
    await front.sleep(1.0)
    assert (front.waiting, front.permits) == (count, 0)
    return clients


def test_requests_whose_only_replica_has_just_died_wait_for_the_next_one(world):
    """Those that came before the controller had seen it were refused at once, and those after that were held."""

    async def test(front):
        (engine,) = front.engines
        network().refuse(engine.port)
        early = await asked(front, 3)
        front.route()  # the controller has seen it
        await front.sleep(1.0)
        network().refuse(engine.port, False)
        front.route(engine)  # started again, under its name
        assert [(await client.read()).status for client in early] == [200] * 3
        assert front.counts().completed == 3

    world(test, whole)


def test_an_engine_that_listens_again_is_found_by_a_probe(world):
    """Where nobody tells of it: the roster was right all along."""

    async def test(front):
        (engine,) = front.engines
        network().refuse(engine.port)
        early = await asked(front, 2)
        network().refuse(engine.port, False)
        assert [(await client.read()).status for client in early] == [200, 200]
        assert EJECT_S <= front.clock.now_s() <= EJECT_S + 3
        kinds = [event.kind for event in front.sink.events]
        assert [kind for kind in kinds if kind.startswith("replica_")] == ["replica_ejected", "replica_readmitted"]

    world(test, whole)


def test_with_none_on_its_way_it_is_said_after_the_hold(world):
    async def test(front):
        (engine,) = front.engines
        network().refuse(engine.port)
        clients = await asked(front, 2)
        retries = front.gateway.desk.pools["chat"].meters["interactive"].retries
        clients.append(await front.client())
        clients[-1].send(CHAT, BODY)
        for client in clients:
            answer = await client.read()
            assert (answer.status, answer.json()["error"]["code"]) == (503, "no_replicas")
            assert EJECT_S * 750 <= int(answer.headers["retry-after-ms"]) <= EJECT_S * 1250, "it is looked for that often; it was 30 s"
        assert NO_REPLICAS_HOLD_S <= front.clock.now_s() <= NO_REPLICAS_HOLD_S + 3
        assert front.gateway.desk.pools["chat"].meters["interactive"].retries == retries, "nothing is sent where nobody listens"

    world(test, whole)


@pytest.mark.parametrize("stream", [True, False])
def test_one_that_answers_wrong_is_no_replica_that_is_gone(world, stream):
    """It would be the same request's fault each time it is sent there again: it is refused at once, as before."""

    async def dies(seen, answer):
        answer.cut()

    async def test(front):
        answer = await front.ask({**BODY, "stream": stream})
        assert (answer.status, answer.json()["error"]["code"]) == (503, "no_replicas")
        assert front.clock.now_s() < 1
        assert len(front.engines[0].seen) == 1

    world(test, dies)


def test_it_goes_to_another_gateway_at_once_where_that_has_a_replica():
    async def test(world):
        world.lease("a", "b")
        network().refuse(world.engines[0].port)
        assert [(await world.ask("a")).headers.get("x-forebay-gateway") for _ in range(3)] == ["b"] * 3
        assert world.clock.now_s() < 1

    several(test, whole, whole)
