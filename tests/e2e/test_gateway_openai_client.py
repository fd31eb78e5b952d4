"""The official OpenAI client through a real gateway process to real emulated engines."""

import asyncio
import contextlib
import json
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import openai
import pytest

pytestmark = pytest.mark.e2e
WAIT_S = 60.0
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
        if line.startswith((name + "{", name + " ")) and all(f'{key}="{value}"' in line for key, value in labels.items()):
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


TOOLS = [{"type": "function", "function": {"name": "level", "parameters": {"type": "object", "properties": {"gate": {"type": "string"}}}}}]


def test_tools_and_several_choices_pass(client):
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, n=3, tools=TOOLS, tool_choice="auto", seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5, n=2, stream=True, tools=TOOLS)
    reasons = {chunk.choices[0].index: chunk.choices[0].finish_reason for chunk in stream if chunk.choices}
    assert reasons == {0: "length", 1: "length"}


def test_the_responses_api_whole_streamed_kept_and_continued(client):
    answer = client.responses.create(model="gpt-4o", input="Tell me of the river.", max_output_tokens=20)
    assert (answer.status, answer.usage.output_tokens, bool(answer.output_text)) == ("completed", 20, True)
    assert answer._request_id
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(answer.id)
    unread = client.responses.create(model=MODEL, input="Tell me all.", max_output_tokens=2000, background=True)
    assert (unread.status, client.responses.cancel(unread.id).status) == ("queued", "cancelled")
    for _ in range(4):  # with two engines, a pick by chance would miss the one that keeps it
        assert client.responses.retrieve(answer.id).id == answer.id
    with client.responses.create(
        model=MODEL, input="And then?", max_output_tokens=30, previous_response_id=answer.id, stream=True
    ) as stream:
        events = list(stream)
    assert [event.type for event in events].count("response.output_text.delta") == 30
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage.output_tokens == 30
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_nobody")


def test_conversations_go_on_turn_by_turn_where_their_engines_keep_them(client):
    """Each engine answers 404 for what the other one keeps."""
    turns = [client.responses.create(model=MODEL, input="Tell me of the river.", max_output_tokens=5) for _ in range(6)]
    for _ in range(4):
        before = [answer.usage.input_tokens for answer in turns]
        turns = [
            client.responses.create(model=MODEL, input="And then?", max_output_tokens=5, previous_response_id=answer.id) for answer in turns
        ]
        assert all(answer.usage.input_tokens > tokens for answer, tokens in zip(turns, before, strict=True)), "all of it is prompt"
    with pytest.raises(openai.NotFoundError) as lost:
        client.responses.create(model=MODEL, input="And then?", max_output_tokens=5, previous_response_id="resp_nobody")
    assert lost.value.code == "previous_response_not_found"


def test_a_conversation_goes_on_after_its_gateway_was_killed(tmp_path):
    with process(tmp_path / "engines.json", "forebay.emulator", "--model", MODEL, "--speed", "20", "--engines", "2") as (_, engines):
        config = tmp_path / "forebay.yaml"
        config.write_text(CONFIG.format(urls=json.dumps(engines["urls"])))
        gateway = ("forebay.cli.main", "gateway", "-c", str(config), "--port", "0")
        kept, turns = tmp_path / ".forebay" / "gateway-0.responses", []
        for number in range(3):
            with process(tmp_path / f"gateway-{number}.json", *gateway) as (_, told):
                with openai.OpenAI(base_url=f"{told['gateway']}/v1", api_key="sk-demo-key", max_retries=0, timeout=WAIT_S) as client:
                    for at in range(4):
                        more = {"previous_response_id": turns[at].id} if number else {}
                        answer = client.responses.create(model=MODEL, input="And then?", max_output_tokens=5, **more)
                        turns[at:] = [answer, *turns[at + 1 :]]
                wait_for(lambda: kept.exists() and all(turn.id in kept.read_text() for turn in turns))
        assert len(turns) == 4


def test_the_responses_api_from_the_async_client(system):
    async def main():
        async with openai.AsyncOpenAI(base_url=f"{system[0]}/v1", api_key="sk-demo-key", max_retries=0, timeout=WAIT_S) as client:
            stream = await client.responses.create(model=MODEL, input="a", max_output_tokens=10, stream=True)
            return [event.type async for event in stream]

    assert asyncio.run(main())[-1] == "response.completed"


def test_embeddings_and_sound(client):
    answer = client.embeddings.create(model=MODEL, input=["water", "gate"])
    assert [len(row.embedding) for row in answer.data] == [8, 8]
    assert answer.usage.prompt_tokens > 0
    for size in (20_000, 9 * 2**20):  # held, and passed on
        sound = ("a.wav", b"RIFF" + bytes(size), "audio/wav")
        assert client.audio.transcriptions.create(model="gpt-4o", file=sound).text


def test_a_chat_with_nine_megabytes_of_pictures(client):
    """The SDK writes the messages before the model, so all of it is held; curl may write the model first."""
    content = [{"type": "text", "text": "x" * (9 * 2**20)}]
    with pytest.raises(openai.BadRequestError) as refused:  # by the engine: its context is shorter
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": content}], max_tokens=5)
    assert "context" in str(refused.value)
    with pytest.raises(openai.APIStatusError) as too_large:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x" * (65 * 2**20)}])
    assert too_large.value.status_code == 413


def test_rerank_score_and_tokenize(client):
    ranked = client.post("/rerank", body={"model": MODEL, "query": "a", "documents": ["b", "c"]}, cast_to=object)
    assert len(ranked["results"]) == 2
    base = str(client.base_url).removesuffix("v1/")
    told = client.post(f"{base}tokenize", body={"prompt": "four bytes a token"}, cast_to=object)
    assert told["count"] > 0
    with pytest.raises(openai.NotFoundError):
        client.post(f"{base}pause", body={}, cast_to=object)


def test_anthropics_client(system):
    anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed")
    with anthropic.Anthropic(base_url=system[0], api_key="sk-demo-key", max_retries=0, timeout=WAIT_S) as client:
        answer = client.messages.create(model=MODEL, max_tokens=20, messages=MESSAGES, system="Be brief.")
        assert (answer.stop_reason, answer.usage.output_tokens, bool(answer.content[0].text)) == ("max_tokens", 20, True)
        with client.messages.stream(model="gpt-4o", max_tokens=30, messages=MESSAGES) as stream:
            texts = list(stream.text_stream)
            final = stream.get_final_message()
        assert len(texts) == final.usage.output_tokens == 30
        assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens > 50
        with pytest.raises(anthropic.NotFoundError) as unknown:
            client.messages.create(model="none", max_tokens=20, messages=MESSAGES)
        assert unknown.value.body["error"]["type"] == "not_found_error"
    with (
        anthropic.Anthropic(base_url=system[0], api_key="sk-wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError),
    ):
        stranger.messages.create(model=MODEL, max_tokens=20, messages=MESSAGES)


def test_anthropics_async_client_with_tools_and_a_client_that_leaves(system):
    anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed")
    tools = [{"name": "level", "description": "of a gate", "input_schema": {"type": "object", "properties": {"gate": {"type": "string"}}}}]

    async def main():
        async with anthropic.AsyncAnthropic(base_url=system[0], api_key="sk-demo-key", max_retries=0, timeout=WAIT_S) as client:
            answer = await client.messages.create(model=MODEL, max_tokens=5, messages=MESSAGES, tools=tools, tool_choice={"type": "auto"})
            stream = await client.messages.create(model=MODEL, max_tokens=10, messages=MESSAGES, tools=tools, stream=True)
            kinds = [event.type async for event in stream]
            left = await client.messages.create(model=MODEL, max_tokens=4000, messages=MESSAGES, stream=True)
            async for _ in left:
                break
            await left.close()
            return answer.usage.output_tokens, kinds

    gone = metric(system, "forebay_requests_total", outcome="client_gone")
    tokens, kinds = asyncio.run(main())
    assert (tokens, kinds[0], kinds[-1], kinds.count("content_block_delta")) == (5, "message_start", "message_stop", 10)
    wait_for(lambda: metric(system, "forebay_requests_total", outcome="client_gone") > gone)
    wait_for(lambda: sum(running(url) for url in system[2]) == 0)


def fault(system, **command):
    """Have something go wrong on both engines."""
    for url in system[2]:
        asked = urllib.request.Request(f"{url}/emulator/fault", json.dumps(command).encode(), {"content-type": "application/json"})
        urllib.request.urlopen(asked, timeout=WAIT_S).close()


@pytest.fixture
def slow(system):
    """Engines that make a few tokens a second, so that an answer is not over before it is cut."""
    fault(system, kind="slow", factor=500)
    yield
    fault(system, kind="clear")


def test_a_response_that_is_cut_has_failed_and_its_client_is_told(client, system, slow):
    """Nobody goes on with it, and a stream that just ended would be waited for for ever."""
    with client.responses.create(model=MODEL, input="a", max_output_tokens=2000, stream=True) as stream:
        events = []
        for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta" and len(events) < 10:
                fault(system, kind="cut")
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert "broke off" in events[-1].response.error.message


def test_a_message_that_is_cut_is_an_error_to_anthropics_client(system, slow):
    anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed")
    with (
        anthropic.Anthropic(base_url=system[0], api_key="sk-demo-key", max_retries=0, timeout=WAIT_S) as client,
        client.messages.stream(model=MODEL, max_tokens=2000, messages=MESSAGES) as stream,
    ):
        assert next(stream.text_stream)
        fault(system, kind="cut")
        with pytest.raises(anthropic.APIStatusError) as broken:
            list(stream.text_stream)
    assert broken.value.body["error"]["type"] == "api_error"
    assert "broke off" in broken.value.body["error"]["message"]


@contextlib.contextmanager
def encrypted(system, folder):
    """A gateway with a certificate of its own."""
    config = folder / "tls.yaml"
    config.write_text(CONFIG.format(urls=json.dumps(system[2])) + "gateway: {tls: {cert: cert.pem, key: key.pem}}\n")
    certify(folder)
    with process(folder / "tls.json", "forebay.cli.main", "gateway", "-c", str(config), "--port", "0") as (running, told):
        yield told["gateway"], running


def certify(folder):
    """A fresh certificate for 127.0.0.1, which signs itself."""
    curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=forebay -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(folder / "key.pem.new"), "-out", str(folder / "cert.pem.new")]
    subprocess.run(["openssl", "req", "-x509", *curve.split(), *files], check=True, capture_output=True)
    for name in ("key.pem", "cert.pem"):
        (folder / f"{name}.new").replace(folder / name)


def serial(url):
    host, port = url.removeprefix("https://").split(":")
    return ssl.get_server_certificate((host, int(port)))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here to make a certificate")
def test_the_client_by_https_and_a_certificate_that_is_renewed(system, tmp_path):
    with encrypted(system, tmp_path) as (url, _):
        assert url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        before = serial(url)
        with (
            openai.DefaultHttpxClient(verify=trusted) as http,
            openai.OpenAI(base_url=f"{url}/v1", api_key="sk-demo-key", max_retries=0, timeout=WAIT_S, http_client=http) as client,
        ):
            stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=400, stream=True)
            next(stream)
            certify(tmp_path)
            wait_for(lambda: serial(url) != before)
            assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
        (tmp_path / "cert.pem").write_text("nonsense")
        time.sleep(1.5)
        assert serial(url) != before


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


def test_the_clients_by_relay_workers_whose_gateway_is_told_to_end_meanwhile(tmp_path):
    """A gateway of its own: chat, completions, responses and messages at once, all of them at a worker when SIGTERM comes."""
    anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed")
    emulator = ("forebay.emulator", "--model", MODEL, "--speed", "4", "--engines", "2")
    with process(tmp_path / "engines.json", *emulator) as (_, engines):
        config = tmp_path / "forebay.yaml"
        config.write_text(CONFIG.format(urls=json.dumps(engines["urls"])).replace("speed: 20", "speed: 4") + "gateway: {workers: 1}\n")
        with process(tmp_path / "gateway.json", "forebay.cli.main", "gateway", "-c", str(config), "--port", "0") as (gateway, told):
            place = (told["gateway"], gateway, engines["urls"])
            wait_for(lambda: metric(place, "forebay_relay_workers") == 1)
            assert asyncio.run(_all_streams(place, anthropic.AsyncAnthropic)) == {
                "chat": 800,
                "completion": 800,
                "response": 800,
                "message": 800,
            }
            assert gateway.wait(WAIT_S) == 0


async def _all_streams(place, claude_client):
    url, gateway, _ = place
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-demo-key", max_retries=0, timeout=WAIT_S) as client,
        claude_client(base_url=url, api_key="sk-demo-key", max_retries=0, timeout=WAIT_S) as claude,
    ):

        async def counted(name, stream, is_content):
            return name, sum([is_content(each) async for each in await stream])

        asked = [
            counted(
                "chat",
                client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=800, stream=True),
                lambda each: bool(each.choices and each.choices[0].delta.content),
            ),
            counted(
                "completion",
                client.completions.create(model=MODEL, prompt="A river", max_tokens=800, stream=True),
                lambda each: bool(each.choices and each.choices[0].text),
            ),
            counted(
                "response",
                client.responses.create(model=MODEL, input="Hello.", max_output_tokens=800, stream=True),
                lambda each: each.type == "response.output_text.delta",
            ),
            counted(
                "message",
                claude.messages.create(model=MODEL, messages=MESSAGES, max_tokens=800, stream=True),
                lambda each: each.type == "content_block_delta",
            ),
        ]
        streams = [asyncio.create_task(one) for one in asked]
        await asyncio.to_thread(wait_for, lambda: metric(place, "forebay_relay_worker_streams") == 4)
        gateway.send_signal(signal.SIGTERM)
        return dict(await asyncio.gather(*streams))


def test_a_stream_that_is_open_when_the_drain_is_over_gets_an_error_and_what_waits_a_503(tmp_path):
    """A gateway of its own with one slot and a second to drain: what is inside then is told so, in words the client knows."""
    emulator = ("forebay.emulator", "--model", MODEL, "--speed", "1")
    with process(tmp_path / "engines.json", *emulator) as (_, engines):
        config = tmp_path / "forebay.yaml"
        text = CONFIG.format(urls=json.dumps(engines["urls"])).replace("speed: 20", "speed: 1\nlimits: {drain: 1s}")
        profile = "    profile: one\nprofiles:\n  one: {base: llama-3.1-8b-h100, sequences: 1}\n"
        config.write_text(text.replace("teams:", profile + "teams:"))
        with process(tmp_path / "gateway.json", "forebay.cli.main", "gateway", "-c", str(config), "--port", "0") as (gateway, told):
            asyncio.run(_cut_off(told["gateway"], gateway))
            assert gateway.wait(WAIT_S) == 0


async def _cut_off(url, gateway):
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-demo-key", max_retries=0, timeout=WAIT_S) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6000, stream=True)
        await anext(stream)
        waiting = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=10))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        gateway.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="shutting down"):
            async for _ in stream:
                pass
        with pytest.raises(openai.InternalServerError) as refused:
            await waiting
        assert (refused.value.status_code, refused.value.code) == (503, "shutting_down")
        assert "retry-after" in refused.value.response.headers
