"""An engine that does as it is told: each request is answered by a coroutine of the test, byte by byte if need be.

It runs on whatever loop runs, so it serves unit tests in the virtual world as well as real sockets. Requests are told
apart by their content-length alone, which is all that Forebay sends.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

SEEN_MAX = 10_000
_LENGTH = re.compile(rb"content-length: *(\d+)", re.I)


class Seen:
    """One request as the engine got it."""

    def __init__(self, head: bytes, body: bytes) -> None:
        self.head = head
        self.body = body
        lines = head.split(b"\r\n")
        self.line = lines[0]
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:]) if name}

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)


class Answer:
    """The engine's side of one exchange."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.gone = asyncio.Event()
        """The other side closed the connection."""

    def raw(self, data: bytes) -> None:
        """These very bytes, as far as somebody is there."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def json(self, status: int, value: Any, *headers: bytes) -> None:
        """A whole JSON answer."""
        body = json.dumps(value).encode()
        extra = b"".join(header + b"\r\n" for header in headers)
        self.raw(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b" % (status, extra, len(body), body))

    def stream(self) -> None:
        """The head of a stream."""
        self.raw(b"HTTP/1.1 200 OK\r\nserver: fake\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        """One HTTP chunk."""
        self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, value: Any) -> None:
        """One event in one chunk."""
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def role(self) -> None:
        """The chunk that vLLM sends before the prompt is prefilled or after: no content yet."""
        self.event(
            {
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
            }
        )

    def token(self, text: str, finish: str | None = None) -> None:
        """A content chunk."""
        self.event({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})

    def done(self) -> None:
        """``[DONE]`` and the end of the response."""
        self.chunk(b"data: [DONE]\n\n")
        self.raw(b"0\r\n\r\n")

    def cut(self) -> None:
        """Reset the connection."""
        self.transport.abort()

    def close(self) -> None:
        """Send what was written, then close."""
        self.transport.close()


Script = Callable[[Seen, Answer], Awaitable[None]]


class FakeEngine:
    """``script`` answers each request, and may be replaced at any time."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: deque[Seen] = deque(maxlen=SEEN_MAX)
        self.open: set[asyncio.Transport] = set()
        self.answering: set[asyncio.Task[None]] = set()
        """Held here: a loop holds no task that waits, and its connection may be gone long before it is done."""
        self.accepted = 0
        self.port = 0
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> str:
        """Listen on ``port``, 0: a free one; returns the base URL."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), "127.0.0.1", port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        return self.url

    def stop(self) -> None:
        """Refuse new connections and reset the open ones."""
        if self._server is not None:
            self._server.close()
        for transport in list(self.open):
            transport.abort()


class _Connection(asyncio.Protocol):
    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._buffer = b""
        self._answers: list[Answer] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # uvloop's are none by name
        self._engine.open.add(self._transport)
        self._engine.accepted += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._buffer[:end])
            size = int(length[1]) if length else 0
            if len(self._buffer) < end + 4 + size:
                return
            seen = Seen(self._buffer[:end], self._buffer[end + 4 : end + 4 + size])
            self._buffer = self._buffer[end + 4 + size :]
            self._engine.seen.append(seen)
            answer = Answer(self._transport)
            self._answers = [answer]
            task = asyncio.ensure_future(self._engine.script(seen, answer))
            self._engine.answering.add(task)
            task.add_done_callback(self._engine.answering.discard)

    def connection_lost(self, _: Exception | None) -> None:
        self._engine.open.discard(self._transport)
        for answer in self._answers:
            answer.gone.set()
