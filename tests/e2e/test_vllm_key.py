"""A real vLLM with a key, attached: it is shown it, its page is read, an answer streams; and what of it is open is what the docs say."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VLLM = ROOT / ".venv-vllm"
KEY = "sk-real-vllm-0123456789"
START_S = 600.0
"""As in `test_vllm`: a start takes 40 s on quiet cores, and minutes on busy ones."""
OPTIONS = "--dtype float32 --enforce-eager --max-model-len 2048 --max-num-seqs 4 --block-size 32 --kv-cache-memory-bytes 25165824"
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
    pytest.mark.skipif(not any(VLLM.glob(".installed-*")), reason="no real vLLM is installed: `make test-vllm` installs it and runs this"),
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


@pytest.fixture
def vllm(tmp_path, wait_until):
    """The address of a vLLM that wants `KEY`."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    command = [str(VLLM / "bin" / "vllm"), "serve", str(VLLM / "tiny"), "--served-model-name", "tiny", "--host", "127.0.0.1"]
    with (tmp_path / "vllm.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), *OPTIONS.split()],
            stdout=log,
            stderr=log,
            env={**os.environ, **quiet, "VLLM_API_KEY": KEY},
            start_new_session=True,
        )
    try:
        wait_until(lambda: process.poll() is not None or status(url, "/health") == 200, "vLLM", START_S)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def test_a_real_vllm_with_a_key_is_attached_and_serves(up, vllm, monkeypatch, wait_until):
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
