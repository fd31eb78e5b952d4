"""A small engine whose arithmetic fits in a head, a plain HTTP client on asyncio streams, and a world to run them in."""

import asyncio
import json

import pytest

from forebay.domain.profile import ColdStart, Profile, StepLaw
from forebay.emulator.engine_server import EngineServer
from forebay.testing.clock import LoopClock
from forebay.testing.loop import network, run

PROFILE = Profile(
    name="small",
    model="tiny",
    hardware="none",
    gpus=1,
    law=StepLaw(base_s=0.010, per_sequence_s=0.001, per_kv_token_s=0.000002, per_prefill_token_s=0.0001),
    sequences_max=4,
    kv_tokens=1024,
    block_tokens=16,
    prefill_chunk_tokens=512,
    kv_bytes_per_token=1000,
    context_tokens=2048,
    cold_start=ColdStart(provision_s=100.0, weights_bytes=1e9, weights_bandwidth_bytes_per_s=1e8, init_s=5.0),
    front_end_s=0.015,
)


class Response:
    """Status, headers, body, and for a stream its events with the times at which they came."""

    def __init__(self):
        self.status = 0
        self.headers = {}
        self.body = b""
        self.events = []
        self.complete = False

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def chunks(self):
        return [json.loads(data) for _, data in self.events if data != "[DONE]"]

    @property
    def text_times(self):
        """When each content token came."""
        return [
            at_s
            for at_s, data in self.events
            if data != "[DONE]" and any(c.get("delta", {}).get("content") for c in json.loads(data)["choices"])
        ]

    @property
    def usage(self):
        return self.chunks[-1].get("usage") if self.events else self.json["usage"]

    @property
    def finish(self):
        chunks = self.chunks if self.events else [self.json]
        return [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]


class Client:
    """One connection. ``request`` sends and reads a whole response; ``send`` and ``read`` do half of it each."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port):
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, method, path, body=None, headers=(), version="1.1"):
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/{version}", "host: engine", *(f"{name}: {value}" for name, value in headers)]
        if body is not None:
            lines.append(f"content-length: {len(data)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + data)

    async def head(self):
        response = Response()
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        response.status = int(lines[0].split(" ")[1])
        response.headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:] if line)}
        return response

    async def read(self, events_max=None):
        """A response; a stream's reading stops after ``events_max`` events, or where the connection ends."""
        response = await self.head()
        if "content-length" in response.headers:
            response.body = await self.reader.readexactly(int(response.headers["content-length"]))
            response.complete = True
            return response
        try:
            while events_max is None or len(response.events) < events_max:
                size = int(await self.reader.readuntil(b"\r\n"), 16)
                data = (await self.reader.readexactly(size + 2))[:-2]
                if size == 0:
                    response.complete = True
                    break
                response.events.append((asyncio.get_running_loop().time(), data.decode().removeprefix("data: ").rstrip("\n")))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        return response

    async def request(self, method, path, body=None, headers=(), events_max=None):
        self.send(method, path, body, headers)
        return await self.read(events_max)

    async def chat(self, tokens=None, prompt_tokens=10, stream=True, headers=(), events_max=None, **fields):
        """A chat request with a prompt of that many tokens."""
        return await self.request("POST", "/v1/chat/completions", chat_body(tokens, prompt_tokens, stream, **fields), headers, events_max)

    def close(self):
        self.writer.close()


def chat_body(tokens=None, prompt_tokens=10, stream=True, **fields):
    body = {"messages": [{"role": "user", "content": "x" * (4 * prompt_tokens)}], "stream": stream, **fields}
    if tokens is not None:
        body["max_tokens"] = tokens
    if stream:
        body.setdefault("stream_options", {"include_usage": True})
    return body


class World:
    """What a test's coroutine gets: the engine's port, connections, and the metrics as a dict."""

    def __init__(self, engine, port):
        self.engine = engine
        self.port = port

        self.clients = []

    async def connect(self):
        client = await Client.connect(self.port)
        self.clients.append(client)
        return client

    async def chat(self, *args, **fields):
        client = await self.connect()
        try:
            return await client.chat(*args, **fields)
        finally:
            client.close()

    async def get(self, path):
        client = await self.connect()
        try:
            return await client.request("GET", path)
        finally:
            client.close()

    async def fault(self, **fields):
        client = await self.connect()
        try:
            return await client.request("POST", "/emulator/fault", fields)
        finally:
            client.close()

    async def metrics(self):
        """Sample text (name and labels, engine and model left out) to value."""
        return parse((await self.get("/metrics")).body)


def parse(page):
    samples = {}
    for line in page.decode().splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            key = (
                name.replace('engine="0",', "")
                .replace(',model_name="tiny"', "")
                .replace('model_name="tiny",', "")
                .replace('{model_name="tiny"}', "")
            )
            samples[key] = float(value)
    return samples


@pytest.fixture(scope="session")
def profile():
    return PROFILE


@pytest.fixture
def body():
    return chat_body


@pytest.fixture
def parse_page():
    return parse


@pytest.fixture
def serve():
    """Run ``main(world)`` against a started engine on a network without latency; the engine is stopped at the end."""

    def serve(main, profile=PROFILE, seed=None, **options):
        async def world():
            network().latency_s = 0.0
            engine = EngineServer(profile, "tiny", LoopClock(), **options)
            ready = World(engine, await engine.start())
            try:
                return await main(ready)
            finally:
                for client in ready.clients:
                    client.close()
                engine.core.engine.check()
                await engine.stop()

        return run(world, seed)

    return serve
