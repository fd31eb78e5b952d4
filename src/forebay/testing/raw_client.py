"""A client that shows what really came over the wire: status, headers, body, and whether the response ended properly."""

import asyncio
import json
from typing import Any

READ_BYTES = 64 * 1024


class Response:
    """One response, decoded; ``complete`` is False where the connection ended inside it."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, complete: bool) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.complete = complete

    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The data of each event, parsed, ``[DONE]`` as it is. Raises ValueError on a half event."""
        pieces = self.body.split(b"\n\n")
        if pieces.pop() != b"":
            raise ValueError(f"half an event: {self.body[-200:]!r}")
        datas = [piece.removeprefix(b"data: ") for piece in pieces if piece.startswith(b"data:")]
        return [data.decode() if data == b"[DONE]" else json.loads(data) for data in datas]


class RawClient:
    """One connection. Use ``send``/``read`` apart to look in between, ``ask`` for both."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int) -> "RawClient":
        """Dial 127.0.0.1:``port``."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, target: str, body: Any = None, headers: dict[str, str] | None = None, method: str | None = None) -> None:
        """Write one request; a body that isn't bytes is sent as JSON."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method or ('GET' if body is None else 'POST')} {target} HTTP/1.1", "Host: test"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            lines.append(f"Content-Length: {len(data)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + data)

    async def read(self) -> Response:
        """The next response. Raises EOFError where the connection ends before its head."""
        head = await self._line_block()
        lines = head.split("\r\n")
        status = int(lines[0].split(" ")[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if status == 100:
            return Response(status, headers, b"", True)
        try:
            body, complete = await self._body(headers)
        except ConnectionError:
            body, complete = b"", False
        return Response(status, headers, body, complete)

    async def ask(self, target: str, body: Any = None, headers: dict[str, str] | None = None, method: str | None = None) -> Response:
        """Send and read."""
        self.send(target, body, headers, method)
        return await self.read()

    async def event(self) -> bytes:
        """The next HTTP chunk of a stream whose head was read with ``head``."""
        size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def head(self) -> str:
        """The next response's head only."""
        return await self._line_block()

    def close(self) -> None:
        """Leave at once."""
        self.writer.transport.abort()

    async def _line_block(self) -> str:
        try:
            return (await self.reader.readuntil(b"\r\n\r\n"))[:-4].decode()
        except asyncio.IncompleteReadError as error:
            raise EOFError(f"the connection ended after {error.partial!r}") from None

    async def _body(self, headers: dict[str, str]) -> tuple[bytes, bool]:
        if headers.get("transfer-encoding") == "chunked":
            return await self._chunks()
        if "content-length" in headers:
            try:
                return await self.reader.readexactly(int(headers["content-length"])), True
            except asyncio.IncompleteReadError as error:
                return error.partial, False
        return await self.reader.read(), True

    async def _chunks(self) -> tuple[bytes, bool]:
        body = b""
        try:
            while True:
                size = int((await self.reader.readuntil(b"\r\n"))[:-2], 16)
                body += (await self.reader.readexactly(size + 2))[:-2]
                if not size:
                    return body, True
        except (asyncio.IncompleteReadError, ConnectionError):
            return body, False
