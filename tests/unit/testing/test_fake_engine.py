"""The engine of tests: what it is asked to do goes on, whoever holds the connection or does not."""

import asyncio
import gc

from forebay.testing.fake_engine import FakeEngine
from forebay.testing.loop import run


def test_an_answer_whose_connection_is_gone_is_not_collected_while_it_waits():
    """A loop holds no task that waits for something nobody else holds: the collector then said that it was destroyed pending."""
    reached = []

    async def script(seen, answer):
        answer.stream()
        reached.append(seen.line)
        await asyncio.Event().wait()

    async def main():
        engine = FakeEngine(script)
        await engine.start()
        _, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")
        await asyncio.sleep(1.0)
        writer.transport.abort()
        del writer
        await asyncio.sleep(1.0)
        gc.collect()
        await asyncio.sleep(1.0)
        assert reached == [b"POST /v1/completions HTTP/1.1"]
        assert len(engine.answering) == 1
        engine.stop()

    run(main)
