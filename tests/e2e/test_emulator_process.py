"""The emulator as a real process on uvloop, spoken to by the official OpenAI client."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import msgspec
import openai
import pytest

from forebay.engine.catalogue import PROFILES

pytestmark = pytest.mark.e2e
WAIT_S = 20.0
MODULE = (sys.executable, "-m", "forebay.emulator")
VERB = (sys.executable, "-c", "import typer; from forebay.cli.emulate import command; typer.run(command)")


@contextlib.contextmanager
def emulator(folder, *options, command=MODULE):
    """A running emulator: (process, its URLs)."""
    ready = folder / "ready.json"
    arguments = [*command, "--model", "tiny", "--speed", "20", "--ready-file", str(ready), *options]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr.read()
        told = json.loads(ready.read_text())
        assert told["pid"] == process.pid
        yield process, told["urls"]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT_S)


def wait_for(condition):
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, "waited too long"
        time.sleep(0.01)


def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WAIT_S)


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def post(url, body):
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), method="POST"), timeout=WAIT_S) as answer:
        return answer.read()


MESSAGES = [{"role": "user", "content": "How does a lock keep a boat level? " * 8}]


@pytest.mark.parametrize("command", [MODULE, VERB], ids=["module", "verb"])
def test_the_official_client_streams_and_reads_usage(tmp_path, command):
    with emulator(tmp_path, command=command) as (process, (url,)), client(url) as api:
        assert [model.id for model in api.models.list()] == ["tiny"]
        whole = api.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12)
        assert whole.choices[0].finish_reason == "length"
        assert len(whole.choices[0].message.content.split()) == whole.usage.completion_tokens == 12
        assert whole.usage.prompt_tokens == 70
        chunks = list(
            api.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=12, stream=True, stream_options={"include_usage": True})
        )
        assert chunks[0].choices[0].delta.role == "assistant"
        assert len("".join(chunk.choices[0].delta.content for chunk in chunks if chunk.choices).split()) == 12
        assert chunks[-2].choices[0].finish_reason == "length"
        assert chunks[-1].usage == whole.usage
        drawn = list(api.chat.completions.create(model="tiny", messages=MESSAGES, stream=True))
        assert drawn[-1].choices[0].finish_reason == "stop"
        text = api.completions.create(model="tiny", prompt=[1, 2, 3], n=2, max_tokens=4, extra_body={"ignore_eos": True})
        assert [choice.index for choice in text.choices] == [0, 1]
        assert (text.usage.prompt_tokens, text.usage.completion_tokens) == (3, 8)
        with pytest.raises(openai.NotFoundError, match="gpt"):
            api.chat.completions.create(model="gpt", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            api.completions.create(model="tiny", prompt=[1], max_tokens=10**7)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_sigterm_aborts_a_stream_politely(tmp_path):
    with emulator(tmp_path, "--speed", "1") as (process, (url,)), client(url) as api:
        stream = api.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=4000, stream=True, stream_options={"include_usage": True}
        )
        chunks = [next(stream) for _ in range(5)]
        process.send_signal(signal.SIGTERM)
        chunks += list(stream)
        assert chunks[-2].choices[0].finish_reason == "abort"
        assert 4 <= chunks[-1].usage.completion_tokens < 4000
        assert process.wait(WAIT_S) == 0


def test_a_shutdown_timeout_lets_the_stream_finish_and_a_second_sigterm_ends_it(tmp_path):
    with emulator(tmp_path, "--shutdown-timeout", "1000") as (process, (url,)), client(url) as api:
        stream = api.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=600, stream=True)
        chunks = [next(stream) for _ in range(5)]
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses_work(api))
        assert get(f"{url}/health")[0] == 200
        chunks += list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def refuses_work(api):
    try:
        api.completions.create(model="tiny", prompt="x", max_tokens=1)
    except openai.InternalServerError:
        return True
    return False


def test_one_process_serves_many_engines_and_one_of_them_may_crash(tmp_path):
    with emulator(tmp_path, "--engines", "3") as (process, urls):
        assert len(set(urls)) == 3
        with client(urls[0]) as api:
            api.completions.create(model="tiny", prompt="x", max_tokens=7)
        pages = [get(f"{url}/metrics")[1].decode() for url in urls]
        assert ['vllm:generation_tokens_total{engine="0",model_name="tiny"} 7.0' in page for page in pages] == [True, False, False]
        post(f"{urls[1]}/emulator/fault", {"kind": "crash"})
        wait_for(lambda: refuses(urls[1]))
        assert [get(f"{url}/health")[0] for url in (urls[0], urls[2])] == [200, 200]
        assert process.poll() is None


def refuses(url):
    try:
        get(f"{url}/health")
    except OSError:
        return True
    return False


def test_a_crash_of_the_only_engine_is_the_end_of_the_process(tmp_path):
    with emulator(tmp_path) as (process, (url,)):
        post(f"{url}/emulator/fault", {"kind": "crash"})
        assert process.wait(WAIT_S) == 1


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_cold_start_reports_stages_and_then_serves(tmp_path):
    port = free_port()
    with emulator(tmp_path, "--cold", "--report-stages", "--speed", "200", "--port", str(port)) as (_, (url,)):
        assert url == f"http://127.0.0.1:{port}"
        seen = []

        def healthy():
            status, body = get(f"{url}/health")
            seen.append(json.loads(body)["stage"] if status == 503 else "")
            return status == 200

        wait_for(healthy)
        order = list(dict.fromkeys(seen))
        assert order[0] == "provision"
        assert order[-1] == ""
        assert get(f"{url}/v1/models")[0] == 200


def profile_json(**changes):
    return msgspec.json.encode(msgspec.structs.replace(PROFILES["llama-3.1-8b-h100"], **changes)).decode()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--profile", "h100"), 2, "llama-3.1-8b-h100"),
        (("--profile-json", "{}"), 2, "--profile-json"),
        (("--profile-json", profile_json(block_tokens=0)), 2, "block_tokens"),
        (("--profile-json", profile_json(prefill_chunk_tokens=8)), 2, "can't hold"),
        (("--profile-json", profile_json(spread={"p5": 1.2})), 2, "rise from p5"),
        (("--fault", '{"kind": "meteor"}'), 2, "hang"),
        (("--speed", "0"), 2, "--speed"),
        (("--cold", "--warm"), 2, "--cold"),
        (("--ready-file", "/nowhere/ready.json"), 1, "--ready-file"),
        (("--warm", "--speed", "500", "--fault", '{"kind": "oom"}'), 1, "memory"),
    ],
)
def test_wrong_options_are_told_on_stderr_with_their_exit_code(options, code, words):
    done = subprocess.run([*MODULE, *options], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_log_on_a_full_disk_is_no_reason_not_to_serve(tmp_path):
    """An engine that was restarted while the disk was full ended with code 120, again and again."""
    ready = tmp_path / "ready.json"
    with open("/dev/full", "wb") as full:
        process = subprocess.Popen([*MODULE, "--model", "tiny", "--ready-file", str(ready)], stdout=full, stderr=full)
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None)
        assert process.poll() is None
        assert get(json.loads(ready.read_text())["urls"][0] + "/health")[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()


def test_a_port_that_is_taken_is_said(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run([*MODULE, "--port", str(port)], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


def test_it_starts_without_the_heavy_libraries():
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, forebay.emulator.__main__; print(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    ).stdout.split()
    heavy = {
        "numpy",
        "scipy",
        "typer",
        "rich",
        "click",
        "matplotlib",
        "yaml",
        "sqlalchemy",
        "starlette",
        "pydantic",
        "prometheus_client",
        "psutil",
    }
    assert heavy.isdisjoint(loaded)


def test_a_deaf_engine_obeys_only_the_second_sigterm(tmp_path):
    with emulator(tmp_path, "--fault", '{"kind": "deaf"}') as (process, (url,)):
        process.send_signal(signal.SIGTERM)
        # The answer comes after the signal was handled: both go through the same loop.
        assert [get(f"{url}/health")[0] for _ in range(3)] == [200] * 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
