"""Spilling with processes as people run them: a provider that is dead, not trusted, slow or gone, and a gateway that is killed meanwhile."""

import contextlib
import http.server
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("gateway spills")]
WAIT_S = 40.0
TLS = Path(__file__).parents[1] / "fixtures" / "tls"
CONFIG = """
models: {{tiny: {{context: 2000}}}}
profiles:
  slow: {{base: llama-3.1-8b-h100, sequences: 1, step: {{base: 2s}}}}
pools:
  chat:
    model: tiny
    profile: slow
    attach: ["{home}"]
    overflow:
      spill_after: 1s
      spill:
        - {{name: far, url: "{far}/v1", key_env: FAR_TEST_KEY, budget: 1, price: {{prompt: 0, output: 100000}}, streams: 10}}
teams:
  search: {{overflow: [spill], keys: [{{key: sk-search-0001, tier: interactive}}]}}
"""
ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "far"}, "finish_reason": "stop"}]}
USAGE = {"usage": {"prompt_tokens": 10, "completion_tokens": 5}}


class Provider:
    """Other people's engines; ``how`` they behave may be changed while they run."""

    def __init__(self, tls: bool = False) -> None:
        self.how, self.asked, self.keys = "well", 0, set()
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                provider.asked += 1
                provider.keys.add(self.headers["authorization"])
                if provider.how == "hangs":
                    time.sleep(WAIT_S)
                status = {"well": 200, "redirects": 302}.get(provider.how, 200)
                body = json.dumps(ANSWER | USAGE).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                if status == 302:
                    self.send_header("location", "http://127.0.0.1:9/")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def provider(request):
    made = Provider(getattr(request, "param", False))
    yield made
    made.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """An engine with one place, taken by whoever comes first for as long as a test may take."""
    ready = tmp_path_factory.mktemp("home") / "ready.json"
    command = [sys.executable, "-m", "forebay.emulator", "--model", "tiny", "--ready-file", str(ready)]
    engine = subprocess.Popen([*command, "--fault", '{"kind": "slow", "factor": 300}'], stderr=subprocess.DEVNULL)
    wait_for(ready.exists)
    yield json.loads(ready.read_text())["urls"][0]
    engine.kill()
    engine.wait(WAIT_S)


def wait_for(look):
    until_s = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < until_s, "waited too long"
        time.sleep(0.02)
    return found


class Gateway:
    """`forebay gateway` over ``folder``; what it says goes to a file there."""

    def __init__(self, folder, home, far, key="sk-far-away") -> None:
        self.folder = folder
        (folder / "forebay.yaml").write_text(CONFIG.format(home=home, far=far))
        self.log = folder / "log"
        self.environment = {**os.environ, "FAR_TEST_KEY": key, "SSL_CERT_FILE": os.environ.get("SSL_CERT_FILE", "")}
        if not self.environment["SSL_CERT_FILE"]:
            del self.environment["SSL_CERT_FILE"]
        self.process = None

    def start(self):
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "forebay.cli.main", "gateway", "-c", str(self.folder / "forebay.yaml"), "--port", "0"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*command, "--ready-file", str(ready)], stderr=log, env=self.environment)
        wait_for(lambda: ready.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.said()
        self.url = json.loads(ready.read_text())["gateway"]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def said(self):
        return self.log.read_text()

    def ask(self, got=None, timeout_s=WAIT_S, **more):
        """(status, headers) of one request."""
        body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, **more}).encode()
        asked = urllib.request.Request(f"{self.url}/v1/chat/completions", body, {"authorization": "Bearer sk-search-0001"})
        try:
            with urllib.request.urlopen(asked, timeout=timeout_s) as answer:
                answer.read()
                found = answer.status, dict(answer.headers)
        except urllib.error.HTTPError as error:
            found = error.code, dict(error.headers)
        except OSError as error:
            found = 0, {"error": str(error)}
        if got is not None:
            got.append(found)
        return found

    def begin(self, count, **more):
        """As many requests at once, each in a thread; what comes of them is in the list."""
        got = []
        for _ in range(count):
            threading.Thread(target=self.ask, args=(got,), kwargs=more, daemon=True).start()
        return got


@pytest.fixture
def gateway(tmp_path, home):
    made = []

    def make(far, **more):
        made.append(Gateway(tmp_path, home, far, **more))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        with contextlib.suppress(OSError):
            one.process.kill()
        one.process.wait(WAIT_S)


def test_a_gateway_killed_in_a_loop_spends_no_more_than_the_hours_budget(gateway, provider):
    """Half a dollar a request, a dollar an hour; each life before had a dollar of its own."""
    one = gateway(provider.url)
    for _ in range(3):
        got = one.begin(5, max_tokens=5)
        wait_for(lambda: provider.asked >= 2)
        time.sleep(2.5)
        one.kill()
        one.start()
        assert [status for status, _ in got if status == 200] in ([200, 200], [])
    assert provider.asked == 2
    assert provider.keys == {"Bearer sk-far-away"}


def test_a_gateway_killed_while_requests_are_there_counts_them_as_paid(gateway, provider):
    provider.how = "hangs"
    one = gateway(provider.url)
    for _ in range(2):
        one.begin(5)
        wait_for(lambda: provider.asked >= 2)
        time.sleep(2.0)
        one.kill()
        one.start()
    assert provider.asked == 2


@pytest.mark.parametrize("provider", [True], indirect=True, ids=["untrusted"])
def test_a_certificate_that_is_not_trusted_is_told_with_what_to_do_and_no_key_was_sent(gateway, provider):
    one = gateway(provider.url)
    one.begin(2)
    said = wait_for(lambda: [line for line in one.said().splitlines() if " engine_failed " in line])
    assert provider.url in said[0]
    assert "SSL_CERT_FILE" in said[0]
    assert "pool=chat/far" in said[0]
    assert provider.asked == 0


def test_a_provider_that_is_not_there_or_redirects_is_told_and_nobody_waits_less(gateway, provider):
    one = gateway(provider.url)
    provider.how = "redirects"
    got = one.begin(2)
    said = wait_for(lambda: [line for line in one.said().splitlines() if " engine_failed " in line])
    assert "answered 302" in said[0]
    wait_for(lambda: " overflow_began " in one.said())
    time.sleep(1.0)
    assert got == []


def test_a_key_with_blanks_is_refused_before_anything_starts(gateway, provider):
    with pytest.raises(AssertionError, match="FAR_TEST_KEY with blanks"):
        gateway(provider.url, key="sk far away")
