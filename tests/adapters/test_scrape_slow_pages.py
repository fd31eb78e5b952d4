"""An engine that answers its scrape too late, now and then, is not unknown at once: its last page has a time of its own."""

import asyncio

from forebay.adapters.scrape import ScrapeSource
from forebay.adapters.scrape.source import KEPT_S
from forebay.adapters.upstream import HttpUpstream
from forebay.domain.signal import Known, Unknown
from forebay.testing.clock import LoopClock
from forebay.testing.loop import run

PAGE = b'vllm:num_requests_waiting{engine="0"} 7.0\nvllm:num_requests_running{engine="0"} 1.0\n'


def test_a_slow_scrape_keeps_the_last_reading_while_it_is_young():
    async def main():
        slow = False

        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            if not slow:
                writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(PAGE), PAGE))
            else:
                await asyncio.sleep(30)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        upstream, clock = HttpUpstream(), LoopClock()
        source = ScrapeSource(upstream, clock)

        async def waiting():
            return (await source.read({"r": url}))["r"].waiting

        first = await waiting()
        slow = True
        second = await waiting()
        await asyncio.sleep(KEPT_S)
        third = await waiting()
        slow = False
        fourth = await waiting()
        await upstream.close()
        server.close()
        await asyncio.sleep(60)
        return first, second, third, fourth

    first, second, third, fourth = run(main)
    assert first.value == fourth.value == 7.0
    assert second == first, "the old reading, with its old time"
    assert third == Unknown("timeout")
    assert isinstance(fourth, Known)
    assert fourth.at_s > first.at_s
