"""The scrape over a fake upstream in virtual time: bounded, never raising, and wise to engines that are frozen."""

import asyncio

import pytest

from forebay.adapters.scrape import ScrapeSource
from forebay.domain.signal import Known, Unknown
from forebay.ports.upstream import End, ResponseHead
from forebay.testing import loop
from forebay.testing.clock import LoopClock


def page(waiting=0, running=0, generated=0, kv=0.5):
    return (
        f"vllm:num_requests_waiting {waiting}\nvllm:num_requests_running {running}\n"
        f"vllm:kv_cache_usage_perc {kv}\nvllm:generation_tokens_total {generated}\n"
    ).encode()


class Pages:
    """An upstream that answers by URL: bytes, a status, an End, or None for silence until the time-out."""

    def __init__(self, **answers):
        self.answers = answers
        self.running = 0
        self.running_max = 0
        self.aborted = 0
        self.took_s = 0.01

    def send(self, url, request, sink, timeout_s=None):
        assert request.startswith(b"GET /metrics HTTP/1.1\r\n")
        answer = self.answers[url.removeprefix("http://")]
        exchange = _Exchange(self, sink)
        wait_s = timeout_s if answer is None else self.took_s
        exchange.timer = asyncio.get_running_loop().call_later(wait_s, exchange.answer, End.TIMEOUT if answer is None else answer)
        return exchange

    def forget(self, url):
        pass

    async def close(self):
        pass


class _Exchange:
    def __init__(self, owner, sink):
        self.owner, self.sink, self.over = owner, sink, False
        owner.running += 1
        owner.running_max = max(owner.running_max, owner.running)

    def pause(self):
        pass

    def resume(self):
        pass

    def abort(self):
        self.owner.aborted += 1
        self.timer.cancel()
        self._end(End.ABORTED)

    def answer(self, answer):
        if isinstance(answer, End):
            self._end(answer)
            return
        body = answer if isinstance(answer, bytes) else b""
        self.sink.head(ResponseHead(200 if body else answer, (), False, len(body)))
        self.sink.data(body, body, True, True)
        self._end(End.COMPLETE)

    def _end(self, end):
        if not self.over:
            self.over = True
            self.owner.running -= 1
            self.sink.end(end, "")


def read(pages, **options):
    async def main():
        return await ScrapeSource(pages, LoopClock(), **options).read({name: f"http://{name}" for name in pages.answers})

    return loop.run(main)


def test_each_id_gets_its_answer():
    found = read(Pages(good=page(waiting=3), busy=503, gone=End.CONNECT_FAILED, half=End.CUT, silent=None, odd=End.BAD_RESPONSE))
    assert found["good"].waiting == Known(3.0, 0.01)
    reasons = {name: signals.waiting.why for name, signals in found.items() if name != "good"}
    assert reasons == {"busy": "status", "gone": "refused", "half": "cut", "silent": "timeout", "odd": "bad_response"}
    assert found["silent"].kv_tokens == Unknown("timeout")


def test_nothing_to_read():
    assert read(Pages()) == {}


def test_a_bad_address_is_unknown():
    class Picky(Pages):
        def send(self, url, request, sink, timeout_s=None):
            raise ValueError(url)

    assert read(Picky(a=page()))["a"].running == Unknown("bad_url")


def test_many_silent_engines_cost_two_timeouts_and_leave_nothing_running():
    pages = Pages(**{f"r{number}": None for number in range(50)})

    async def main():
        clock = LoopClock()
        source = ScrapeSource(pages, clock, timeout_real_s=2.0, concurrent_max=4)
        found = await source.read({name: f"http://{name}" for name in pages.answers})
        return found, clock.now_s()

    found, took_s = loop.run(main)
    assert {signals.waiting for signals in found.values()} == {Unknown("timeout")}
    assert len(found) == 50
    assert took_s == pytest.approx(4.0)
    assert pages.running_max == 4
    assert pages.running == 0


def test_a_cancelled_read_aborts_its_exchanges():
    pages = Pages(a=None, b=None)

    async def main():
        task = asyncio.create_task(ScrapeSource(pages, LoopClock()).read({"a": "http://a", "b": "http://b"}))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop.run(main)
    assert (pages.aborted, pages.running) == (2, 0)


def watch(*steps, frozen_after_s=30.0, every_s=1.0, before=None):
    """Reads one engine whose page is each of ``steps`` (page, seconds) in turn; the last reading."""
    pages = Pages(a=before or page())

    async def main():
        source = ScrapeSource(pages, LoopClock(), frozen_after_s=frozen_after_s)
        for answer, seconds in steps:
            pages.answers["a"] = answer
            for _ in range(int(seconds / every_s)):
                found = await source.read({"a": "http://a"})
                await asyncio.sleep(every_s)
        return found["a"]

    return loop.run(main)


def test_an_idle_engine_is_flat_and_well():
    assert isinstance(watch((page(generated=500), 3600)).waiting, Known)


def test_a_flat_page_that_says_it_works_is_frozen():
    assert isinstance(watch((page(running=1, generated=500), 29)).running, Known)
    stuck = watch((page(running=1, generated=500), 40))
    assert stuck.running == stuck.waiting == stuck.kv_tokens == Unknown("frozen")
    assert watch((page(waiting=4, generated=500), 40)).waiting == Unknown("frozen")


def test_it_thaws_with_the_first_change():
    assert watch((page(running=1, generated=500), 60), (page(running=1, generated=501), 1)).running.value == 1.0


def test_a_long_prefill_moves_the_kv_and_is_not_frozen():
    steps = [(page(running=1, generated=500, kv=0.1 + number / 100), 10) for number in range(8)]
    assert isinstance(watch(*steps).running, Known)


def test_time_spent_idle_does_not_count():
    assert isinstance(watch((page(generated=500), 100), (page(running=1, generated=500), 20)).running, Known)


def test_scrapes_that_fail_in_between_do_not_thaw_it():
    assert watch((page(running=1), 20), (End.TIMEOUT, 5), (page(running=1), 20)).running == Unknown("frozen")


def test_in_a_fast_world_it_takes_real_seconds_too():
    pages = Pages(a=page(running=1, generated=500))

    async def main():
        source = ScrapeSource(pages, LoopClock(speed=100.0), frozen_after_s=30.0)
        whys = []
        for _ in range(60):
            found = (await source.read({"a": "http://a"}))["a"]
            whys.append(isinstance(found.running, Unknown))
            await asyncio.sleep(0.1)
        return whys

    assert loop.run(main).index(True) == pytest.approx(46, abs=2)


def test_where_only_ends_move_the_counters_it_is_not_judged():
    busy = b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:tokens_predicted_total 5\n"
    assert watch((busy, 600)).running.value == 1.0


def test_an_engine_without_a_token_counter_is_not_judged():
    assert watch((b"vllm:num_requests_running 1\n", 600)).running.value == 1.0
