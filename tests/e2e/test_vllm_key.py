"""A real vLLM with a key, attached: it is shown it, its page is read, an answer streams; and what of it is open is what the docs say."""

import asyncio
import json
import urllib.error
import urllib.request

import pytest

KEY = "sk-real-vllm-0123456789"
CONFIG = """
models: {{tiny: {{context: 2048}}}}
pools:
  chat: {{model: tiny, attach: ["{url}"], engine: {{key_env: FOREBAY_TEST_VLLM_KEY}}}}
gateway: {{listen: "127.0.0.1:0"}}
admin: {{listen: "127.0.0.1:0"}}
"""
GUARDED = ("/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
OPEN = ("/health", "/metrics", "/ping", "/load", "/version", "/tokenize", "/detokenize", "/invocations")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.vllm,
    pytest.mark.timeout(1200),
]
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def status(url, path, key=""):
    """Of a GET, or of a POST of nothing that it could answer."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    data = None if path in {"/v1/models", *OPEN[:5]} else b"{}"
    try:
        with _DIRECT.open(urllib.request.Request(url + path, data, headers | {"content-type": "application/json"}), timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_a_real_vllm_with_a_key_is_attached_and_serves(up, real_vllm, monkeypatch, wait_until):
    vllm = real_vllm(VLLM_API_KEY=KEY)
    assert {path: status(vllm, path) for path in GUARDED} == dict.fromkeys(GUARDED, 401)
    assert {path: status(vllm, path, KEY) in {200, 400} for path in GUARDED} == dict.fromkeys(GUARDED, True)
    assert {path: status(vllm, path) in {200, 400} for path in OPEN} == dict.fromkeys(OPEN, True), "the docs name what is open"
    monkeypatch.setenv("FOREBAY_TEST_VLLM_KEY", KEY)
    fleet = up(CONFIG.format(url=vllm)).until_ready()
    fleet.ready(1)

    async def asked():
        async with fleet.client("sk-of-a-client") as client:
            answer = await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hello"}], stream=True, max_tokens=8, extra_body={"ignore_eos": True}
            )
            return [chunk.choices[0].finish_reason async for chunk in answer if chunk.choices]

    assert asyncio.run(asked())[-1] == "length"
    wait_until(lambda: fleet.pool()["detail"][0]["kv_usage"] is not None, "its page to be read")
    written = [path.read_bytes() for path in fleet.state.rglob("*") if path.is_file()] + [json.dumps(fleet.status()).encode()]
    assert not any(KEY.encode() in each for each in written)
