"""The whole generator in a virtual world: what it sends, when, and how it counts what a scripted server does to it."""

import asyncio
import json
import random
from collections.abc import Callable

import httptools
import pytest

from forebay.demand.trace import TraceRow
from forebay.domain.errors import BadInput, ForebayError
from forebay.loadgen.replay import ReplayOptions, run
from forebay.loadgen.report import Progress, ReplayReport, to_json
from forebay.testing import loop
from forebay.testing.clock import LoopClock

CLOSE, ABORT = "close", "abort"
Step = tuple[float, bytes | str]


class Request:
    """What the server got, and when."""

    def __init__(self, number: int, at_s: float, path: str, headers: dict[str, str], body: bytes) -> None:
        self.number, self.at_s, self.path, self.headers = number, at_s, path, headers
        self.json = json.loads(body) if body else {}


class Server:
    """Answers each POST as ``script`` says: steps of (seconds to wait, bytes to write or how to end)."""

    def __init__(
        self, script: Callable[[Request], list[Step]], models: bytes = b'{"data":[{"id":"m1"},{"id":"m2"}]}', status: int = 200
    ) -> None:
        self.script, self.models, self.status = script, models, status
        self.requests: list[Request] = []
        self.connections = 0
        self.open: set[asyncio.Transport] = set()

    async def start(self) -> str:
        server = await asyncio.get_running_loop().create_server(lambda: Peer(self), "127.0.0.1", 0)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


class Peer(asyncio.Protocol):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.parser = httptools.HttpRequestParser(self)
        server.connections += 1
        self.headers: dict[str, str] = {}
        self.path, self.bytes = "", b""
        self.task: asyncio.Task[None] | None = None

    def connection_made(self, transport):
        self.transport = transport
        self.server.open.add(transport)

    def data_received(self, data):
        self.parser.feed_data(data)

    def connection_lost(self, _error):
        self.server.open.discard(self.transport)
        if self.task:
            self.task.cancel()

    def on_message_begin(self):
        self.headers, self.path, self.bytes = {}, "", b""

    def on_url(self, url):
        self.path += url.decode()

    def on_header(self, name, value):
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body):
        self.bytes += body

    def on_message_complete(self):
        if self.path == "/v1/models":
            self.transport.write(answer(self.server.status, self.server.models))
            return
        server = self.server
        request = Request(len(server.requests), asyncio.get_running_loop().time(), self.path, self.headers, self.bytes)
        server.requests.append(request)
        self.task = asyncio.create_task(self.play(server.script(request)))

    async def play(self, steps: list[Step]) -> None:
        for wait_s, what in steps:
            await asyncio.sleep(wait_s)
            if what == CLOSE:
                self.transport.close()
            elif what == ABORT:
                self.transport.abort()
            else:
                self.transport.write(what)


def answer(status: int, body: bytes, *headers: str) -> bytes:
    more = "".join(header + "\r\n" for header in headers)
    return f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{more}content-length: {len(body)}\r\n\r\n".encode() + body


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def token(text: str = " the", finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return chunk(b"data: " + json.dumps({"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n")


def closing(tokens: int) -> bytes:
    return chunk(b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n' % tokens) + chunk(b"data: [DONE]\n\n") + END


def stream(tokens: int, first_s: float = 1.0, next_s: float = 0.1) -> list[Step]:
    rest: list[Step] = [(next_s, token())] * (tokens - 2) + [(next_s, token(" end", "length"))] if tokens > 1 else []
    return [(0.0, HEAD + token("")), (first_s, token() if tokens > 1 else token(" end", "length")), *rest, (0.0, closing(tokens))]


def asked(request: Request) -> list[Step]:
    return stream(request.json["max_tokens"])


def replayed(
    server: Server,
    rows: list[TraceRow],
    *,
    speed: float = 1.0,
    seed: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop_at_s: float | None = None,
    cpu: float = 0.0,
    **options: object,
) -> ReplayReport:
    async def main() -> ReplayReport:
        settings = ReplayOptions(target=await server.start(), **options)  # type: ignore[arg-type]
        stop = asyncio.Event()
        running_loop = asyncio.get_running_loop()
        if stop_at_s is not None:
            running_loop.call_at(stop_at_s, stop.set)
        report = await run(rows, settings, LoopClock(speed), random.Random(1), on_progress, stop, lambda: cpu * running_loop.time())
        await asyncio.sleep(1.0)
        assert not server.open
        return report

    report = loop.run(main, seed)
    assert report.requests == report.completed + report.truncated + report.shed + report.errors
    assert report.requests == sum(tier.requests for tier in report.by_tier.values())
    return report


def every(gap_s: float, count: int, tokens: int = 3, tier: str = "") -> list[TraceRow]:
    return [TraceRow(gap_s * number, 10, tokens, tier) for number in range(count)]


def test_requests_go_out_when_due_whatever_became_of_the_others():
    server = Server(lambda request: [(50.0, b""), *asked(request)])
    report = replayed(server, every(0.5, 20))
    begun_s = report.started_s
    assert [request.at_s - begun_s for request in server.requests] == pytest.approx([0.5 * number for number in range(20)], abs=0.01)
    assert report.completed == 20
    assert report.connections_opened == server.connections == 20
    assert report.generator_lag_s.p99 == pytest.approx(0.0, abs=0.001)
    assert not report.generator_bound


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_times_are_measured_from_when_a_request_was_due(seed):
    report = replayed(Server(asked), every(10.0, 5, tokens=5), seed=seed)
    assert report.ttft_s.p50 == pytest.approx(1.0, rel=0.01)
    assert report.itl_s.p50 == pytest.approx(0.1, rel=0.03)
    assert report.e2e_s.p99 == pytest.approx(1.4, rel=0.01)
    assert report.longest_gap_s.p50 == pytest.approx(0.1, rel=0.03)
    assert (report.chunks, report.output_tokens, report.prompt_tokens) == (25, 25, 50)
    assert report.connections_opened == 1
    assert report.statuses == {"200": 5}


def test_world_seconds_are_real_seconds_times_speed():
    server = Server(asked)
    report = replayed(server, every(20.0, 4, tokens=2), speed=20.0)
    assert [request.at_s for request in server.requests] == pytest.approx([0.0, 1.0, 2.0, 3.0], abs=0.01)
    assert report.ttft_s.p50 == pytest.approx(20.0, rel=0.01)
    assert report.duration_s == pytest.approx(20.0 * report.wall_s)
    assert (report.speed, round(report.wall_s, 1)) == (20.0, 4.1)


def test_too_few_connections_show_as_lag_and_not_as_a_fast_server():
    report = replayed(Server(asked), every(0.0, 10, tokens=1), connections_max=1)
    assert report.completed == 10
    assert report.connection_waits == 9
    assert report.generator_lag_s.p99 == pytest.approx(9.0, rel=0.01)
    assert report.ttft_s.p99 == pytest.approx(10.0, rel=0.01)
    assert report.generator_bound
    assert "9 waited for one of 1 connections" in report.generator_bound_because


def test_a_busy_generator_says_so():
    report = replayed(Server(asked), every(1.0, 3), cpu=0.95)
    assert report.generator_bound
    assert "95% busy" in report.generator_bound_because


@pytest.mark.parametrize(
    ("steps", "counted", "by"),
    [
        ([(0.0, HEAD + token()), (1.0, ABORT)], "truncated", {"cut": 1}),
        ([(0.0, HEAD + token()), (1.0, CLOSE)], "truncated", {"cut": 1}),
        ([(0.0, HEAD + token()), (1.0, b"nonsense\r\n")], "truncated", {"cut": 1}),
        ([(0.0, HEAD + token() + END)], "truncated", {"no_finish_reason": 1}),
        ([(0.0, HEAD + token() + token("x", "length") + END)], "truncated", {"no_done": 1}),
        ([(0.0, HEAD + token() + token("", "abort") + closing(1))], "truncated", {"aborted": 1}),
        ([(0.0, HEAD + token("x", "length") + closing(2))], "truncated", {"wrong_length": 1}),
        ([(0.0, HEAD + token() + chunk(b'data: {"error":{"code":500}}\n\n') + closing(1))], "truncated", {"error_event": 1}),
        ([(0.0, HEAD + token()), (5000.0, END)], "truncated", {"timeout": 1}),
        ([(0.0, HEAD + chunk(b'data: {"error":{"code":500}}\n\n') + closing(1))], "errors", {"error_event": 1}),
        ([(0.0, answer(500, b"broken"))], "errors", {"http_500": 1}),
        ([(0.0, answer(200, b"{}"))], "errors", {"not_a_stream": 1}),
        ([(0.0, b"nonsense\r\n\r\n")], "errors", {"bad_response": 1}),
        ([(5000.0, HEAD)], "errors", {"timeout": 1}),
        ([(1.0, b"HTTP/1.1 200"), (1.0, ABORT)], "errors", {"no_response": 1}),
    ],
)
def test_every_way_to_fail_is_told_apart(steps, counted, by):
    report = replayed(Server(lambda _: list(steps)), every(0.0, 1), records=True)
    assert getattr(report, counted) == 1
    assert (report.truncated_by if counted == "truncated" else report.errors_by) == by
    assert report.records[0].truncated is (counted == "truncated")
    assert report.records[0].outcome == next(iter(by))
    assert report.completed == 0


def test_a_body_that_ends_with_the_connection_is_whole():
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    body = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
    report = replayed(Server(lambda _: [(0.0, head + body), (0.1, CLOSE)]), every(0.0, 1))
    assert (report.completed, report.usage_missing) == (1, 1)


def test_answers_that_stop_by_themselves_are_complete_but_counted():
    report = replayed(Server(lambda _: [(0.0, HEAD + token() + token("x", "stop") + closing(2))]), every(0.0, 1, tokens=9))
    assert (report.completed, report.stopped_early, report.truncated) == (1, 1, 0)


def test_an_idle_connection_that_was_closed_is_no_error():
    server = Server(lambda request: [*asked(request), (0.5, CLOSE)])
    assert replayed(server, every(10.0, 3)).completed == 3
    server = Server(lambda request: [(0.0, ABORT)] if request.number % 2 else asked(request))
    report = replayed(server, every(10.0, 3))
    assert (report.completed, report.resent, report.errors) == (3, 2, 0)


def test_a_server_that_is_gone_is_an_error_of_each_request():
    def script(request: Request) -> list[Step]:
        network = loop.network()
        port = int(request.headers["host"].rpartition(":")[2])
        network.refuse(port)
        return [(0.0, ABORT)]

    report = replayed(Server(script), every(1.0, 3))
    assert report.errors == 3
    assert report.errors_by == {"connect_failed": 3}
    assert "refused" in report.error_samples[0]


REFUSED = answer(429, b"{}", "retry-after: 7")


def test_refusals_are_shed_and_their_advice_is_kept_but_not_followed():
    server = Server(lambda request: [(0.0, REFUSED if request.number else answer(503, b"{}"))])
    report = replayed(server, every(1.0, 3))
    assert (report.shed, report.errors, report.statuses) == (3, 0, {"429": 2, "503": 1})
    assert (report.retry_after.given, report.retry_after.missing, report.retry_after.obeyed) == (2, 1, 0)
    assert report.retry_after.asked_real_s.p50 == pytest.approx(7.0, rel=0.01)
    assert len(server.requests) == 3


def test_a_refusal_inside_a_stream_of_200_is_shed_too():
    busy = HEAD + chunk(b'data: {"error":{"message":"busy","code":503}}\n\n') + chunk(b"data: [DONE]\n\n") + END
    report = replayed(Server(lambda _: [(0.0, busy)]), every(0.0, 1))
    assert (report.shed, report.statuses, report.retry_after.missing) == (1, {"200": 1}, 1)


def test_retry_after_is_obeyed_in_real_seconds_and_the_wait_is_the_users():
    server = Server(lambda request: asked(request) if request.number else [(0.0, REFUSED)])
    report = replayed(server, every(0.0, 1), speed=2.0, obey_retry_after=True)
    assert server.requests[1].at_s - server.requests[0].at_s == pytest.approx(7.0, abs=0.01)
    assert (report.completed, report.shed, report.retry_after.obeyed, report.retry_after.given_up) == (1, 0, 1, 0)
    assert report.ttft_s.p50 == pytest.approx(16.0, rel=0.01)


@pytest.mark.parametrize(("advice", "sent"), [("retry-after: 7", 3), ("retry-after: 900", 1), ("retry-after: soon", 1), ("x: 1", 1)])
def test_obedience_is_bounded(advice, sent):
    server = Server(lambda _: [(0.0, answer(429, b"{}", advice))])
    report = replayed(server, every(0.0, 1), obey_retry_after=True, retries_max=2)
    assert (len(server.requests), report.shed, report.requests) == (sent, 1, 1)


def test_the_timeout_ends_a_wait_to_come_back_and_a_wait_for_a_connection():
    server = Server(lambda _: [(0.0, REFUSED)])
    report = replayed(server, every(0.0, 1), obey_retry_after=True, timeout_s=5.0)
    assert (report.errors_by, len(server.requests)) == ({"timeout": 1}, 1)
    report = replayed(Server(lambda _: [(100.0, HEAD)]), every(0.0, 2), connections_max=1, timeout_s=5.0)
    assert report.errors_by == {"timeout": 2}


def test_tiers_have_their_keys_their_promises_and_their_results():
    rows = [TraceRow(0.0, 1, 2, "fast"), TraceRow(1.0, 1, 2, "slow"), TraceRow(2.0, 1, 2, "slow"), TraceRow(3.0, 1, 2)]
    server = Server(lambda request: [(0.0, REFUSED)] if request.number == 2 else asked(request))
    report = replayed(
        server, rows, keys=(("fast", "sk-f"), ("slow", "sk-s")), key="sk-else", service_tier=True, ttft_s=(("fast", 2.0), ("slow", 0.5))
    )
    assert [request.headers["authorization"] for request in server.requests] == [
        "Bearer sk-f",
        "Bearer sk-s",
        "Bearer sk-s",
        "Bearer sk-else",
    ]
    assert [request.json.get("service_tier") for request in server.requests] == ["fast", "slow", "slow", None]
    assert {name: (tier.requests, tier.completed, tier.shed, tier.ttft_attainment) for name, tier in report.by_tier.items()} == {
        "fast": (1, 1, 0, 1.0),
        "slow": (2, 1, 1, 0.0),
        "default": (1, 1, 0, None),
    }
    assert (report.ttft_attainment, report.ttft_attainment_of_all) == (0.5, pytest.approx(1 / 3))


def test_the_model_is_the_first_that_is_listed_and_the_prompt_as_long_as_the_row_says():
    server = Server(asked)
    replayed(server, [TraceRow(0.0, 123, 1)])
    request = server.requests[0]
    assert (request.path, request.json["model"]) == ("/v1/chat/completions", "m1")
    assert len(request.json["messages"][0]["content"]) == 492


@pytest.mark.parametrize(
    ("server", "options", "words"),
    [
        (Server(asked, models=b'{"data":[]}'), {}, "lists no model"),
        (Server(asked, models=b"no"), {}, "not a list of models"),
        (Server(asked, status=401), {}, "pass --key"),
    ],
)
def test_a_target_that_names_no_model_ends_the_run_in_words(server, options, words):
    with pytest.raises(ForebayError, match=words):
        replayed(server, every(0.0, 1), **options)
    assert not server.requests
    assert replayed(server, every(0.0, 1), model="given").completed == 1


def test_a_target_that_is_not_there_ends_the_run_in_words():
    async def main() -> None:
        await run([], ReplayOptions(target="http://127.0.0.1:1", model="m"), LoopClock(), random.Random(1))

    with pytest.raises(ForebayError, match=r"http://127\.0\.0\.1:1/v1/models can't be reached.*refused"):
        loop.run(main)


@pytest.mark.parametrize("target", ["127.0.0.1:80", "ftp://x", "http://", "http://x:99999", "http://x y"])
def test_an_address_that_is_none_is_bad_input(target):
    async def main() -> None:
        await run([], ReplayOptions(target=target), LoopClock(), random.Random(1))

    with pytest.raises(BadInput, match="target"):
        loop.run(main)


@pytest.mark.parametrize(
    "options", [{"key": "a b"}, {"timeout_s": 0.0}, {"connections_max": 0}, {"bytes_per_token": 0.0}, {"keys": (("t", "é"),)}]
)
def test_options_without_sense_are_bad_input(options):
    with pytest.raises(BadInput, match="allowed"):
        replayed(Server(asked), every(0.0, 1), **options)


def test_a_stop_sends_no_more_and_awaits_what_is_under_way():
    server = Server(asked)
    report = replayed(server, every(10.0, 100, tokens=30), stop_at_s=21.0)
    assert (len(server.requests), report.completed, report.unsent) == (3, 3, True)
    assert report.duration_s == pytest.approx(23.9, abs=0.1)


def test_a_broken_row_on_the_way_ends_the_run_and_closes_everything():
    def rows():
        yield TraceRow(0.0, 1, 100)
        raise BadInput("t:2: broken")

    server = Server(asked)
    with pytest.raises(BadInput, match="t:2"):
        replayed(server, rows())  # type: ignore[arg-type]


def test_a_cancelled_run_leaves_no_connection():
    server = Server(asked)

    async def main() -> None:
        options = ReplayOptions(target=await server.start())
        task = asyncio.create_task(run(every(1.0, 50, tokens=500), options, LoopClock(), random.Random(1)))
        await asyncio.sleep(10.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(1.0)
        assert len(server.requests) > 5
        assert not server.open

    loop.run(main)


def test_progress_is_told_and_adds_up():
    told: list[Progress] = []
    replayed(Server(asked), every(1.0, 10), on_progress=told.append)
    assert len(told) > 30
    assert all(now.sent == now.in_flight + now.completed + now.truncated + now.shed + now.errors for now in told)
    assert told[-1].sent == 10
    assert told[-1].ttft_p95_s == pytest.approx(1.0, rel=0.01)


def test_records_and_json_have_the_names_scripts_rely_on():
    report = replayed(Server(asked), every(1.0, 2), records=True)
    assert [(record.at_s, record.status, record.truncated) for record in report.records] == [(0.0, 200, False), (1.0, 200, False)]
    assert report.records[1].ttft_s == pytest.approx(1.0, rel=0.01)
    plain = json.loads(json.dumps(to_json(report)))
    assert {"requests", "completed", "truncated", "errors", "statuses", "ttft_s", "itl_s", "e2e_s", "generator_lag_s", "by_tier"} <= set(
        plain
    )
    assert set(plain["ttft_s"]) == {"p50", "p95", "p99"}
    assert len(plain["records"]) == 2
    assert "ttft_attainment" not in plain
    assert "records" not in to_json(replayed(Server(asked), every(1.0, 1)))


@pytest.mark.parametrize("seed", range(4))
def test_the_same_seed_gives_the_same_run(seed):
    def once() -> ReplayReport:
        rows = [TraceRow(0.01 * number, 10, 1 + number % 7, "ab"[number % 2]) for number in range(40)]
        server = Server(lambda request: [(0.0, REFUSED)] if request.number % 9 == 8 else asked(request))
        return replayed(server, rows, seed=seed, records=True, obey_retry_after=True, connections_max=8)

    assert once() == once()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_server_does_every_request_is_counted_once_and_nothing_is_left(seed):
    chance = random.Random(seed)

    def script(request: Request) -> list[Step]:
        steps = (
            asked(request)
            if chance.random() < 0.5
            else [(chance.choice((0.0, 3.0)), chance.choice((REFUSED, answer(500, b"x"), HEAD + token())))]
        )
        if chance.random() < 0.4:
            steps = [*steps[: chance.randrange(len(steps) + 1)], (chance.choice((0.0, 0.3)), chance.choice((CLOSE, ABORT)))]
        return steps if chance.random() < 0.9 else [(0.0, HEAD), (100.0, b"")]

    rows = [TraceRow(round(0.1 * number, 1), 5, 1 + number % 6, "ab"[number % 2]) for number in range(60)]
    options = {"obey_retry_after": seed % 2 == 0, "connections_max": 3 + 20 * (seed % 3), "timeout_s": 30.0, "records": True}
    report = replayed(Server(script), rows, seed=seed, speed=1.0 + seed % 2, **options)
    assert report.requests == len(report.records) == 60
    assert len({record.at_s for record in report.records}) == 60
    assert report.completed > 0
    assert sum(report.truncated_by.values()) == report.truncated
    assert sum(report.errors_by.values()) == report.errors
    assert all(record.e2e_s <= 30.001 for record in report.records)


def test_half_a_response_on_a_kept_connection_is_an_error_and_not_sent_again():
    server = Server(lambda request: [(0.0, b"HTTP/1.1 200"), (0.1, ABORT)] if request.number else asked(request))
    report = replayed(server, every(10.0, 2))
    assert (report.completed, report.errors_by, report.resent, len(server.requests)) == (1, {"no_response": 1}, 0, 2)


def test_a_request_that_timed_out_while_connecting_is_not_sent_after_all():
    server = Server(asked)

    async def main() -> ReplayReport:
        target = await server.start()
        loop.network().latency_s = 10.0
        # The connection that asked for the models is kept: the second request needs one of its own.
        rows = [TraceRow(0.0, 1, 1), TraceRow(0.1, 1, 1), TraceRow(40.0, 1, 1)]
        report = await run(rows, ReplayOptions(target=target, timeout_s=8.0), LoopClock(), random.Random(1), cpu_s=lambda: 0.0)
        await asyncio.sleep(60.0)
        return report

    report = loop.run(main)
    assert report.errors_by == {"timeout": 3}
    assert report.connections_opened == 2
    assert len(server.requests) == 2


def test_attainment_leaves_the_shed_out_and_says_what_it_is_with_them():
    server = Server(lambda request: [(0.0, REFUSED)] if request.number == 1 else asked(request))
    report = replayed(server, every(5.0, 4), ttft_s=(("", 2.0),))
    assert (report.ttft_attainment, report.by_tier["default"].ttft_attainment, report.ttft_attainment_of_all) == (1.0, 1.0, 0.75)
