"""Engines that are attached and taken off the list in the file of a Forebay that runs: under `forebay up`, and with a gateway alone."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240), pytest.mark.xdist_group("up usage")]

WAIT_S = 45.0
TOKENS = 300
CONFIG = """
pools:
  chat: {{model: llama-3.1-8b, profile: llama-3.1-8b-h100, attach: [{}]}}
gateway: {{listen: "127.0.0.1:0"}}
admin: {{listen: "127.0.0.1:0"}}
"""


@pytest.fixture
def engines(tmp_path, wait_until):
    """Addresses of two engines that somebody else runs; an answer of `TOKENS` tokens takes them some seconds."""
    ready = tmp_path / "engines.json"
    command = [sys.executable, "-m", "forebay.emulator", "--model", "llama-3.1-8b", "--engines", "2", "--ready-file", str(ready)]
    process = subprocess.Popen([*command, "--fault", '{"kind": "slow", "factor": 3}'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(ready.exists, "the engines")
    yield [url.rstrip("/") for url in json.loads(ready.read_text())["urls"]]
    process.kill()
    process.wait(WAIT_S)


def listing(*urls):
    return CONFIG.format(", ".join(f'"{url}"' for url in urls))


def replica(url):
    return f"chat@{url.removeprefix('http://')}"


def test_under_up_engines_come_and_go_under_streams(up, engines, wait_until_async):
    first, second = engines
    fleet = up(listing(first)).until_ready()
    file = fleet.folder / "forebay.yaml"
    pids = [fleet.child(name).pid for name in ("controller", "gateway")]

    def states():
        return {each["id"]: each["state"] for each in fleet.pool()["detail"]}

    async def main():
        async with fleet.client() as client:
            streams = await fleet.begun(client, 3, TOKENS)
            file.write_text(listing(second))
            await wait_until_async(lambda: states().get(replica(second)) == "ready", "the engine that was added")
            seen = await asyncio.to_thread(states)
            assert seen.get(replica(first), "draining") == "draining"
            (other,) = await fleet.begun(client, 1, 20)
            assert (await other).whole
            assert all(stream.whole for stream in await asyncio.gather(*streams))
            await wait_until_async(lambda: states() == {replica(second): "ready"}, "the engine that was taken off the list to be forgotten")
            file.write_text(listing(second, second))
            await wait_until_async(lambda: "config_refused" in fleet.logs(), "the file with an error to be refused")
            assert (await fleet.stream(client, 3)).whole

    asyncio.run(main())
    assert [fleet.child(name).pid for name in ("controller", "gateway")] == pids
    told = {event["kind"]: event["message"] for event in fleet.events()}
    assert told["attach_taken"] == f"attach: +{second.removeprefix('http://')}, -{first.removeprefix('http://')}"
    assert told["engine_left"].startswith(replica(first))


def test_a_controller_that_starts_again_attaches_to_what_was_taken(up, engines, wait_until):
    first, second = engines
    fleet = up(listing(first)).until_ready()
    (fleet.folder / "forebay.yaml").write_text(listing(first, second))
    fleet.ready(2)
    before = fleet.child("controller").pid
    fleet.child("controller").send_signal(signal.SIGKILL)

    def again():
        with contextlib.suppress(ProcessLookupError):
            return fleet.child("controller").pid != before
        return False

    wait_until(again, "the next controller")
    fleet.ready(2)


def test_a_gateway_alone_takes_the_list_at_a_signal_too(tmp_path, engines, wait_until):
    first, second = engines
    file, ready, log = tmp_path / "forebay.yaml", tmp_path / "ready.json", tmp_path / "gateway.log"
    file.write_text(listing(first))
    command = [sys.executable, "-m", "forebay.cli.main", "gateway", "-c", str(file), "--port", "0", "--ready-file", str(ready)]
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, cwd=tmp_path)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(tokens):
        """(the replica that answered, tokens)."""
        body = {"model": "llama-3.1-8b", "messages": [{"role": "user", "content": "Count."}], "max_tokens": tokens, "ignore_eos": True}
        url = json.loads(ready.read_text())["gateway"]
        asked = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        with opener.open(asked, timeout=WAIT_S) as answer:
            return answer.headers["x-forebay-replica"], json.loads(answer.read())["usage"]["completion_tokens"]

    try:
        wait_until(ready.exists, "the gateway")
        with ThreadPoolExecutor() as threads:
            long = threads.submit(ask, TOKENS)
            assert ask(1)[0] == replica(first)
            file.write_text(listing(second))
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: "config_taken" in log.read_text(), "the list to be taken")
            assert ask(3) == (replica(second), 3)
            assert long.result(WAIT_S) == (replica(first), TOKENS)
        wait_until(lambda: f"{replica(first)} is off the list" in log.read_text(), "the one that left to be empty")
        assert f"chat: attach: +{second.removeprefix('http://')}, -{first.removeprefix('http://')}" in log.read_text()
    finally:
        process.terminate()
        process.wait(WAIT_S)
