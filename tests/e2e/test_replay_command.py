"""`forebay replay` as people run it: a real process, real sockets, a small server that streams."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from forebay.cli.replay import command
from forebay.domain.errors import BadInput

pytestmark = pytest.mark.e2e

REPLAY = [sys.executable, "-m", "forebay.cli.main", "replay"]
SERVED = threading.Semaphore(0)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                body = b'{"data":[{"id":"real"}]}'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                continue
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            asked = json.loads(await reader.readexactly(length))["max_tokens"]
            writer.write(HEAD)
            for number in range(asked):
                await asyncio.sleep(0.002)
                finish = b'"length"' if number == asked - 1 else b"null"
                writer.write(chunk(b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":%s}]}\n\n' % finish))
            usage = chunk(b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n' % asked)
            writer.write(usage + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            SERVED.release()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


@pytest.fixture
def target() -> Iterator[str]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def finish() -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.05)

    asyncio.run_coroutine_threadsafe(finish(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [
        {"at_s": 0.1 * number, "prompt_tokens": 50, "output_tokens": 1 + number % 10, "tier": "ab"[number % 2]} for number in range(100)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def replay(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*REPLAY, *map(str, arguments)], capture_output=True, text=True, timeout=50, check=False)


def test_a_replay_measures_and_reports(target, trace, tmp_path):
    out = tmp_path / "report.json"
    done = replay("--target", target, "--trace", trace, "--speed", 5, "--ttft", "a=1h,b=0.001s", "--records", "--json", out)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert (report["requests"], report["completed"], report["statuses"]) == (100, 100, {"200": 100})
    assert (report["truncated"], report["errors"], report["shed"]) == (0, 0, 0)
    assert report["chunks"] == report["output_tokens"] == 550
    assert report["by_tier"]["a"]["requests"] == 50
    assert report["ttft_attainment"] == 0.5
    # One event each 2 ms of the server's real time is at least 10 ms of a world that runs five times as fast.
    assert report["itl_s"]["p50"] >= 0.005
    assert report["wall_s"] * 5 == pytest.approx(report["duration_s"])
    assert len(report["records"]) == 100
    assert "100" in done.stdout


def test_json_on_stdout_is_alone_there(target, trace):
    done = replay("--target", target, "--trace", trace, "--duration", "1s", "--json", "-")
    assert done.returncode == 0
    assert json.loads(done.stdout)["requests"] == 10
    assert "Requests" in done.stderr


def test_an_interrupt_reports_what_was_sent(target, tmp_path):
    path, out = tmp_path / "long.jsonl", tmp_path / "report.json"
    path.write_text("\n".join(json.dumps({"at_s": at_s, "prompt_tokens": 1, "output_tokens": 1}) for at_s in (0, 0, 3600)))
    while SERVED.acquire(blocking=False):
        pass
    child = subprocess.Popen([*REPLAY, "--target", target, "--trace", path, "--json", out], stderr=subprocess.PIPE, text=True)
    try:
        assert SERVED.acquire(timeout=40)
        assert SERVED.acquire(timeout=40)
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=40)
    finally:
        child.kill()
    assert child.returncode == 1
    assert "interrupted" in stderr
    assert json.loads(out.read_text())["completed"] == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trace": "/nonexistent"}, "/nonexistent"),
        ({"trace_format": "cvs"}, "allowed: auto, azure"),
        ({"start": "90"}, "is not a duration"),
        ({"start": "1h"}, "no row in the span"),
        ({"speed": 0.0}, "--speed: found 0.0"),
        ({"rate_scale": -1.0}, "--rate-scale: found -1.0"),
        ({"keys": "a=sk"}, "no key for tier 'b'"),
        ({"tiers": "a"}, "TIER=VALUE"),
        ({"tiers": "a=x"}, "--tiers: found 'x'"),
        ({"ttft": "a=1"}, "--ttft: '1' is not a duration"),
        ({"target": "localhost"}, "allowed: http://HOST:PORT"),
    ],
)
def test_bad_input_says_what_and_what_is_allowed(trace, options, words):
    with pytest.raises(BadInput) as caught:
        command(**({"target": "http://127.0.0.1:9", "trace": str(trace)} | options))
    assert words in str(caught.value)


def test_bad_input_is_one_sentence_and_exit_code_two(trace):
    done = replay("--target", "localhost", "--trace", trace)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_a_target_that_is_not_there_is_exit_code_one(trace):
    done = replay("--target", "http://127.0.0.1:9", "--trace", trace, "--model", "m")
    assert done.returncode == 1
    assert "can't be reached" in done.stderr
    assert "Traceback" not in done.stderr


def test_emulated_engines_answer_every_token_asked(trace, tmp_path):
    ready, out = tmp_path / "ready.json", tmp_path / "report.json"
    emulator = [sys.executable, "-m", "forebay.emulator", "--port", "0", "--speed", "20", "--ready-file", str(ready)]
    child = subprocess.Popen(emulator)
    try:
        for _ in range(400):
            if ready.exists() or child.poll() is not None:
                break
            time.sleep(0.05)
        target = json.loads(ready.read_text())["urls"][0]
        done = replay("--target", target, "--trace", trace, "--speed", 20, "--json", out)
        assert done.returncode == 0, done.stderr
    finally:
        child.terminate()
        child.wait(timeout=20)
    report = json.loads(out.read_text())
    assert (report["completed"], report["chunks"], report["output_tokens"]) == (100, 550, 550)
    assert report["usage_missing"] == report["stopped_early"] == 0
    assert 0.001 < report["itl_s"]["p50"] < report["ttft_s"]["p99"]
