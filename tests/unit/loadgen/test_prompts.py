"""A request is valid HTTP and JSON, its prompt as long as asked, the same for the same seed."""

import json
import random

import pytest

from forebay.loadgen.prompts import TEXT_BYTES, Prompts, RequestMaker


def maker(seed: int = 1, **options: object) -> RequestMaker:
    settings = {"host": "h:1", "prefix": "/v1", "model": 'odd "name"', "chat": True, "ignore_eos": True, "service_tier": False} | options
    return RequestMaker(Prompts(random.Random(seed)), **settings)  # type: ignore[arg-type]


def parsed(request: bytes) -> tuple[list[bytes], dict]:
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert f"Content-Length: {len(body)}".encode() in lines
    return lines, json.loads(body)


def test_a_chat_request_says_all_that_is_asked():
    lines, body = parsed(maker().request(250, 17, "batch", "sk-x"))
    assert lines[0] == b"POST /v1/chat/completions HTTP/1.1"
    assert b"Host: h:1" in lines
    assert b"Authorization: Bearer sk-x" in lines
    message = body.pop("messages")[0]
    assert message["role"] == "user"
    assert len(message["content"]) == 1000
    assert body == {
        "model": 'odd "name"',
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "max_tokens": 17,
    }


def test_completions_tiers_and_no_key():
    lines, body = parsed(maker(chat=False, ignore_eos=False, service_tier=True).request(10, 1, "batch", ""))
    assert lines[0] == b"POST /v1/completions HTTP/1.1"
    assert not [line for line in lines if line.startswith(b"Authorization")]
    assert len(body["prompt"]) == 40
    assert body["service_tier"] == "batch"
    assert "ignore_eos" not in body


@pytest.mark.parametrize("tokens", [1, 7, TEXT_BYTES // 4, TEXT_BYTES])
def test_texts_have_the_length_asked_whatever_it_is(tokens):
    assert len(Prompts(random.Random(1)).slice(tokens)) == 4 * tokens


def test_the_seed_decides_and_two_prompts_differ():
    first, again, other = maker(1), maker(1), maker(2)
    requests = [first.request(100, 1, "", "") for _ in range(5)]
    assert requests == [again.request(100, 1, "", "") for _ in range(5)]
    assert len(set(requests)) == 5
    assert requests[0] != other.request(100, 1, "", "")
