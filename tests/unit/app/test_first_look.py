"""What a gateway that runs alone finds out of its engines before the first request."""

import asyncio
import random

import pytest

from forebay.adapters.clock import RandomIds
from forebay.adapters.upstream import HttpUpstream
from forebay.app.first_look import AGAIN_REAL_S, START_REAL_S, FirstLook
from forebay.app.gateway_wiring import GatewaySystem
from forebay.gateway.roster import static_roster
from forebay.gateway.service import Gateway
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec
from forebay.testing.clock import LoopClock
from forebay.testing.events import ListSink
from forebay.testing.fake_engine import FakeEngine
from forebay.testing.loop import run
from forebay.testing.raw_client import RawClient

NOBODY = "http://127.0.0.1:9"


def serves(*names):
    async def script(_, answer):
        answer.json(200, {"object": "list", "data": [{"id": name} for name in names]})

    return script


async def asks_a_key(_, answer):
    answer.json(401, {"error": "Unauthorized"})


async def hangs(_, answer):
    await answer.gone.wait()


def looked(test, *scripts, gone=0, adapters=(), metrics="vllm"):
    """``test(sink, port, engines)`` after the first look at engines of these scripts and at ``gone`` addresses where nobody is."""

    async def main():
        engines = [FakeEngine(script) for script in scripts]
        urls = tuple([await engine.start() for engine in engines]) + tuple(f"{NOBODY}{number}" for number in range(gone))
        pool = Pool("chat", "llama", EngineKind("attach", attach=urls, metrics=metrics), adapters=adapters)
        spec = Spec((pool,), (Model("llama", 8192),), DEFAULT_TIERS)
        clock, sink, upstream, chance = LoopClock(), ListSink(), HttpUpstream(), random.Random(1)
        gateway = Gateway(spec, clock, RandomIds(), upstream, chance, sink, "gw")
        gateway.apply(static_roster(spec))
        look = FirstLook(GatewaySystem(gateway, upstream, clock, sink, chance))
        begun_s = clock.now_s()
        await look.begin()
        assert clock.now_s() - begun_s <= START_REAL_S + 0.01
        port = await gateway.start("127.0.0.1", 0)
        await test(sink, port, engines)
        await look.close()
        await gateway.close()
        for engine in engines:
            engine.stop()

    run(main)


def told(sink):
    return {event.kind: event.message for event in sink.events if event.kind != "roster"}


async def ready(port):
    client = await RawClient.connect(port)
    answer = await client.ask("/ready")
    client.close()
    return answer.status


def test_of_an_engine_that_is_as_configured_nothing_is_said():
    async def test(sink, port, _):
        assert told(sink) == {}
        assert await ready(port) == 200

    looked(test, serves("llama", "legal-lora"), adapters=("legal-lora",))


def test_a_gateway_whose_engines_are_not_there_is_not_ready_and_says_so_before_anybody_asks():
    async def test(sink, port, _):
        assert "nobody listens at http://127.0.0.1:90" in told(sink)["replica_ejected"]
        assert await ready(port) == 503

    looked(test, gone=1)


def test_an_engine_that_comes_later_is_looked_at_then():
    async def test(sink, port, _):
        await asyncio.sleep(1.0)
        await late.start(90)
        await asyncio.sleep(AGAIN_REAL_S)
        assert "serves tiny" in told(sink)["model_differs"]
        del port
        late.stop()

    late = FakeEngine(serves("tiny"))
    looked(test, gone=1)


def test_a_model_of_another_name_is_told_with_what_to_do():
    async def test(sink, port, _):
        words = told(sink)["model_differs"]
        assert "serves tiny, and not llama" in words
        assert "--served-model-name llama" in words
        assert await ready(port) == 200

    looked(test, serves("tiny"))


def test_llama_cpp_answers_to_any_name():
    async def test(sink, port, _):
        del port
        assert told(sink) == {}

    looked(test, serves("/models/llama.gguf"), metrics="llamacpp")


def test_the_replica_that_lacks_an_adapter_is_named():
    async def test(sink, port, engines):
        del port
        assert told(sink)["adapters_lacking"].startswith(f"chat@127.0.0.1:{engines[1].port} at ")

    looked(test, serves("llama", "legal-lora"), serves("llama"), adapters=("legal-lora",))


@pytest.mark.parametrize("metrics", ["vllm", "llamacpp"])
def test_an_engine_that_asks_for_a_key_is_told_with_what_to_do_and_is_not_ready(metrics):
    """llama.cpp lists its models to anybody."""

    async def test(sink, port, engines):
        assert f"chat@127.0.0.1:{engines[0].port} asks for a key (it answers 401)" in told(sink)["engine_asks_key"]
        assert "key_env or key_file in pools.chat.engine" in told(sink)["engine_asks_key"]
        assert await ready(port) == 503

    async def lists_models(seen, answer):
        await (serves("llama") if seen.line.startswith(b"GET /v1/models") else asks_a_key)(seen, answer)

    looked(test, asks_a_key if metrics == "vllm" else lists_models, metrics=metrics)


def test_an_engine_that_takes_its_key_later_is_looked_at_then():
    async def test(sink, port, engines):
        assert "engine_asks_key" in told(sink)
        engines[0].script = serves("tiny")
        await asyncio.sleep(2 * AGAIN_REAL_S)
        assert "serves tiny" in told(sink)["model_differs"]
        assert await ready(port) == 200

    looked(test, asks_a_key)


def test_one_that_says_nothing_is_waited_for_a_second_and_stays_in_routing():
    async def test(sink, port, _):
        assert told(sink) == {}
        assert await ready(port) == 200

    looked(test, hangs)
