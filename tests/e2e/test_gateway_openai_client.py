"""The official OpenAI client through a real gateway process to real emulated engines."""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import openai
import pytest

pytestmark = pytest.mark.e2e
WAIT_S = 20.0
MODEL = "tiny"
MESSAGES = [{"role": "user", "content": "Tell me of the river. " * 20}]
CONFIG = """
models:
  tiny: {{context: 8192, aliases: [gpt-4o]}}
pools:
  chat:
    model: tiny
    attach: {urls}
teams:
  demo:
    keys:
      - {{key: sk-demo-key, tier: interactive}}
speed: 20
"""


def wait_for(condition):
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "waited too long"
        time.sleep(0.02)


@contextlib.contextmanager
def process(ready, *arguments):
    running = subprocess.Popen(
        [sys.executable, "-m", *arguments, "--ready-file", str(ready)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: ready.exists() or running.poll() is not None)
        assert running.poll() is None, running.stderr.read()
        yield running, json.loads(ready.read_text())
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate(timeout=WAIT_S)


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """(base URL, gateway process, engines' URLs) of two engines behind one gateway."""
    folder = tmp_path_factory.mktemp("gateway")
    emulator = ("forebay.emulator", "--model", MODEL, "--speed", "20", "--engines", "2")
    with process(folder / "engines.json", *emulator) as (_, engines):
        config = folder / "forebay.yaml"
        config.write_text(CONFIG.format(urls=json.dumps(engines["urls"])))
        gateway = ("forebay.cli.main", "gateway", "-c", str(config), "--port", "0")
        with process(folder / "gateway.json", *gateway) as (running, told):
            yield told["gateway"], running, engines["urls"]


@pytest.fixture
def client(system):
    with openai.OpenAI(base_url=f"{system[0]}/v1", api_key="sk-demo-key", max_retries=0, timeout=WAIT_S) as client:
        yield client


def metric(system, name, **labels):
    with urllib.request.urlopen(f"{system[0]}/metrics", timeout=WAIT_S) as answer:
        page = answer.read().decode()
    total = 0.0
    for line in page.splitlines():
        if line.startswith(name + "{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


def running(url):
    with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT_S) as answer:
        return sum(float(value) for value in re.findall(r"^vllm:num_requests_running\{[^}]*\} (\S+)$", answer.read().decode(), re.M))


def test_a_chat(client):
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=20)
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert answer.usage.completion_tokens == 20
    assert answer._request_id


def test_a_stream(client):
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=50, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].usage.completion_tokens == 50
    assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) >= 49
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"


def test_a_completion_an_alias_and_the_models(client):
    assert client.completions.create(model="gpt-4o", prompt="once", max_tokens=5).usage.completion_tokens == 5
    assert {model.id for model in client.models.list()} == {MODEL, "gpt-4o"}
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_the_clients_own_types(client, system):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="none", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    assert unknown.value.request_id
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, n=500)
    wrong = openai.OpenAI(base_url=f"{system[0]}/v1", api_key="sk-wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        wrong.chat.completions.create(model=MODEL, messages=MESSAGES)
    wrong.close()


def test_many_at_once_from_the_async_client(system):
    async def one(client, number):
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=20 + number, stream=True, stream_options={"include_usage": True}
        )
        return [chunk.usage.completion_tokens async for chunk in stream if chunk.usage][-1]

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{system[0]}/v1", api_key="sk-demo-key", max_retries=0, timeout=WAIT_S) as client:
            return await asyncio.gather(*[one(client, number) for number in range(40)])

    assert asyncio.run(main()) == [20 + number for number in range(40)]
    wait_for(lambda: metric(system, "forebay_permits") == 0)


def test_leaving_a_stream_frees_the_engine(client, system):
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=4000, stream=True)
    next(iter(stream))
    assert sum(running(url) for url in system[2]) == 1
    stream.close()
    wait_for(lambda: sum(running(url) for url in system[2]) == 0)
    wait_for(lambda: metric(system, "forebay_requests_total", outcome="client_gone") >= 1)


def test_sigterm_lets_a_stream_end_and_exits_well(client, system):
    """The last test of the module: the gateway is gone after it."""
    url, gateway, _ = system
    finished = []

    def read():
        chunks = list(client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1500, stream=True))
        finished.append(chunks[-1].choices[0].finish_reason)

    reader = threading.Thread(target=read)
    reader.start()
    wait_for(lambda: metric(system, "forebay_permits") == 1)
    gateway.send_signal(signal.SIGTERM)
    reader.join(WAIT_S)
    assert finished == ["length"]
    assert gateway.wait(WAIT_S) == 0
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/health", timeout=1)
