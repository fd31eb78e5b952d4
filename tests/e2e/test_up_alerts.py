"""What a running Forebay says when its eyes or its memory fail: alerts to a webhook, as they begin and end, and a store that refuses."""

import asyncio
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("up alerts")]
WAIT_S = 45.0

CONFIG = """
pools:
  chat:
    model: llama-3.1-8b
    profile: slow
    engine: {{kind: emulated, stop_grace: 20s}}
    slo: {{ttft: 20s, itl: 2s, attainment: 0.5}}
    scaling:
      min: 1
      max: 2
      out: {{waiting_per_replica: 1, for: 3s}}
      in: {{calm: 1h}}
      buffer: false
      noise: 0
      replica_rate: 10/s
      cold_start: 5m
      unknown_alert: 10s
profiles:
  slow:
    base: llama-3.1-8b-h100
    step: {{base: 500ms}}
    sequences: 4
    cold_start: {{provision: 0s, weights: 16GB, bandwidth: 16GB/s, init: 1s}}
tiers:
  interactive: {{rank: 0, ttft: 20s, longest_wait: 1h}}
teams:
  demo:
    keys: [{{key: sk-demo-interactive, tier: interactive}}]
gateway: {{listen: "127.0.0.1:0"}}
admin: {{listen: "127.0.0.1:0"}}
alerts: {{webhook: "{webhook}"}}
speed: 10
"""


@pytest.fixture(scope="module")
def posts():
    """(address, queue of what was posted there)."""
    heard = queue.Queue()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            heard.put((self.path, self.headers["content-type"], json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook", heard
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def fleet(up_module, posts):
    return up_module(CONFIG.format(webhook=posts[0])).until_ready()


def next_post(heard, kind, alert, words=""):
    """The next post of ``kind`` about ``alert`` that says ``words``; a busy machine may raise others before."""
    while True:
        path, content_type, post = heard.get(timeout=WAIT_S)
        assert (path, content_type) == ("/hook", "application/json")
        if (post["kind"], post["detail"]) == (kind, {"alert": alert}) and words in post["message"]:
            return post


def test_an_alert_is_posted_when_it_begins_and_when_it_ends(fleet, posts, fetch, wait_until):
    """The engine's metrics can't be read any more: nobody is let go, somebody is told, and told again when it is over."""
    (replica,) = fleet.ready(1)["detail"]
    wait_until(lambda: fleet.pool()["alerts"] == [], "the end of what a slow start may have raised")
    fetch(f"{replica['url']}/emulator/fault", {"kind": "metrics", "mode": "missing"})
    alert = next_post(posts[1], "alert", "signals_unknown", "the load of 1 of 1 ready replicas not known")
    assert alert["pool"] == "chat"
    assert alert["text"] == f"[chat] alert: {alert['message']}"
    pool = fleet.pool()
    assert [one["kind"] for one in pool["alerts"]] == ["signals_unknown"]
    assert (pool["desired"], pool["detail"][0]["kv_usage"]) == (1, None), "unknown is neither zero nor a reason for fewer"
    assert "signals_unknown" in fleet.cli("status").stdout
    fetch(f"{replica['url']}/emulator/fault", {"kind": "clear"})
    assert next_post(posts[1], "alert_over", "signals_unknown")["pool"] == "chat"
    wait_until(lambda: fleet.pool()["alerts"] == [], "the alert's end")


def test_a_store_that_refuses_stops_neither_answers_nor_scaling(fleet, wait_until, wait_until_async):
    """The controller may write no byte beyond what its history has: as on a full disk. The log has room."""

    async def more_than_one_can_bear():
        async with fleet.client() as client:
            streams = [asyncio.create_task(fleet.stream(client, 60)) for _ in range(10)]
            await wait_until_async(lambda: fleet.pool()["replicas"].get("ready") == 2, "a second replica")
            return await asyncio.gather(*streams)

    fleet.ready(1)
    assert fleet.status()["problems"] == []
    controller = psutil.Process(fleet.child("controller").pid)
    written = max(file.stat().st_size for file in fleet.state.glob("forebay.db*"))
    assert written > 4 * (fleet.state / "logs" / "controller.log").stat().st_size, "the log must have room where the history has none"
    hard = controller.rlimit(psutil.RLIMIT_FSIZE)[1]
    controller.rlimit(psutil.RLIMIT_FSIZE, (written, hard))
    try:
        streams = asyncio.run(more_than_one_can_bear())
        assert [stream for stream in streams if not stream.whole] == []
        (problem,) = fleet.status()["problems"]
        assert "history is not kept, scaling goes on" in problem
        log = (fleet.state / "logs" / "controller.log").read_text()
        assert log.count("store_failed") == 1, log
        assert fleet.child("controller").pid == controller.pid
        assert "history is not kept" in fleet.cli("status").stdout
        assert fleet.cli("explain").returncode == 0
    finally:
        controller.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
    wait_until(lambda: fleet.status()["problems"] == [], "history to be kept again")
    assert (
        "store_works" in [event["kind"] for event in fleet.events()]
        or "store_works" in (fleet.state / "logs" / "controller.log").read_text()
    )
