import asyncio
import contextlib

import pytest

from forebay.testing.clock import LoopClock
from forebay.testing.loop import CallbackErrors, Deadlock, Overrun, network, run


def test_an_hour_passes_at_once_and_the_clock_says_so():
    async def main():
        clock = LoopClock(speed=20.0)
        await asyncio.sleep(3600)
        await clock.sleep_until(80_000.0)
        return asyncio.get_running_loop().time(), clock.now_s()

    assert run(main) == pytest.approx((4000.0, 80_000.0))


def test_waiting_for_nothing_is_an_error_and_names_the_waiter():
    async def main():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock, match="main"):
        run(main)


def test_a_time_limit_ends_a_world_that_only_ticks():
    async def main():
        while True:
            await asyncio.sleep(1)

    with pytest.raises(Overrun):
        run(main, time_limit_s=100)


def test_an_exception_in_a_callback_fails_the_world():
    async def main():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(CallbackErrors):
        run(main)


async def _echo(reader, writer):
    with contextlib.suppress(ConnectionResetError):
        while data := await reader.readline():
            writer.write(data.upper())
            await writer.drain()
        writer.close()


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_streams_meet_in_memory_in_order_under_any_schedule(seed):
    async def main():
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(50):
            writer.write(f"line {number}\n".encode())
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        server.close()
        return answer.decode().split("\n")

    assert run(main, seed) == [f"LINE {number}" for number in range(50)] + [""]


@pytest.mark.parametrize("early_s", [0.0, 1e-12, 5e-10, 9e-10])
def test_what_arrives_with_a_timer_that_is_due_a_moment_before_arrives(early_s):
    """The loop runs both at the time of the first: what was not due by a billionth of a second stayed on its way for ever."""

    async def main():
        loop, served = asyncio.get_running_loop(), asyncio.Event()

        class Server(asyncio.Protocol):
            def data_received(self, data):
                served.set()

        await loop.create_server(Server, "127.0.0.1", 80)
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", 80)
        await asyncio.sleep(1.0)
        loop.call_at(loop.time() + network().latency_s - early_s, lambda: None)
        transport.write(b"hello")
        async with asyncio.timeout(1.0):
            await served.wait()
        transport.abort()

    run(main)


def test_nobody_listening_is_refused():
    async def main():
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", 9)
        return True

    assert run(main)


def test_a_reader_that_pauses_holds_the_writer_back():
    class Slow(asyncio.Protocol):
        def __init__(self):
            self.got = 0

        def connection_made(self, transport):
            self.transport = transport
            transport.pause_reading()

        def data_received(self, data):
            self.got += len(data)

    async def main():
        slow = Slow()
        server = await asyncio.get_running_loop().create_server(lambda: slow, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        writer.write(b"x" * 100_000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await writer.drain()
        slow.transport.resume_reading()
        await writer.drain()
        await asyncio.sleep(1)
        writer.close()
        return slow.got

    assert run(main) == 100_000


def test_cut_and_hold_are_seen_by_both_ends():
    async def main():
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.1)
        network().hold(port)
        writer.write(b"a\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readline(), 5)
        network().hold(port, False)
        assert await reader.readline() == b"A\n"
        network().cut(port)
        with pytest.raises(ConnectionResetError):
            await reader.readline()
        return True

    assert run(main)


def test_the_same_seed_is_the_same_run():
    async def main():
        order = []

        async def worker(name):
            for _ in range(3):
                await asyncio.sleep(1)
                order.append(name)

        await asyncio.gather(*(worker(name) for name in "abcdef"))
        return order

    assert run(main, 5) == run(main, 5)
    assert len({tuple(run(main, seed)) for seed in range(10)}) > 1
