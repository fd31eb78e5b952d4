"""A real vLLM's streams are cut anywhere, and go on token for token: `make test-vllm`, and no part of `make test`.

One engine stands behind two proxies, which are the gateway's two replicas; one of them resets the connection after so many
events, or within one. At temperature 0 the answer must be the one of an undisturbed request. The tiny model's words are
random bytes, so half characters are common. `FOREBAY_VLLM_URL` names an engine that runs already.
"""

import asyncio
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from forebay.adapters.clock import LoopClock, RandomIds
from forebay.adapters.upstream import HttpUpstream
from forebay.domain.roster import Capacity, Roster, RosterPool, RosterReplica
from forebay.gateway.service import Gateway
from forebay.spec.types import DEFAULT_TIERS, EngineKind, Model, Pool, Spec
from forebay.testing.events import ListSink
from forebay.testing.raw_client import RawClient, Response

CASES = 12
CAPACITY = Capacity(24_000, 4, 50_000, 10_000.0, 1_000.0, 2048)
WORDS = ("water", "gate", "flow", "é", "日本", "def", "return", "import", "class", "if", "123", "**", "==", "{}", "[x]")
OPEN = b'"finish_reason":null'
JSON = {"content-type": "application/json"}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.vllm,
]


class Cutter:
    """A replica's address in front of the engine; ``after`` events it cuts, on whichever of ``both`` they come."""

    def __init__(self, engine: str, both: "list[Cutter]") -> None:
        self.host, self.port = engine.removeprefix("http://").split(":")
        self.after: int | None = None
        self.within = 0
        self.seen = 0
        self.both = both

    async def start(self) -> str:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_connection(self.host, int(self.port))
        await asyncio.gather(self.up(reader, engine_writer), self.down(engine_reader, writer), return_exceptions=True)
        engine_writer.close()
        writer.close()

    async def up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.seen = 0
            writer.write(data)
        writer.close()

    async def down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            events = data.count(OPEN)
            if self.after is not None and self.seen + events >= self.after:
                at = 0
                for _ in range(self.after - self.seen):
                    at = data.find(OPEN, at) + len(OPEN)
                writer.write(data[: data.find(b"\n\n", at) + 4 - self.within])
                for cutter in self.both:
                    cutter.after = None
                await asyncio.sleep(0.02)
                writer.transport.abort()
                return
            self.seen += events
            writer.write(data)
        writer.close()


def _requests() -> Iterator[tuple[str, dict[str, Any], int]]:
    chance = random.Random(11)
    for number in range(CASES):
        prompt = " ".join(chance.choice(WORDS) for _ in range(chance.randint(3, 20)))
        tokens = chance.randint(30, 90)
        body: dict[str, Any] = {"model": "tiny", "max_tokens": tokens, "stream": True, "temperature": 0, "repetition_penalty": 1.3}
        body["stream_options"] = {"include_usage": True}
        if number % 3 == 2:
            body["stop"] = ["zzq"]  # never said: it only makes vLLM hold text back
        cut = chance.randint(4, tokens - 3)
        if number % 2:
            yield "/v1/completions", {**body, "prompt": prompt}, cut
        else:
            yield "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": prompt}]}, cut


def _shown(answer: Response) -> tuple[str, list[Any], list[str]]:
    """Text, usage, and errors."""
    events = [event for event in answer.events() if event != "[DONE]"]
    choices = [choice for event in events for choice in event.get("choices", ())]
    text = "".join((choice["delta"].get("content") or "") if "delta" in choice else choice["text"] for choice in choices)
    return text, [event["usage"] for event in events if event.get("usage")], [json.dumps(event) for event in events if "error" in event]


async def _ask(port: int, path: str, body: dict[str, Any]) -> Response:
    client = await RawClient.connect(port)
    answer = await client.ask(path, body, JSON)
    client.close()
    return answer


def test_a_real_stream_that_is_cut_anywhere_goes_on_token_for_token(request: pytest.FixtureRequest) -> None:
    engine: str = os.environ.get("FOREBAY_VLLM_URL", "") or request.getfixturevalue("real_vllm")()

    async def main() -> int:
        cutters: list[Cutter] = []
        cutters += [Cutter(engine, cutters), Cutter(engine, cutters)]
        spec = Spec((Pool("chat", "tiny", EngineKind("attach")),), (Model("tiny", 2048),), DEFAULT_TIERS)
        gateway = Gateway(spec, LoopClock(), RandomIds(), HttpUpstream(), random.Random(1), ListSink(), "gateway")
        port = await gateway.start("127.0.0.1", 0)
        urls = [await cutter.start() for cutter in cutters]
        replicas = tuple(RosterReplica(f"r{number}", url, CAPACITY) for number, url in enumerate(urls))
        gateway.apply(Roster(1, 1, 10.0, (RosterPool("chat", replicas),)))
        for number, (path, body, cut) in enumerate(_requests()):
            whole = await _ask(port, path, body)
            for cutter in cutters:
                cutter.after, cutter.within = cut, 7 if number % 4 == 1 else 0
            again = await _ask(port, path, body)
            assert all(cutter.after is None for cutter in cutters), "it was not cut"
            assert _shown(again) == _shown(whole), f"case {number}, cut after {cut} events"
        await gateway.close()
        for cutter in cutters:
            cutter.server.close()
        await asyncio.sleep(0.2)  # what was closed is being closed
        return gateway.desk.pools["chat"].meters["interactive"].continued

    assert asyncio.run(main()) == CASES
