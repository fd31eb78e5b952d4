"""Whatever clients do and whatever goes wrong, nothing leaks and every number adds up."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.emulator.engine_server import EngineServer
from forebay.emulator.faults import Fault, Kind
from forebay.testing.clock import LoopClock
from forebay.testing.loop import network, run

REQUEST = st.fixed_dictionaries(
    {
        "at_s": st.sampled_from([0.0, 0.015, 0.1, 1.0]) | st.floats(0, 3),
        "prompt": st.integers(1, 400),
        "tokens": st.integers(1, 120),
        "stream": st.booleans(),
        "n": st.sampled_from([1, 1, 1, 3]),
        "leaves_after_s": st.none() | st.floats(0, 2),
    }
)
TROUBLE = st.lists(st.tuples(st.floats(0, 3), st.sampled_from([Kind.HANG, Kind.SLOW, None])), max_size=3)


async def one(port, asked):
    await asyncio.sleep(asked["at_s"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    prompt = ",".join(["7"] * asked["prompt"])
    fields = f'"prompt":[{prompt}],"max_tokens":{asked["tokens"]},"n":{asked["n"]},"stream":{str(asked["stream"]).lower()}'
    body = ("{" + fields + "}").encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: e\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    try:
        answer = await asyncio.wait_for(reader.read(-1), asked["leaves_after_s"])
    except TimeoutError:
        answer = b""
    writer.close()
    return answer


@settings(max_examples=30, deadline=None)
@given(st.lists(REQUEST, max_size=12), TROUBLE, st.integers(0, 1000))
def test_nothing_leaks_and_every_number_adds_up(profile, requests, trouble, seed):
    async def main():
        if seed % 2:
            network().latency_s = 0.0
        engine = EngineServer(profile, "tiny", LoopClock())
        port = await engine.start()
        tasks = [asyncio.create_task(one(port, asked)) for asked in requests]
        for at_s, kind in trouble:
            await asyncio.sleep(at_s)
            if kind is None:
                engine.clear_faults()
            else:
                engine.inject(Fault(kind, factor=3.0))
            engine.core.engine.check()
        engine.clear_faults()
        answers = await asyncio.gather(*tasks)
        await asyncio.sleep(0.01)
        check(engine, requests, answers)
        await engine.stop()

    run(main, seed)


def check(engine, requests, answers):
    core, stats = engine.core, engine.stats
    core.engine.check()
    assert (core.queued, core.engine.kv_usage) == (0, 0.0)
    assert core.engine.next_deadline_s() is None or not core.engine.running
    finished = [(asked, answer) for asked, answer in zip(requests, answers, strict=True) if answer]
    assert all(answer.endswith(b"0\r\n\r\n") if asked["stream"] else b'"usage"' in answer for asked, answer in finished)
    # A request whose client left at the very end may have been counted; one that was answered always is.
    assert stats.ended_length.value >= sum(asked["n"] for asked, _ in finished)
    assert stats.ended_abort.value == stats.ended_stop.value == 0
    ended = stats.ended_length.value
    assert stats.e2e_s.count == stats.queue_s.count == stats.request_generation.count == ended
    assert stats.request_generation.sum <= stats.generation_tokens.value
    assert stats.itl_s.count == stats.generation_tokens.value - stats.ttft_s.count
    assert stats.step_tokens.sum == stats.generation_tokens.value + stats.prompt_tokens.value
    assert stats.e2e_s.sum >= stats.inference_s.sum + stats.queue_s.sum - 1e-6
    assert stats.prefill_s.sum + stats.decode_s.sum - stats.inference_s.sum < 1e-6
    for asked, answer in finished:
        if not asked["stream"]:
            assert f'"completion_tokens":{asked["tokens"] * asked["n"]},'.encode() in answer
