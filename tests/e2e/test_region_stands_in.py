"""A region fails under a gateway as people run it: the other's engine answers, and requests come home once the first is there again."""

import json
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180), pytest.mark.xdist_group("gateway spills")]
WAIT_S = 45.0
CONFIG = """
pools:
  paris: {{model: tiny, region: eu, attach: ["{}"]}}
  virginia: {{model: tiny, region: us, attach: ["{}"]}}
teams:
  search: {{overflow: [spill], keys: [{{key: sk-search-0001}}]}}
  legal: {{overflow: [spill], residency: [eu], keys: [{{key: sk-legal-0001}}]}}
"""


@pytest.fixture
def engine(tmp_path, wait_until):
    """Starts one at a port (0: any free one); returns its process and address."""
    begun = []

    def start(port=0):
        ready = tmp_path / f"engine-{len(begun)}.json"
        command = [sys.executable, "-m", "forebay.emulator", "--model", "tiny", "--port", str(port), "--ready-file", str(ready)]
        begun.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_until(ready.exists, "the engine")
        return begun[-1], json.loads(ready.read_text())["urls"][0].rstrip("/")

    yield start
    for process in begun:
        process.kill()
        process.wait(WAIT_S)


@pytest.fixture
def ask(tmp_path, wait_until):
    """Starts a gateway over two engines; returns how it is asked: (status, headers, body)."""
    begun = []

    def start(*urls):
        (tmp_path / "forebay.yaml").write_text(CONFIG.format(*urls))
        ready = tmp_path / "gateway.json"
        command = [sys.executable, "-m", "forebay.cli.main", "gateway", "-c", str(tmp_path / "forebay.yaml"), "--port", "0"]
        begun.append(subprocess.Popen([*command, "--ready-file", str(ready)], stderr=subprocess.DEVNULL))
        wait_until(ready.exists, "the gateway")
        address = json.loads(ready.read_text())["gateway"]

        def ask(key):
            body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}).encode()
            request = urllib.request.Request(f"{address}/v1/chat/completions", body, {"authorization": f"Bearer {key}"})
            try:
                with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                    return answer.status, dict(answer.headers), answer.read()
            except urllib.error.HTTPError as error:
                return error.code, dict(error.headers), error.read()

        return ask

    yield start
    for process in begun:
        process.kill()
        process.wait(WAIT_S)


def test_a_region_whose_engine_is_killed_is_stood_in_for_until_it_is_back(engine, ask, wait_until):
    paris, url = engine()
    asked = ask(url, engine()[1])

    def place():
        status, headers, body = asked("sk-search-0001")
        assert status == 200, body
        return headers["x-forebay-pool"], headers.get("x-forebay-spilled")

    assert place() == ("paris", None)
    paris.kill()
    paris.wait(WAIT_S)
    assert [place() for _ in range(5)] == [("virginia", "virginia")] * 5
    status, _, body = asked("sk-legal-0001")
    assert status == 503
    assert "No replica of pool paris " in json.loads(body)["error"]["message"]
    engine(int(url.rpartition(":")[2]))
    wait_until(lambda: place() == ("paris", None), "home again")
