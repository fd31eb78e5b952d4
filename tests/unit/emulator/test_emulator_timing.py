"""Tokens come when the profile's arithmetic says, KV fills and is freed, and the page counts what happened."""

import asyncio
from itertools import pairwise

import msgspec
import pytest

from forebay.domain.profile import StepSpread
from forebay.emulator.core import Core, Sequence
from forebay.emulator.stats import RequestTimes, Stats
from forebay.engine.steptime import step_s
from forebay.testing.clock import LoopClock
from forebay.testing.loop import run


def test_a_stream_comes_at_the_times_of_the_profile(serve, profile):
    async def main(world):
        return await world.chat(5, prompt_tokens=100)

    answer = serve(main)
    at_s = profile.front_end_s + step_s(profile.law, 0, 0, 100)
    expected = [at_s]
    for k in range(1, 5):
        at_s += step_s(profile.law, 1, 100 + k - 1, 0)
        expected.append(at_s)
    assert answer.text_times == pytest.approx(expected, abs=1e-9)
    assert answer.usage == {"prompt_tokens": 100, "total_tokens": 105, "completion_tokens": 5}
    assert answer.finish == ["length"]
    assert answer.events[-1][1] == "[DONE]"
    assert answer.complete


def test_steps_scatter_by_the_seed_where_the_profile_says_so(serve, profile):
    scattered = msgspec.structs.replace(profile, spread=StepSpread(p5=0.7, p95=1.5, p99=2.0))

    async def main(world):
        return await world.chat(30, prompt_tokens=100)

    first, again, other = (serve(main, profile=scattered, seed=seed).text_times for seed in (1, 1, 2))
    assert first == again != other
    gaps = [after_s - before_s for before_s, after_s in pairwise(first)]
    of_law = [gap_s / step_s(profile.law, 1, 100 + place, 0) for place, gap_s in enumerate(gaps)]
    assert min(of_law) < 0.9 < 1.1 < max(of_law)
    assert all(0.69 < factor < 2.01 for factor in of_law)


def test_the_first_chunk_is_the_role_and_comes_with_the_first_token(serve):
    async def main(world):
        return await world.chat(2)

    answer = serve(main)
    first, second = answer.chunks[:2]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert second["choices"][0]["delta"]["content"]
    assert answer.events[0][0] == answer.events[1][0]
    assert answer.chunks[-1]["choices"] == []
    assert {chunk["id"] for chunk in answer.chunks} == {first["id"]}


def test_without_include_usage_there_is_no_usage_chunk(serve):
    async def main(world):
        return await world.chat(3, stream_options=None)

    answer = serve(main)
    assert all(chunk["choices"] for chunk in answer.chunks)
    assert len(answer.chunks) == 1 + 3


def test_a_whole_answer_has_the_same_end_as_its_stream(serve):
    async def main(world):
        at_s = asyncio.get_running_loop().time()
        streamed = await world.chat(6)
        between_s = asyncio.get_running_loop().time()
        whole = await world.chat(6, stream=False)
        return streamed, between_s - at_s, whole, asyncio.get_running_loop().time() - between_s

    streamed, streamed_s, whole, whole_s = serve(main)
    assert whole_s == pytest.approx(streamed_s, abs=1e-9)
    assert whole.usage == {**streamed.usage, "prompt_tokens_details": None}
    assert whole.finish == ["length"]
    assert len(whole.json["choices"][0]["message"]["content"].split()) == 6


def test_lengths_are_drawn_from_the_seed_and_end_with_stop(serve):
    async def main(world):
        return [await world.chat(stream=False) for _ in range(3)]

    first, again, other = serve(main, seed=None), serve(main), serve(main, **{"max_model_len": 1000})
    lengths = [answer.usage["completion_tokens"] for answer in first]
    assert lengths == [answer.usage["completion_tokens"] for answer in again]
    assert len(set(lengths)) == 3
    assert all(answer.finish == ["stop"] for answer in first)
    # The token that says stop has no text.
    assert [len(answer.json["choices"][0]["message"]["content"].split()) for answer in first] == [length - 1 for length in lengths]
    assert [answer.usage["completion_tokens"] for answer in other] == lengths


def test_a_streamed_stop_counts_its_silent_token(serve):
    async def main(world):
        return await world.chat()

    answer = serve(main)
    assert answer.finish == ["stop"]
    assert len(answer.text_times) == answer.usage["completion_tokens"] - 1


def test_several_choices_run_side_by_side(serve):
    async def main(world):
        return await world.chat(4, n=3), await world.metrics()

    answer, page = serve(main)
    per_choice = dict.fromkeys(range(3), 0)
    for chunk in answer.chunks:
        for choice in chunk["choices"]:
            per_choice[choice["index"]] += bool(choice["delta"].get("content"))
    assert per_choice == {0: 4, 1: 4, 2: 4}
    assert answer.usage["completion_tokens"] == 12
    assert answer.usage["prompt_tokens"] == 10
    assert page['vllm:request_success_total{finished_reason="length"}'] == 3


def test_requests_beyond_the_slots_wait_and_are_counted_waiting(serve):
    async def main(world):
        tasks = [asyncio.create_task(world.chat(50)) for _ in range(6)]
        await asyncio.sleep(0.2)
        during = await world.metrics()
        await asyncio.gather(*tasks)
        return during, await world.metrics()

    during, after = serve(main)
    assert during["vllm:num_requests_running"] == 4
    assert during["vllm:num_requests_waiting"] == 2
    assert during['vllm:num_requests_waiting_by_reason{reason="capacity"}'] == 2
    assert 0 < during["vllm:kv_cache_usage_perc"] < 1
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == after["vllm:kv_cache_usage_perc"] == 0
    assert after["vllm:generation_tokens_total"] == 300
    assert after["vllm:prompt_tokens_total"] == after["vllm:prefix_cache_queries_total"] == 60
    assert after["vllm:request_queue_time_seconds_count"] == 6
    # Four were admitted at once; two waited for the first four to finish.
    assert after['vllm:request_queue_time_seconds_bucket{le="0.3"}'] == 4
    assert after["vllm:request_queue_time_seconds_sum"] > 2 * 0.5


def test_the_latency_histograms_are_the_stream_seen_from_inside(serve, profile):
    async def main(world):
        return await world.chat(20), await world.metrics()

    answer, page = serve(main)
    first_s, last_s = answer.text_times[0], answer.text_times[-1]
    assert page["vllm:time_to_first_token_seconds_sum"] == pytest.approx(first_s)
    assert page["vllm:inter_token_latency_seconds_count"] == 19
    assert page["vllm:inter_token_latency_seconds_sum"] == pytest.approx(last_s - first_s)
    assert page["vllm:request_decode_time_seconds_sum"] == pytest.approx(last_s - first_s)
    assert page["vllm:request_prefill_time_seconds_sum"] == pytest.approx(first_s - profile.front_end_s)
    assert page["vllm:request_inference_time_seconds_sum"] == pytest.approx(last_s - profile.front_end_s)
    assert page["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(last_s)
    assert page["vllm:request_time_per_output_token_seconds_sum"] == pytest.approx((last_s - first_s) / 19)
    assert page["vllm:iteration_tokens_total_sum"] == 10 + 20
    assert page["vllm:iteration_tokens_total_count"] == 20
    assert page["vllm:request_params_max_tokens_sum"] == 20


def test_a_full_cache_preempts_and_everything_still_finishes(serve):
    async def main(world):
        answers = await asyncio.gather(*(world.chat(300, prompt_tokens=200) for _ in range(3)))
        return answers, await world.metrics()

    answers, page = serve(main)
    assert all(answer.usage["completion_tokens"] == 300 and answer.complete for answer in answers)
    assert page["vllm:num_preemptions_total"] > 0
    assert page["vllm:request_num_preemptions_sum"] == page["vllm:num_preemptions_total"]
    assert page["vllm:generation_tokens_total"] == 900
    assert page["vllm:prompt_tokens_total"] == 600


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_cache_at_once_and_counts_nowhere(serve, stream):
    async def main(world):
        client = await world.connect()
        client.send(
            "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 500, "stream": stream}
        )
        await asyncio.sleep(0.5)
        running = await world.metrics()
        client.close()
        await asyncio.sleep(0.0001)
        return running, await world.metrics()

    running, gone = serve(main)
    assert running["vllm:num_requests_running"] == 1
    assert gone["vllm:num_requests_running"] == gone["vllm:kv_cache_usage_perc"] == 0
    assert gone['vllm:request_success_total{finished_reason="abort"}'] == 0
    assert gone["vllm:e2e_request_latency_seconds_count"] == 0
    assert gone["vllm:time_to_first_token_seconds_count"] == 1


@pytest.mark.parametrize("first_leaves", [True, False])
def test_a_client_that_leaves_while_it_waits_changes_nobody_elses_times(serve, first_leaves):
    async def main(world):
        runs = [asyncio.create_task(world.chat(100)) for _ in range(4)]
        waiting = []
        for _ in range(2):
            await asyncio.sleep(0.05)
            client = await world.connect()
            client.send("POST", "/v1/completions", {"prompt": "y", "max_tokens": 5})
            waiting.append(client)
        await asyncio.sleep(0.05)
        before = await world.metrics()
        leaves, stays = waiting if first_leaves else reversed(waiting)
        leaves.close()
        await asyncio.sleep(0.0001)
        after = await world.metrics()
        await asyncio.gather(*runs, stays.read())
        return before, after, await world.metrics()

    before, after, end = serve(main)
    assert before["vllm:num_requests_waiting"] == 2
    assert after["vllm:num_requests_waiting"] == 1
    assert end['vllm:request_success_total{finished_reason="length"}'] == 5
    # The one that stayed waited for a slot, and only that.
    assert end['vllm:request_queue_time_seconds_bucket{le="1.0"}'] == 4
    assert end['vllm:request_prefill_time_seconds_bucket{le="0.3"}'] == 5


def test_a_preempted_request_takes_nobody_elses_place_in_the_line(serve):
    async def main(world):
        big = [asyncio.create_task(world.chat(300, prompt_tokens=300)) for _ in range(3)]
        await asyncio.sleep(0.2)
        late = asyncio.create_task(world.chat(5, prompt_tokens=300))
        await asyncio.gather(*big, late)
        return await world.metrics()

    page = serve(main)
    assert page["vllm:num_preemptions_total"] > 0
    assert page["vllm:request_queue_time_seconds_sum"] > 3
    # Whoever waits is not taken for running: from its admission to its first token a request takes a step or two.
    assert page['vllm:request_prefill_time_seconds_bucket{le="0.3"}'] == 4


def test_a_slow_reader_gets_what_it_missed_in_one_chunk(serve, profile):
    wide = msgspec.structs.replace(profile, context_tokens=10_000, kv_tokens=10_000)

    async def main(world):
        client = await world.connect()
        client.writer.transport.pause_reading()
        client.send("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5_000, "stream": True})
        await asyncio.sleep(5_000 * 0.025)
        held = world.engine.core.engine.running, client.writer.transport.peer.get_write_buffer_size()
        client.writer.transport.resume_reading()
        return held, await client.read(), await world.metrics()

    (running, held_bytes), answer, page = serve(main, profile=wide)
    assert running == 0, "the engine waits for nobody"
    assert held_bytes < 256 * 1024
    words = [choice["delta"].get("content", "").split() for chunk in answer.chunks for choice in chunk["choices"]]
    assert sum(map(len, words)) == 5_000
    assert max(map(len, words)) > 1_000
    assert answer.complete
    assert page["vllm:generation_tokens_total"] == 5_000


def test_a_first_token_leaves_before_the_others_of_its_step(profile):
    left = []

    class Client:
        def __init__(self, name):
            self.name = name

        def flush(self):
            left.append(self.name)

    async def main():
        clock = LoopClock(1.0)
        core = Core(profile, clock, Stats(profile.context_tokens))
        for name in ("running", "new"):
            core.submit([Sequence(Client(name), RequestTimes(clock.now_s(), 100, 5), 5, "length")])
            await asyncio.sleep(0.03)
        await asyncio.sleep(1)
        core.close()

    run(main)
    assert left.index("new") > 0
    assert left[left.index("new") + 1] == "running"
    assert left.count("new") == left.count("running") == 5
