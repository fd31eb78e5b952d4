"""What every process takes from its supervisor: a clock that goes on, and addresses as they were bound."""

import asyncio
import platform
import resource
import socket
import threading
import time
from pathlib import Path

import pytest

from forebay.app import listening, process
from forebay.domain.errors import BadInput
from forebay.spec.types import Listen
from forebay.testing import loop


def parsed(*more):
    return process.parser("gateway", ("gateway",)).parse_args(["--spec", "s", "--state", "/state", "--gateway-fd", "7", *more])


def test_the_supervisors_words_are_understood():
    arguments = parsed("--speed", "20.0", "--wall-offset=-1e+09")
    assert (arguments.spec, arguments.state, arguments.gateway_fd) == (Path("s"), Path("/state"), 7)
    assert (arguments.speed, arguments.wall_offset) == (20.0, -1e9)


def test_an_accelerated_worlds_wall_goes_on_in_the_next_process():
    async def main():
        clock = process.world_clock(parsed("--speed", "20", "--wall-offset=5000"))
        await clock.sleep_until(clock.now_s() + 60.0)
        again = process.world_clock(parsed("--speed", "20", "--wall-offset=5000"))
        assert again.now_s() == clock.now_s()
        assert again.wall_s() == pytest.approx(clock.wall_s())
        assert clock.wall_s() == pytest.approx(5000.0 + clock.now_s())

    loop.run(main)


def test_the_real_worlds_wall_is_the_real_one():
    async def main():
        return process.world_clock(parsed()).wall_s()

    before_s = time.time()
    assert before_s <= loop.run(main) <= time.time()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_free_port_is_told_as_it_was_bound(host):
    try:
        opened = listening.opened("gateway", Listen(host, 0))
    except BadInput:
        pytest.skip(f"this machine has no {host}")
    with opened:
        port = opened.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        assert listening.address(opened) == f"{shown}:{port}"
        assert listening.url(opened) == f"http://{shown}:{port}"


def test_all_addresses_are_reached_by_the_loopback():
    with listening.opened("gateway", Listen("0.0.0.0", 0)) as opened:
        assert listening.url(opened) == f"http://127.0.0.1:{opened.getsockname()[1]}"


def test_an_address_that_is_taken_is_named_with_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput) as caught:
            listening.opened("admin", Listen("127.0.0.1", port))
    assert str(caught.value) == (
        f"admin: can't listen on 127.0.0.1:{port} (Address already in use); name another address, or port 0 for a free one"
    )


def test_the_large_pages_of_the_heap_are_those_that_lie_wholly_in_it():
    maps = """\
00400000-00800000 rw-p 001f0000 fe:00 260811                             /usr/bin/python3
00a00000-01100000 rw-p 00000000 00:00 0                                  [heap]
7f0000100000-7f0000700000 rw-p 00000000 00:00 0
7f0000900000-7f0000a00000 rw-p 00000000 00:00 0 \n7f0000c00000-7f0001000000 ---p 00000000 00:00 0
7f0001000000-7f0002000000 rw-s 00000000 00:01 5
7ffe00000000-7ffe00400000 rw-p 00000000 00:00 0                          [stack]
"""
    assert process.heap_ranges(maps) == [(0xA00000, 0x600000), (0x7F0000200000, 0x400000)]


def test_a_thread_that_hangs_does_not_keep_the_process(monkeypatch, capsys):
    hung, codes = threading.Event(), []

    def exited(code):
        codes.append(code)
        hung.set()

    monkeypatch.setattr(process, "THREADS_END_REAL_S", 0.001)
    monkeypatch.setattr(process, "_exit", exited)

    async def main():
        asyncio.get_running_loop().run_in_executor(None, hung.wait)  # as one that reads from a disk that is gone
        return 3

    assert process.run(main) == 3
    assert codes == [3]
    assert "does not end" in capsys.readouterr().err


def test_a_process_whose_threads_have_ended_ends_by_itself(monkeypatch):
    monkeypatch.setattr(process, "_exit", pytest.fail)

    async def main():
        return await asyncio.to_thread(lambda: 4)

    assert process.run(main) == 4
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer) and not thread.finished.is_set()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library does as it likes")
def test_what_large_bodies_needed_is_there_for_the_next():
    process.keep_freed()
    faults = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        bodies = [b"x" * (8 * 2**20) for _ in range(3)]
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        bodies.clear()
    assert faults[-1] < 24 * 2**20 // resource.getpagesize() // 10, f"it came page by page: {faults}"
