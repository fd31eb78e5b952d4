"""What the operator is told of engines that fail requests: at once, where and why, and never a line for each request."""

import asyncio

import pytest

from forebay.gateway.failures import KEPT_MAX, TOLD_EVERY_REAL_S, Failures
from forebay.testing.clock import LoopClock
from forebay.testing.loop import run

CHAT = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


def told(test):
    said = []

    async def main():
        clock = LoopClock(1.0)
        failures = Failures(clock, lambda kind, message, pool: said.append((kind, message, pool)))
        await test(failures, clock)

    run(main)
    return said


def test_a_storm_is_told_at_once_then_counted_then_silent():
    async def test(failures, clock):
        for _ in range(1000):
            failures.note("chat", "r0", "http://h:1", "No.")
            failures.sweep()
        await clock.sleep_until(clock.now_s() + TOLD_EVERY_REAL_S)
        for _ in range(4):
            failures.sweep()
            await clock.sleep_until(clock.now_s() + TOLD_EVERY_REAL_S)

    assert told(test) == [
        ("engine_failed", "r0 at http://h:1 failed a request: No.", "chat"),
        ("engine_failed", "999 more requests failed within 30 s; the last by r0 at http://h:1: No.", "chat"),
    ]


def test_what_is_counted_is_bounded():
    async def test(failures, clock):
        for number in range(3 * KEPT_MAX):
            failures.note("chat", f"r{number}", "http://h:1", "No.")
        assert len(failures._failing) == KEPT_MAX

    assert len(told(test)) == 3 * KEPT_MAX


def test_a_certificate_that_nobody_vouches_for_is_told_with_what_to_do():
    async def test(failures, clock):
        failures.note("chat", "far", "https://far", "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate")

    ((_, message, _),) = told(test)
    assert "far at https://far" in message
    assert "SSL_CERT_FILE" in message


async def fails(_, answer):
    answer.json(500, {"error": {"message": "no", "type": "server_error", "param": None, "code": None}})


async def garbage(_, answer):
    answer.raw(b"SSH-2.0-OpenSSH\r\n\r\n")


async def nothing(_, answer):
    await answer.gone.wait()


@pytest.mark.parametrize(("script", "why"), [(fails, "answered 500"), (garbage, "not HTTP"), (nothing, "in time"), (None, "refused")])
def test_a_gateway_in_front_of_one_dead_engine_says_so_in_its_log(world, spec, script, why):
    """A pool of one replica is never ejected, so nothing was ever said."""

    async def test(front):
        engine = front.engines[0]
        if script is None:
            engine.stop()
        for _ in range(5):
            task = asyncio.ensure_future(front.ask(CHAT))
            await front.sleep(front.gateway.limits.idle_s + 5 if script is nothing else 1)
            assert (await task).status >= 500
        lines = [event for event in front.sink.events if event.kind == "engine_failed"]
        assert engine.url in lines[0].message
        assert why in lines[0].message
        assert lines[0].pool == "chat"
        assert len(lines) < 5 or script is nothing

    world(test, script or fails, spec=spec)
