"""The HTTP/1.1 server and the API's manners: framing, order, bounds, refusals in vLLM's shape."""

import asyncio

import msgspec
import pytest

from forebay.emulator.behaviour import Behaviour, adapter_names
from forebay.emulator.http import BODY_BYTES_MAX, HEAD_BYTES_MAX, PIPELINED_MAX, Connection
from forebay.testing.loop import run


def test_the_small_routes(serve):
    async def main(world):
        return {path: await world.get(path) for path in ("/v1/models", "/health", "/ping", "/load", "/version", "/is_sleeping")}

    answers = serve(main)
    assert {answer.status for answer in answers.values()} == {200}
    assert answers["/health"].body == b""
    assert "content-type" not in answers["/health"].headers
    card = answers["/v1/models"].json["data"][0]
    assert (card["id"], card["owned_by"], card["max_model_len"]) == ("tiny", "vllm", 1024)
    assert answers["/load"].json == {"server_load": 0}
    assert answers["/version"].json == {"version": "0.32.0"}


def test_adapters_are_served_as_the_model_is_and_name_it_as_their_parent(serve):
    async def main(world):
        answers = [await world.chat(3, stream=False, model=name) for name in ("tiny", "legal", "other")]
        return (await world.get("/v1/models")).json["data"], answers

    cards, answers = serve(main, behaviour=Behaviour(adapters=adapter_names(("legal=/models/legal", "sql"))))
    assert [(card["id"], card["parent"]) for card in cards] == [("tiny", None), ("legal", "tiny"), ("sql", "tiny")]
    assert [answer.status for answer in answers] == [200, 200, 404]
    assert [answer.json["model"] for answer in answers[:2]] == ["tiny", "legal"]


def test_load_counts_generations_in_flight(serve):
    async def main(world):
        task = asyncio.create_task(world.chat(50))
        await asyncio.sleep(0.1)
        during = (await world.get("/load")).json
        await task
        return during, (await world.get("/load")).json

    assert serve(main) == ({"server_load": 1}, {"server_load": 0})


def error(answer):
    assert set(answer.json["error"]) == {"message", "type", "param", "code"}
    assert answer.json["error"]["code"] == answer.status
    return answer.status, answer.json["error"]["type"], answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/v1/chat/completions", b"{not json", 400, "JSON"),
        ("POST", "/v1/chat/completions", b"\xff\xfe", 400, "JSON"),
        ("POST", "/v1/chat/completions", {"model": "tiny"}, 400, "messages"),
        ("POST", "/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": 7}]}, 400, "content"),
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, 400, "max_tokens"),
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 0}, 400, "n must"),
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 1000}, 400, "at most"),
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream_options": {}}, 400, "stream"),
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 4096}]}, 400, "maximum context length is 1024"),
        (
            "POST",
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1024},
            400,
            "maximum context length",
        ),
        ("POST", "/v1/chat/completions", {"model": "other", "messages": [{"role": "user", "content": "x"}]}, 404, "`other`"),
        ("POST", "/v1/completions", {"prompt": []}, 400, "prompt"),
        ("POST", "/v1/completions", {"prompt": [1, "a"]}, 400, "prompt"),
        ("POST", "/v1/completions", {"prompt": [[]]}, 400, "prompt"),
        ("GET", "/v1/completions", None, 405, "Not Allowed"),
        ("POST", "/v1/models", b"", 405, "Not Allowed"),
        ("GET", "/nowhere", None, 404, "Not Found"),
    ],
)
def test_refusals_have_the_status_and_shape_of_vllm(serve, method, path, body, status, words):
    async def main(world):
        client = await world.connect()
        refused = await client.request(method, path, body)
        # The connection lives on, and nothing was left behind.
        return refused, (await client.request("GET", "/health")).status, await world.metrics()

    refused, healthy, page = serve(main)
    assert error(refused)[0] == status
    assert words in error(refused)[2]
    assert healthy == 200
    assert page["vllm:num_requests_running"] == 0
    if status == 405:
        assert refused.headers["allow"] in {"GET", "POST"}


def test_prompt_tokens_are_bytes_by_four_or_ids_exactly(serve):
    async def main(world):
        client = await world.connect()
        counts = []
        for prompt in ("abcd" * 7, "abcd" * 7 + "e", "ü" * 4, [5, 6, 7], [[1, 2], [3, 4, 5]], ["abcd", "abcdefgh"]):
            answer = await client.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 2})
            counts.append((answer.usage["prompt_tokens"], answer.usage["completion_tokens"], len(answer.json["choices"])))
        parts = [{"type": "text", "text": "abcd"}, {"type": "image_url", "image_url": {"url": "x"}}]
        chat = await client.request(
            "POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": parts}], "max_completion_tokens": 3}
        )
        return counts, chat.usage

    counts, chat = serve(main)
    assert counts == [(7, 2, 1), (8, 2, 1), (2, 2, 1), (3, 2, 1), (5, 4, 2), (3, 4, 2)]
    assert (chat["prompt_tokens"], chat["completion_tokens"]) == (1, 3)


def test_completions_stream_text_and_default_to_sixteen_tokens(serve):
    async def main(world):
        client = await world.connect()
        body = {"prompt": "hello", "stream": True, "stream_options": {"include_usage": True}}
        return await client.request("POST", "/v1/completions", body)

    answer = serve(main)
    assert answer.chunks[0]["object"] == "text_completion"
    assert answer.chunks[0]["id"].startswith("cmpl-")
    assert sum(len(choice["text"].split()) for chunk in answer.chunks for choice in chunk["choices"]) == 16
    assert answer.finish == ["length"]
    assert answer.usage["completion_tokens"] == 16


def test_the_request_id_becomes_the_answers(serve):
    async def main(world):
        given = await world.chat(1, headers=[("X-Request-Id", 'r"1')])
        return given, await world.chat(1), await world.chat(1, stream=False, headers=[("x-request-id", "r2")])

    given, drawn, whole = serve(main)
    assert given.chunks[0]["id"] == 'chatcmpl-r"1'
    assert len(drawn.chunks[0]["id"]) == len("chatcmpl-") + 32
    assert whole.json["id"] == "chatcmpl-r2"


def test_a_chunked_body_and_expect_continue_are_understood(serve, body):
    async def main(world):
        client = await world.connect()
        data = msgspec.json.encode(body(3, stream=False))
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n")
        leave = await client.reader.readuntil(b"\r\n\r\n")
        for piece in (data[:10], data[10:]):
            client.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await asyncio.sleep(0.01)
        client.writer.write(b"0\r\n\r\n")
        return leave, await client.read()

    leave, answer = serve(main)
    assert leave.startswith(b"HTTP/1.1 100")
    assert answer.usage["completion_tokens"] == 3


def test_http_1_0_streams_end_with_the_connection(serve, body):
    async def main(world):
        client = await world.connect()
        client.send("POST", "/v1/chat/completions", body(3), version="1.0")
        return await client.head(), await client.reader.read(-1)

    head, rest = serve(main)
    assert "transfer-encoding" not in head.headers
    assert head.headers["connection"] == "close"
    assert rest.count(b"data: ") == 1 + 3 + 1 + 1
    assert rest.endswith(b"data: [DONE]\n\n")


def test_pipelined_requests_are_answered_in_order(serve, body):
    async def main(world):
        client = await world.connect()
        for tokens in (9, 1, 5):
            client.send("POST", "/v1/chat/completions", body(tokens, stream=False))
            client.send("GET", "/version")
        return [await client.read() for _ in range(6)]

    answers = serve(main)
    assert [answer.json.get("version") or answer.usage["completion_tokens"] for answer in answers] == [
        9,
        "0.32.0",
        1,
        "0.32.0",
        5,
        "0.32.0",
    ]


def test_past_its_bound_a_pipelining_connection_is_not_read(serve, body):
    async def main(world):
        client = await world.connect()
        client.send("POST", "/v1/chat/completions", body(100, stream=False))
        for _ in range(2000):
            client.send("GET", "/version")
            if client.writer.transport.get_write_buffer_size() > 20_000:
                break
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        unread = client.writer.transport.get_write_buffer_size()
        answers = [await client.read() for _ in range(1 + PIPELINED_MAX)]
        return unread, len(answers), await client.read()

    unread, answered, beyond = serve(main)
    assert unread > 0
    assert answered == 1 + PIPELINED_MAX
    assert beyond.json == {"version": "0.32.0"}


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * HEAD_BYTES_MAX + b"\r\n\r\n", 431),
        (
            b"POST /v1/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % (BODY_BYTES_MAX + 1)
            + b"z" * (BODY_BYTES_MAX + 1),
            413,
        ),
    ],
    ids=["nonsense", "head", "body"],
)
def test_what_is_not_http_or_too_large_ends_the_connection(serve, raw, status):
    async def main(world):
        client = await world.connect()
        client.writer.write(raw)
        return await client.read(), await client.reader.read(-1)

    answer, rest = serve(main)
    assert answer.status == status
    assert rest == b""


def test_an_idle_connection_is_closed_after_its_time_and_a_busy_one_is_not(serve):
    async def main(world):
        idle, busy = await world.connect(), await world.connect()
        await idle.request("GET", "/health")
        task = asyncio.create_task(busy.chat(600))
        ended = await idle.reader.read(-1), asyncio.get_running_loop().time()
        return ended, await task

    (rest, at_s), answer = serve(main)
    assert rest == b""
    assert at_s == pytest.approx(5.0)
    assert answer.complete
    assert answer.events[-1][0] > 6.0


def test_beyond_the_queue_limit_a_stream_is_refused_inside_its_200(serve):
    async def main(world):
        tasks = [asyncio.create_task(world.chat(50)) for _ in range(2)]
        await asyncio.sleep(0.001)
        refused = await world.chat(5, stream=False), await world.chat(5, stream=True)
        page = await world.metrics()
        done = await asyncio.gather(*tasks)
        return refused, page, done, await world.chat(1)

    (whole, stream), page, done, later = serve(main, behaviour=Behaviour(max_queued_requests=2))
    assert error(whole)[:2] == (503, "Service Unavailable")
    assert "retry-after" not in whole.headers
    assert stream.status == 200
    assert [data for _, data in stream.events][-1] == "[DONE]"
    assert stream.chunks[0]["error"]["code"] == 503
    assert len(stream.chunks) == 1
    assert page['vllm:admission_rejections_total{reason="max_num_queued_reqs"}'] == 2
    assert all(answer.complete for answer in [*done, later])


class Recorder:
    """A service that answers when the test does, on a transport that goes nowhere."""

    def __init__(self):
        self.exchanges = []

    def handle(self, exchange):
        self.exchanges.append(exchange)

    def opened(self, connection):
        return True

    def closed(self, connection):
        pass

    def idle(self, connection, is_idle):
        pass


def test_a_request_that_comes_between_two_answers_does_not_jump_the_line():
    async def main():
        service = Recorder()
        connection = Connection(service)
        connection.connection_made(asyncio.Transport())
        connection.write = lambda data: None
        connection.data_received(b"GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n")
        service.exchanges[0].respond(200)
        connection.data_received(b"GET /3 HTTP/1.1\r\n\r\n")
        for index in (1, 2):
            await asyncio.sleep(0)
            service.exchanges[index].respond(200)
        return [exchange.request.path for exchange in service.exchanges]

    assert run(main) == ["/1", "/2", "/3"]
