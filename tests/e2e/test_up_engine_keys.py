"""`forebay up` in front of engines that ask for a key: it is shown where it must be, and read nowhere; and what is said without it."""

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.xdist_group("up usage")]

WAIT_S = 45.0
KEY, OTHER = "sk-engine-0123456789abcdef", "sk-engine-fedcba9876543210"
CLIENT = "sk-search-0123456789"
CONFIG = """
pools:
  chat:
    model: llama-3.1-8b
    profile: llama-3.1-8b-h100
    attach: [{}]
    engine: {{key_file: chat.key}}
teams:
  search: {{keys: [{{key: {client}, tier: interactive}}]}}
gateway: {{listen: "127.0.0.1:0", workers: 1}}
admin: {{listen: "127.0.0.1:0"}}
"""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def engines(tmp_path, wait_until):
    """Addresses of two engines that somebody else runs, with a key."""
    ready = tmp_path / "engines.json"
    command = [sys.executable, "-m", "forebay.emulator", "--model", "llama-3.1-8b", "--engines", "2", "--ready-file", str(ready)]
    process = subprocess.Popen([*command, "--api-key", KEY], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(ready.exists, "the engines")
    yield [url.rstrip("/") for url in json.loads(ready.read_text())["urls"]]
    process.kill()
    process.wait(WAIT_S)


def listing(*urls):
    return CONFIG.format(", ".join(f'"{url}"' for url in urls), client=CLIENT)


def fetched(url, **headers):
    """What is answered, head and body, whatever the status."""
    try:
        with _DIRECT.open(urllib.request.Request(url, headers=headers), timeout=20) as answer:
            return f"{answer.status} {answer.headers}\n{answer.read().decode()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.headers}\n{error.read().decode()}"


def everything(fleet):
    """All that a Forebay has written and answers, by where."""
    found = {str(path): path.read_bytes() for path in fleet.state.rglob("*") if path.is_file()}
    found["up"] = fleet.output.read_bytes()
    for path in ("/v1/status", "/v1/explain", "/v1/events?limit=1000", "/v1/usage", "/metrics"):
        found[path] = fetched(fleet.admin + path).encode()
    for path in ("/v1/models", "/ready", "/health", "/metrics", "/forebay/v1/requests/mine"):
        found[f"gateway {path}"] = fetched(fleet.gateway + path, Authorization=f"Bearer {CLIENT}").encode()
    for words in (["status"], ["status", "--json", "-"], ["explain"], ["explain", "--json", "-"], ["usage"], ["check", "forebay.yaml"]):
        ran = fleet.cli(
            *words, *([] if words[0] == "check" else ["--state", str(fleet.state)] if words[0] in {"status", "explain"} else [])
        )
        found[" ".join(words)] = (ran.stdout + ran.stderr).encode()
    return found


def test_the_key_is_shown_to_engines_and_read_nowhere(up, engines, tmp_path, wait_until):
    (tmp_path / "chat.key").write_text(f"{KEY}\n")
    fleet = up(listing(*engines).replace("chat.key", str(tmp_path / "chat.key"))).until_ready()
    fleet.ready(2)

    async def asked():
        async with fleet.client(CLIENT) as client:
            streams = [await fleet.stream(client, 30, extra_headers={"x-request-id": "mine"}) for _ in range(3)]
            whole = await client.chat.completions.create(
                model="llama-3.1-8b", messages=[{"role": "user", "content": "Count."}], max_tokens=5
            )
            return streams, whole

    streams, whole = asyncio.run(asked())
    assert all(stream.whole for stream in streams), streams
    assert whole.usage.completion_tokens == 5
    wait_until(lambda: fleet.pool()["waiting_in_engines"] is not None, "the engines' pages to be read")
    # Another key in its place: the engines refuse it, and it is said; then the right one again.
    (tmp_path / "chat.key").write_text(OTHER)
    wait_until(lambda: fleet.pool()["replicas"] == {"failed": 2}, "the wrong key to be found out", 100.0)
    said = {event["kind"]: event["message"] for event in fleet.events()}
    assert "refuses its key (it answers 401): pools.chat.engine has it from key_file" in said["engine_asks_key"]
    assert "refuses its key" in fleet.pool()["detail"][0]["problem"]
    answer = fetched(f"{fleet.gateway}/v1/models", Authorization=f"Bearer {CLIENT}")
    assert answer.startswith("200")

    async def refused():
        async with fleet.client(CLIENT) as client:
            return await fleet.stream(client, 3)

    stream = asyncio.run(refused())
    assert "The engine refuses the gateway, which it asks for a key" in stream.error
    assert "503" in stream.error
    (tmp_path / "chat.key").write_text(KEY)
    fleet.ready(2, "with the right key again")

    async def again():
        async with fleet.client(CLIENT) as client:
            return await fleet.stream(client, 3)

    assert asyncio.run(again()).whole
    found = everything(fleet)
    assert len(found) > 20
    for where, content in found.items():
        for secret in (KEY, OTHER):
            assert secret.encode() not in content, where
    for child in psutil.Process(fleet.process.pid).children(recursive=True):
        assert KEY not in " ".join(child.cmdline())


def test_up_that_is_given_no_key_says_which_engine_asks_and_how_to_give_it(up, engines, wait_until):
    without = listing(engines[0]).replace("    engine: {key_file: chat.key}\n", "")
    fleet = up(without)
    wait_until(lambda: "asks for a key (it answers 401), and is given none" in fleet.output.read_text(), "the engine that asks to be told")
    words = fleet.output.read_text()
    assert f"chat@{engines[0].removeprefix('http://')}" in words
    assert "key_env or key_file in pools.chat.engine" in words


def test_a_key_that_is_not_there_is_said_before_anything_starts(up, engines):
    fleet = up(listing(engines[0]).replace("key_file: chat.key", "key_env: FOREBAY_TEST_ABSENT_KEY"))
    assert fleet.wait() == 2
    assert "pools.chat.engine: key_env: found no FOREBAY_TEST_ABSENT_KEY in the environment" in fleet.output.read_text()
    checked = fleet.cli("check", "forebay.yaml")
    assert checked.returncode == 0, "another environment may have it"
    assert "found no FOREBAY_TEST_ABSENT_KEY" in checked.stdout


def test_engines_that_are_started_with_a_key_are_shown_it_too(up, monkeypatch):
    """Each is at an address that nobody knows before."""
    monkeypatch.setenv("FOREBAY_TEST_ENGINE_KEY", KEY)
    words = [sys.executable, "-m", "forebay.emulator", "--model", "{model}", "--port", "{port}", "--api-key", KEY]
    fleet = up(
        f"""
pools:
  chat:
    model: llama-3.1-8b
    profile: llama-3.1-8b-h100
    engine: {{command: {json.dumps(words)}, key_env: FOREBAY_TEST_ENGINE_KEY}}
    scaling: {{min: 1, max: 1}}
gateway: {{listen: "127.0.0.1:0"}}
admin: {{listen: "127.0.0.1:0"}}
"""
    ).until_ready()

    async def asked():
        async with fleet.client() as client:
            return await fleet.stream(client, 5)

    assert asyncio.run(asked()).whole
