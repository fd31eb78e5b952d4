"""The engine that the gateway's bench asks: clients hang up at the end of a case while answers are under way."""

import asyncio
import importlib
from pathlib import Path

import pytest

from forebay.testing import loop

BENCH = Path(__file__).resolve().parents[3] / "bench"


class Transport:
    """Refuses what is written after its end, as uvloop's does."""

    def __init__(self):
        self.closed = False
        self.written = []

    def is_closing(self):
        return self.closed

    def write(self, data):
        if self.closed:
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")
        self.written.append(data)


@pytest.mark.parametrize("bench", ["gateway", "gateway_vs_nginx"])
@pytest.mark.parametrize("body", [b'{"late_ms": 50}', b'{"chunks": 2, "pace_ms": 20}'])
def test_nothing_is_written_to_a_client_that_has_hung_up(monkeypatch, bench, body):
    monkeypatch.syspath_prepend(str(BENCH))
    engine = importlib.import_module(bench).Engine()
    transport = Transport()

    async def main():
        engine.connection_made(transport)
        request = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        engine.data_received(request)
        before = len(transport.written)
        transport.closed = True
        if engine.timer:
            engine.step()
            engine.timer.cancel()
        engine.data_received(request)
        await asyncio.sleep(1.0)
        assert len(transport.written) == before

    loop.run(main)
