"""Only stretches in which the whole batch decodes count, and their KV is known to the token."""

import asyncio
import random

import pytest

from forebay.loadgen.calibration import Plan, Sweep, _order, _Timed, _Usage, windows
from forebay.loadgen.http import Client, Outcome, parse_target
from forebay.loadgen.prompts import RequestMaker

STEP_S = 0.01


def timed(first_s, tokens, prompt=100, events=None):
    """A request whose tokens come each STEP_S from ``first_s`` on."""

    async def make():
        return _Timed(b"", lambda: 0.0)

    request = asyncio.run(make())
    request.stamps = [first_s + place * STEP_S * tokens / (events or tokens) for place in range(events or tokens)]
    request.usage = _Usage(prompt, tokens)
    return request


def test_a_lockstep_batch_gives_its_step_time_and_kv():
    rows = windows([timed(0.0, 200), timed(0.05, 200)], 7)
    assert len(rows) == 4
    assert [row.step_s for row in rows] == [pytest.approx(STEP_S)] * 4
    assert all(row.sequences == 2 and row.cell == 7 for row in rows)
    # Both prompts, and over the first quarter of the stretch about 24 tokens of one and 24 + 5 of the other.
    assert rows[0].kv_tokens == pytest.approx(200 + 2 * 24 + 5, abs=3)
    assert rows[-1].kv_tokens > rows[0].kv_tokens + 200


def test_several_tokens_in_an_event_are_counted_by_usage():
    rows = windows([timed(0.0, 240, events=120)], 0)
    assert [row.step_s for row in rows] == [pytest.approx(STEP_S)] * len(rows)


def test_single_gaps_are_those_of_the_first_request_within_the_window():
    rows = windows([timed(0.0, 200), timed(0.05, 200)], 7)
    gaps = [gap for row in rows for gap in row.gaps_s]
    assert gaps == [pytest.approx(STEP_S)] * len(gaps)
    # Tokens 5 to 199 of the first; a gap across the edge of two windows belongs to neither.
    assert 190 <= len(gaps) <= 194


def test_events_of_several_tokens_show_no_single_steps():
    assert {row.gaps_s for row in windows([timed(0.0, 240, events=120)], 0)} == {()}


def test_a_batch_that_was_never_together_gives_nothing():
    assert windows([timed(0.0, 50), timed(0.6, 50)], 0) == []
    assert windows([timed(0.0, 10)], 0) == []


def test_large_and_small_cells_alternate():
    assert _order([(1, 1), (2, 1), (3, 1), (4, 1)], 2) == [(1, 1), (4, 1), (2, 1), (3, 1)] * 2


def test_content_is_told_from_what_opens_and_closes_a_stream():
    async def main():
        request = _Timed(b"", iter(range(100)).__next__)
        request.head(200, [])
        request.body(b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[{"te')
        request.body(b'xt":"b"}]}\n\ndata: {"choices":[{"text":"","finish_reason":"length"}]}\n\n')
        request.body(b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\ndata: [DONE]\n\n')
        return request

    request = asyncio.run(main())
    assert request.stamps == [0, 1]
    assert request.usage == _Usage(9, 2)


def test_a_token_that_is_half_a_letter_is_a_step_all_the_same():
    async def main():
        request = _Timed(b"", iter(range(100)).__next__)
        request.head(200, [])
        for text, finish in (("", "null"), ("a", "null"), ("", "null"), ("é", "null"), ("", '"length"')):
            request.body(f'data: {{"choices":[{{"text":"{text}","finish_reason":{finish}}}]}}\n\n'.encode())
        return request

    assert asyncio.run(main()).stamps == [1, 2, 3]


@pytest.mark.parametrize(("counted", "bytes_per_token"), [(128, 2.0), (64, 4.0), (0, 4.0), (10_000, 0.25)])
def test_how_long_a_token_is_is_learned_from_what_the_engine_counts(counted, bytes_per_token):
    sweep = Sweep(parse_target("http://127.0.0.1:9"), Plan(), random.Random(0), lambda: 0.0)
    request = timed(0.0, 8)
    request.usage = _Usage(counted, 8)
    sweep._learn_length(64, request)
    assert sweep._prompts.bytes_per_token == bytes_per_token
    assert len(sweep._prompts.slice(100)) == 100 * bytes_per_token


@pytest.mark.parametrize(
    ("details", "kept"),
    [
        ("", 1),
        (',"prompt_tokens_details":null', 1),
        (',"prompt_tokens_details":{"cached_tokens":4}', 1),
        (',"prompt_tokens_details":{"cached_tokens":60}', 0),
    ],
)
def test_a_lone_prompt_from_the_prefix_cache_tells_nothing_of_prefill(details, kept):
    class Answering(Client):
        def send(self, exchange):
            exchange.sent()
            exchange.head(200, [])
            for _ in range(2):
                exchange.body(b'data: {"choices":[{"text":"a"}]}\n\n')
            exchange.body(b'data: {"choices":[],"usage":{"prompt_tokens":64,"completion_tokens":2%b}}\n\n' % details.encode())
            exchange.end(Outcome.COMPLETE, "")

    async def main():
        target = parse_target("http://127.0.0.1:9")
        sweep = Sweep(target, Plan(sequences=(1,), prompts=(64,), output_tokens=2), random.Random(0), iter(range(1000)).__next__)
        maker = RequestMaker(sweep._prompts, host="h", prefix="/v1", model="m", chat=False, ignore_eos=True, service_tier=False)
        await sweep._cell(Answering(target, 2), maker, 1, 64)
        return sweep

    sweep = asyncio.run(main())
    assert len(sweep._prefill) == kept
    assert any("prefix cache" in words for words in sweep._left_out) == (not kept)
