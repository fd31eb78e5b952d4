"""Engines that answer fast, and not what they were attached for: another model, a login page, some proxy."""

import asyncio

import pytest

from forebay.admission.outliers import EJECT_S, FAILURES_IN_A_ROW
from forebay.gateway.retries import RETRY_BURST

CHAT = "/v1/chat/completions"
BODY = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
ANSWER = {
    "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
UNKNOWN = {"error": {"message": "The model `llama` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}}
PAGE = b"<html><body>Please log in</body></html>"


def well(after_s=0.0):
    async def script(seen, answer):
        await asyncio.sleep(after_s)
        if seen.json().get("stream"):
            answer.stream()
            answer.token("x", "stop")
            answer.done()
        else:
            answer.json(200, ANSWER)

    return script


async def another_model(seen, answer):
    answer.json(404, UNKNOWN)


async def some_server(seen, answer):
    answer.raw(b"HTTP/1.1 405 No\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nno")


def page(kind=b"text/html; charset=utf-8", status=b"200 OK", more=b""):
    async def script(seen, answer):
        answer.raw(b"HTTP/1.1 %b\r\ncontent-type: %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, kind, more, len(PAGE), PAGE))

    return script


def events(front, kind):
    return [event.message for event in front.sink.events if event.kind == kind]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wrong", [another_model, some_server])
def test_the_only_one_that_knows_nothing_of_the_model_is_ejected_and_nobody_is_told_so(world, wrong, stream):
    """It answers at once, so it looks idle, and gets everything."""

    async def test(front):
        for _ in range(6):
            answer = await front.ask({**BODY, "stream": stream})
            assert (answer.status, answer.headers["x-forebay-replica"]) == (200, "r1")
        (told,) = events(front, "replica_ejected")
        assert f"r0 for {EJECT_S:g} s: The engine answered 40" in told
        assert "at /v1/chat/completions for 'llama', which others of its pool serve" in told
        assert len(front.engines[0].seen) == 2, "a request, and the question whether that is so"
        await front.sleep(EJECT_S + 2)
        assert front.gateway.desk.pools["chat"].routed == ("r1",), "a probe finds it as it was"
        front.engines[0].script = well()
        await front.sleep(2 * EJECT_S + 2)
        assert front.gateway.desk.pools["chat"].routed == ("r0", "r1")
        assert len(events(front, "replica_readmitted")) == 1

    world(test, wrong, well())


def test_while_the_other_one_takes_its_time_the_budget_of_second_tries_is_not_spent_on_it(world):
    """71 of 80 clients were told 404 by the one, beside one that takes two seconds."""

    async def test(front):
        clients = []
        for _ in range(80):
            clients.append(asyncio.ensure_future(front.ask(BODY)))
            await front.sleep(0.02)
        answers = await asyncio.gather(*clients)
        assert {(answer.status, answer.headers["x-forebay-replica"]) for answer in answers} == {(200, "r1")}
        assert front.gateway.desk.pools["chat"].meters["interactive"].retries <= 3
        assert front.gateway.desk.pools["chat"].routed == ("r1",)

    world(test, another_model, well(2.0))


def test_a_404_that_another_one_does_not_give_is_no_fault_where_the_engine_answers_us(world):
    """As where it relays the 404 of a picture's server: no client could take engines away by that."""

    async def moody(seen, answer):
        if b"ping" in seen.body:
            answer.json(200, ANSWER)
        else:
            answer.json(404, UNKNOWN)

    async def test(front):
        for _ in range(5):
            assert (await front.ask(BODY)).status == 200
        await front.sleep(1.0)
        assert events(front, "replica_ejected") == []
        assert not front.gateway.desk.pools["chat"].lacking, "it is asked again"

    world(test, moody, well())


def test_a_path_that_only_some_have_is_asked_of_those_and_is_nobodys_fault(world):
    """Versions of one engine in one pool: an older one has no ``/v1/responses``."""

    async def older(seen, answer):
        if b"/v1/responses" in seen.line:
            answer.json(404, {"detail": "Not Found"})
        else:
            answer.json(200, ANSWER)

    async def newer(seen, answer):
        answer.json(200, {"id": "resp_1", "object": "response", "status": "completed", "usage": {"input_tokens": 1, "output_tokens": 1}})

    async def test(front):
        for _ in range(6):
            assert (await front.ask({"model": "llama", "input": "a"}, target="/v1/responses")).status == 200
        assert len(front.engines[0].seen) == 1
        await front.sleep(1.0)
        assert (front.gateway.desk.pools["chat"].routed, events(front, "engine_failed")) == (("r0", "r1"), [])

    world(test, older, newer)


def test_a_path_that_none_has_costs_one_second_try_and_not_the_budget_of_all(world):
    async def chats(seen, answer):
        answer.json(404, {"detail": "Not Found"})

    async def test(front):
        for _ in range(10):
            answer = await front.ask({"model": "llama", "query": "a", "documents": ["b"]}, target="/v1/rerank")
            assert (answer.status, answer.json()["error"]["message"]) == (404, "Not Found")
        assert sum(len(engine.seen) for engine in front.engines) == 11

    world(test, chats, chats, chats)


def test_400_is_the_clients_at_once(world):
    async def refuses(seen, answer):
        answer.json(400, {"error": {"message": "max_tokens is too large", "type": "BadRequestError", "param": None, "code": 400}})

    async def test(front):
        assert (await front.ask(BODY)).status == 400
        assert sum(len(engine.seen) for engine in front.engines) == 1

    world(test, refuses, refuses)


@pytest.mark.parametrize("body", [UNKNOWN, {"detail": "no such thing"}])
def test_where_no_second_try_is_left_or_can_be_made_the_client_is_told_what_the_engine_said(world, one_slot, body):
    async def says(seen, answer):
        answer.json(404, body)

    async def test(front):
        front.gateway.retries._held = 0.0
        answer = await front.ask(BODY)
        assert answer.status == 404
        front.gateway.retries._held = float(RETRY_BURST)
        busy = [await front.client() for _ in range(1)]
        busy[0].send(CHAT, {**BODY, "max_tokens": 6})
        await front.sleep(0.1)
        waits = await front.client()
        waits.send(CHAT, BODY)
        await front.sleep(0.1)
        front.route(front.engines[0])  # the one that it waits for leaves, and only the one that knows nothing is left
        answer = await waits.read()
        assert answer.status == 404
        assert answer.json()["error"]["message"] in {"The model `llama` does not exist.", "no such thing"}

    async def slow(seen, answer):
        await answer.gone.wait() if b'"max_tokens":6' in seen.body.replace(b" ", b"") else answer.json(404, body)

    world(test, says, slow, capacity=one_slot)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (page(), "(content-type: text/html; charset=utf-8)"),
        (page(b"text/plain"), "(content-type: text/plain)"),
        (page(status=b"302 Found", more=b"location: /login\r\n"), "location: /login)"),
    ],
)
def test_a_page_in_place_of_an_answer_is_a_failure_of_its_replica(world, stream, wrong, found):
    async def test(front):
        for _ in range(2 * FAILURES_IN_A_ROW + 2):
            answer = await front.ask({**BODY, "stream": stream})
            assert (answer.status, answer.headers["x-forebay-replica"]) == (200, "r1")
        (told,) = events(front, "replica_ejected")
        assert found in told
        assert len(front.engines[0].seen) == FAILURES_IN_A_ROW
        await front.sleep(EJECT_S + 2)
        assert front.gateway.desk.pools["chat"].routed == ("r1",), "a page is no answer to a probe either"

    world(test, wrong, well())


def test_where_all_answer_with_a_page_no_client_sees_it(world):
    async def test(front):
        answer = await front.ask(BODY)
        assert (answer.status, PAGE in answer.body) == (503, False)

    world(test, page(), page())


@pytest.mark.parametrize(
    ("target", "body", "kind"),
    [
        ("/v1/audio/speech", {"model": "llama", "input": "a", "voice": "b"}, b"audio/wav"),
        ("/v1/embeddings", {"model": "llama", "input": "a"}, b"application/octet-stream"),
        ("/pooling", {"model": "llama", "input": "a"}, b"application/octet-stream"),
    ],
)
def test_what_is_neither_json_nor_a_page_passes_where_that_may_be_asked_for(world, target, body, kind):
    async def test(front):
        answer = await front.ask(body, target=target)
        assert (answer.status, answer.body) == (200, PAGE)
        assert front.gateway.desk.pools["chat"].meters["interactive"].retries == 0

    world(test, page(kind), page(kind))


@pytest.mark.parametrize("wrong", [another_model, some_server, page(), page(status=b"303 See Other")])
def test_tokens_are_counted_by_another_one_where_the_first_is_no_engine_of_this_model(world, wrong):
    async def counts(seen, answer):
        answer.json(200, {"count": 3})

    async def test(front):
        for _ in range(4):
            answer = await front.ask({"model": "llama", "prompt": "a"}, target="/tokenize")
            assert (answer.status, answer.json()) == (200, {"count": 3})

    world(test, wrong, counts)


def test_tokens_are_counted_by_another_one_soon_where_the_first_hangs_and_at_once_where_that_is_known(world):
    """It took a minute on every second request."""

    async def hangs(seen, answer):
        await answer.gone.wait()

    async def counts(seen, answer):
        if seen.line.startswith(b"GET"):
            answer.json(200, {"id": "resp_1", "object": "response"})
        else:
            answer.json(200, {"count": 3})

    async def test(front):
        asked_s = front.clock.now_s()
        assert (await front.ask(None, target="/v1/responses/resp_1")).status == 200
        assert front.clock.now_s() - asked_s < 6
        for _ in range(4):
            asked_s = front.clock.now_s()
            assert (await front.ask({"model": "llama", "prompt": "a"}, target="/tokenize")).status == 200
            assert front.clock.now_s() - asked_s < 6
        pool = front.gateway.desk.pools["chat"]
        front.gateway.desk._ejected(pool, pool.outliers.stalled("r0", "as a test has it", front.clock.now_s()))
        asked_s = front.clock.now_s()
        for _ in range(4):
            assert (await front.ask({"model": "llama", "prompt": "a"}, target="/tokenize")).status == 200
        assert front.clock.now_s() - asked_s < 1

    world(test, hangs, counts)
