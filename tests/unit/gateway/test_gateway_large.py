"""Bodies too large to be held: looked into, passed on with back-pressure, and sent once."""

import asyncio
import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.domain.roster import Roster, RosterPool, RosterReplica
from forebay.gateway import bounds
from forebay.gateway.ask import LooseAsk, ResponsesAsk
from forebay.gateway.body import decode_loose
from forebay.gateway.peek import FormPeek, JsonPeek, field_name, peek_for
from forebay.spec.types import Limits

LIMITS = Limits(body_bytes_max=20_000, streamed_body_bytes_max=400_000, bodies_bytes_max=300_000)
JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 99), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=8,
)
KEYS = st.one_of(st.sampled_from(["model", "stream", "max_tokens", "n", "stop", "messages", 'mo"del', "a\\"]), st.text(max_size=5))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, JSON_VALUES, max_size=6), st.integers(1, 40), st.booleans(), st.sampled_from([None, 1]))
def test_a_peek_into_json_finds_what_a_parser_finds(fields, step, ascii_only, indent):
    body = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    peek = JsonPeek()
    for start in range(0, len(body), step):
        peek.feed(body[start : start + step])
    assert bytes(peek.held) == body
    assert peek.found == ("model" in fields)
    known = {*LooseAsk.__struct_fields__, *ResponsesAsk.__struct_fields__}
    wanted = {name: value for name, value in fields.items() if name in known}
    assert json.loads(peek.fields()) == wanted
    if peek.found:
        assert json.loads(peek.with_model("other")) == {**fields, "model": "other"}


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.integers(1, 9))
def test_a_peek_never_fails_and_reads_alike_wherever_it_is_cut(body, step):
    for peeks in ((JsonPeek(), JsonPeek()), (FormPeek(b"x"), FormPeek(b"x"))):
        peeks[0].feed(body)
        for start in range(0, len(body), step):
            peeks[1].feed(body[start : start + step])
        assert (peeks[0].found, peeks[0].fields(), peeks[0].model_span) == (peeks[1].found, peeks[1].fields(), peeks[1].model_span)
        decode_loose(peeks[0].fields())


def test_a_peek_is_linear_in_what_is_hostile():
    """A run of backslashes, or of quotes, must not be walked again with every read."""
    for filler in (b"\\\\" * 2000, b'\\"' * 2000, b'[""]' * 1000, b"{" * 4000):
        peek = JsonPeek()
        peek.feed(b'{"messages":"')
        for _ in range(30):
            peek.feed(filler)
        assert not peek.found


def test_a_large_body_of_very_many_fields_is_not_looked_into_for_ever():
    """Two microseconds for each of a million kept all streams waiting for seconds."""
    peek = JsonPeek()
    peek.feed(b"{" + b'"a":1,' * 2000 + b'"model":"llama"}')
    assert (peek.too_many, peek.found) == (True, False)
    early = JsonPeek()
    early.feed(b'{"model":"llama",' + b'"a":1,' * 2000 + b'"b":1}')
    assert early.found


def test_what_is_read_as_a_whole_is_not_looked_into():
    peek = peek_for(b"application/json", False, whole=True)
    peek.feed(b'{"model":"llama","input":"a"}')
    assert (peek.found, peek.too_many, peek.fields(), bytes(peek.held)) == (False, False, b"{}", b'{"model":"llama","input":"a"}')


def form(model=b"llama", boundary=b"XyZ", file=b"\x00" * 50, **more):
    fields = b"".join(
        b'--%b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (boundary, name.encode(), value)
        for name, value in more.items()
    )
    sound = b'--%b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n%b\r\n' % (
        boundary,
        file,
    )
    named = b'--%b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n' % (boundary, model) if model is not None else b""
    return fields, sound, named, b"--%b--\r\n" % boundary


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 1, 0, 3), (2, 0, 1, 3)])
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_peek_into_a_form_finds_its_fields(order, step):
    parts = form(stream=b"true", temperature=b"0.5")
    body = b"".join(parts[at] for at in order)
    peek = peek_for(b'multipart/form-data; boundary="XyZ"', multipart=True)
    for start in range(0, len(body), step):
        peek.feed(body[start : start + step])
    ask = decode_loose(peek.fields())
    assert (ask.model, ask.stream) == ("llama", True)
    assert peek.with_model("whisper") == body.replace(b"llama", b"whisper")


@pytest.mark.parametrize("step", [1, 50, 10_000])
def test_what_follows_the_last_edge_of_a_form_is_no_field(step):
    """Read as a whole it was one, in pieces it was none (found by bench/http_fuzz.py)."""
    body = b"".join(form(None)) + b'\r\nx: y\r\n\r\n\r\n--XyZ\r\ncontent-disposition: form-data; name="model"\r\n\r\nother\r\n--XyZ--\r\n'
    peek = FormPeek(b"XyZ")
    for start in range(0, len(body), step):
        peek.feed(body[start : start + step])
    assert not peek.found


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b'form-data; name="model"', b"model"),
        (b"form-data;name=model", b"model"),
        (b'form-data ; NAME = "model"', b"model"),
        (b'form-data; x=1; name="model"\r\nContent-Type: text/plain', b"model"),
        (b'form-data; x="; name=file"; name="model"', b"model"),
        (b'form-data; name="mo\\"del"', b'mo\\"del'),
        (b'form-data; name=""', b""),
        (b'form-data; name="file"; filename="a"', None),
        (b'form-data; filename="a"; name="model"', None),
        (b"form-data; name=\"file\"; filename*=UTF-8''a", None),
        (b'attachment; name="model"', None),
        (b"form-data", None),
        (b"form-data;" * 6000, None),
        (b'form-data; name="' * 4000, b"form-data; name="),
        (b"form-data; filename*" * 3000, None),
    ],
    ids=lambda value: str(value)[:60],
)
def test_the_name_of_a_field_of_a_form_is_found_in_one_pass(line, name):
    """Each of the last few lines took a second, and a form of 1 MB of such twenty, in which nothing else was done."""
    assert field_name(b"\r\nX: y\r\nContent-Disposition: " + line) == name
    assert field_name(b"\r\nx-content-disposition: " + line) is None


@pytest.mark.parametrize("kind", [b"multipart/form-data", b"application/json", b"", b"multipart/form-data; boundary=" + b"x" * 71])
def test_a_form_without_a_boundary_is_none(kind):
    assert peek_for(kind, multipart=True) is None


FORM = {"content-type": "multipart/form-data; boundary=XyZ"}
SOUND = "/v1/audio/transcriptions"


async def echo(seen, answer):
    answer.json(200, {"text": "water", "length": len(seen.body)})


@pytest.mark.parametrize("named", ["llama", "gpt-4o", None])
def test_a_form_passes_with_its_model_as_the_engine_knows_it(world, named):
    body = b"".join(form(None if named is None else named.encode()))

    async def test(front):
        assert (await front.ask(body, FORM, SOUND)).json()["text"] == "water"
        (seen,) = front.engines[0].seen
        assert seen.body == body.replace(b"gpt-4o", b"llama")
        assert seen.headers[b"content-type"] == FORM["content-type"].encode()

    world(test, echo)


def test_a_form_that_is_none_is_refused(world):
    async def test(front):
        answer = await front.ask(b"abc", {"content-type": "multipart/form-data"}, SOUND)
        assert answer.status == 400

    world(test, echo)


class Engine(asyncio.Protocol):
    """Records what comes, reads when told, answers when told."""

    def __init__(self):
        self.got = b""
        self.lost = False
        self.connections = 0
        self.reads = True

    async def start(self):
        self.server = await asyncio.get_running_loop().create_server(lambda: self, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    def connection_made(self, transport):
        self.transport = transport
        self.connections += 1
        if not self.reads:
            transport.pause_reading()

    def data_received(self, data):
        self.got += data

    def connection_lost(self, _):
        self.lost = True

    def body(self):
        return self.got.partition(b"\r\n\r\n")[2]

    def answer(self, status=200, body=b'{"usage":{"prompt_tokens":5,"completion_tokens":1}}'):
        self.transport.write(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))


@pytest.fixture
def large(world):
    """``large(test)``: with one engine that records."""

    def go(test, limits=LIMITS, **options):
        async def inner(front):
            engine = Engine()
            await engine.start()
            front.gateway.apply(
                Roster(1, 50, 10.0, (RosterPool("chat", (RosterReplica("raw", engine.url, options.get("capacity") or CAPACITY(front)),)),))
            )
            await test(front, engine)
            engine.server.close()

        world(inner, echo, limits=limits, **options)

    return go


def CAPACITY(front):
    return front.gateway.roster.pools[0].replicas[0].capacity


async def post(front, client, body, headers=()):
    """In parts, as a network delivers it."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in dict(headers).items())
    client.writer.write(f"POST {CHAT} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode())
    for start in range(0, len(body), 10_000):
        client.writer.write(body[start : start + 10_000])
        await asyncio.sleep(0.001)
    await front.sleep(1)


def big(size=100_000, model="llama", first=True):
    filler = '"messages":[{"role":"user","content":"%s"}]' % ("x" * size)
    named = f'"model":"{model}"'
    return ("{" + (f"{named},{filler}" if first else f"{filler},{named}") + "}").encode()


CHAT = "/v1/chat/completions"


def test_a_large_body_is_passed_on_and_not_held(large):
    body = big()

    async def test(front, engine):
        client = await front.client()
        await post(front, client, body, {"content-type": "application/json"})
        assert engine.body() == body
        assert b"content-length: %d\r\n" % len(body) in engine.got
        assert front.gateway.http.bodies_bytes == 0
        assert front.permits == 1
        engine.answer()
        answer = await client.read()
        assert (answer.status, front.permits) == (200, 0)
        assert answer.headers.get("connection") != "close"
        engine.got = b""
        client.send(CHAT, {"model": "llama", "messages": []})
        await front.sleep(0.5)
        assert b'"model"' in engine.got
        engine.answer()
        assert (await client.read()).status == 200

    large(test)


def test_an_engine_that_waits_for_the_rest_of_a_slow_clients_body_does_not_hang(world):
    """Its answer is due by far, counted from when it was sent the beginning."""
    body = big().replace(b'"model"', b'"max_tokens":1,"model"')

    async def test(front):
        for _ in range(4):
            assert (await front.ask({"model": "llama", "messages": []})).status == 200
        client = await front.client()
        client.writer.write(b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body)))
        for start in range(0, len(body), 20_000):
            client.writer.write(body[start : start + 20_000])
            await front.sleep(4.5)
        assert (await client.read()).status == 200
        assert front.clock.now_s() > 25
        assert sum(front.gateway.desk.pools["chat"].silences.found.values()) == 0

    world(test, echo, echo, limits=LIMITS)


def test_a_large_body_that_names_its_model_behind_too_many_fields_is_told_so(large):
    body = b"{" + b'"a":1,' * 4000 + b'"model":"llama"}'

    async def test(front, engine):
        for framing in ("content-length", "transfer-encoding"):
            client = await front.client()
            value = str(len(body)) if framing == "content-length" else "chunked"
            client.writer.write(f"POST {CHAT} HTTP/1.1\r\n{framing}: {value}\r\n\r\n".encode())
            client.writer.write(body if framing == "content-length" else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            answer = await client.read()
            assert (answer.status, answer.json()["error"]["param"]) == (400, "model")
            assert "Send `model` first" in answer.json()["error"]["message"]
        assert front.gateway.http.bodies_bytes == 0
        assert not engine.got

    large(test)


def test_a_stream_that_was_asked_for_beyond_what_was_looked_at_is_one(large):
    body = big()[:-1] + b',"stream":true}'

    async def test(front, engine):
        client = await front.client()
        await post(front, client, body)
        engine.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for text in (b"a", b"b"):
            event = b'data: {"choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % text
            engine.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
            await front.sleep(0.1)
            if text == b"a":
                assert "text/event-stream" in await client.head()
            assert text in await client.event()
        engine.transport.abort()
        assert b"stream_truncated" in await client.event()

    large(test)


def test_a_large_body_in_chunks_is_passed_on_in_chunks(large):
    body = big(60_000, model="gpt-4o")

    async def test(front, engine):
        client = await front.client()
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
        for start in range(0, len(body), 999):
            part = body[start : start + 999]
            client.writer.write(b"%x;e=1\r\n%b\r\n" % (len(part), part))
        client.writer.write(b"0\r\nx-trailer: 1\r\n\r\n")
        await front.sleep(1)
        decoded, rest = b"", engine.body()
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            decoded += rest[: int(size, 16)]
            rest = rest[int(size, 16) + 2 :]
        assert decoded == body.replace(b"gpt-4o", b"llama")
        assert b"content-length" not in engine.got
        engine.answer()
        assert (await client.read()).status == 200

    large(test)


def test_an_engine_that_takes_nothing_stops_the_client(large):
    body = big(390_000)

    async def test(front, engine):
        engine.reads = False
        client = await front.client()
        await post(front, client, body)
        taken = len(body) - client.writer.transport.get_write_buffer_size()
        assert taken < 350_000, "all of it was read, though the engine took none"
        (connection,) = front.gateway.http.connections
        assert connection._held_back
        await front.sleep(60)
        assert not engine.lost
        engine.transport.resume_reading()
        await front.sleep(2)
        assert engine.body() == body
        engine.answer()
        assert (await client.read()).status == 200

    large(test)


def test_a_large_body_waits_for_its_turn_unread(large, one_slot):
    async def test(front, engine):
        first = await front.client()
        first.send(CHAT, {"model": "llama", "messages": []})
        await front.sleep(0.2)
        client = await front.client()
        await post(front, client, big())
        assert front.waiting == 1
        assert engine.connections == 1
        engine.answer()
        await front.sleep(1)
        assert (await first.read()).status == 200
        assert engine.connections == 2
        assert engine.got.endswith(big())
        engine.answer()
        assert (await client.read()).status == 200

    large(test, capacity=one_slot)


def test_a_large_body_that_names_its_model_last_is_held_and_may_be_sent_again(world):
    """OpenAI's SDKs write a chat's messages before its model."""
    body = big(first=False)

    async def test(front):
        for _ in range(2):  # one of the two begins with the broken engine
            client = await front.client()
            await post(front, client, body)
            assert (await client.read()).json()["length"] == len(body)
        assert front.engines[0].seen

    async def broken(seen, answer):
        answer.cut()

    world(test, broken, echo, limits=LIMITS)


def test_large_bodies_that_are_held_leave_room_for_small_ones(world):
    async def test(front):
        clients = [await front.client() for _ in range(3)]
        for client in clients:
            client.send(CHAT, big(80_000, first=False)[:-20] + b" " * 20)
        answers = [await clients[1].read(), await clients[2].read()]
        assert any(answer.status == 503 for answer in answers)
        assert (await front.ask({"model": "llama", "messages": []}, target="/v1/embeddings")).status == 200

    world(test, echo, limits=msgspec.structs.replace(LIMITS, bodies_bytes_max=160_000))


@pytest.mark.parametrize("how", ["length", "chunks"])
def test_beyond_the_largest_is_413(large, how):
    async def test(front, engine):
        client = await front.client()
        if how == "length":
            client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 400001\r\n\r\n")
        else:
            client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")
            part = big(30_000)
            for _ in range(20):
                client.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["type"]) == (413, "invalid_request_error")
        await front.sleep(1)
        assert front.permits == 0
        assert engine.lost == (how == "chunks")

    large(test)


@pytest.mark.parametrize("target", ["/v1/models", "/tokenize", "/nothing"])
def test_only_what_waits_for_a_replica_may_be_large(world, target):
    async def test(front):
        assert (await front.ask(big(), target=target)).status == 413

    world(test, echo, limits=LIMITS)


def test_chunks_that_go_wrong_on_the_way_are_the_clients_fault(large):
    async def test(front, engine):
        client = await front.client()
        part = big(30_000)
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(part), part))
        await front.sleep(0.5)
        client.writer.write(b"nonsense\r\n")
        assert (await client.read()).status == 400
        await front.sleep(0.1)
        assert engine.lost
        assert front.permits == 0

    large(test)


def test_a_failure_after_the_body_began_is_final_and_said(large):
    async def test(front, engine):
        client = await front.client()
        await post(front, client, big())
        engine.transport.abort()
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["code"]) == (502, "engines_failed")
        assert 3750 <= int(answer.headers["retry-after-ms"]) <= 6250
        assert engine.connections == 1

    large(test)


def test_a_replica_that_can_not_be_reached_costs_nothing_but_time(world):
    async def test(front):
        engine = Engine()
        await engine.start()
        capacity = CAPACITY(front)
        replicas = (RosterReplica("a", "http://127.0.0.1:9", capacity), RosterReplica("b", engine.url, capacity))
        front.gateway.apply(Roster(1, 50, 10.0, (RosterPool("chat", replicas),)))
        for _ in range(2):
            client = await front.client()
            engine.got = b""
            await post(front, client, big())
            assert engine.body() == big()
            engine.answer()
            assert (await client.read()).status == 200
        engine.server.close()

    world(test, echo, limits=LIMITS)


def test_an_engine_that_answers_before_it_has_read_all(large):
    async def test(front, engine):
        client = await front.client()
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 200000\r\n\r\n" + big(50_000)[:40_000])
        await front.sleep(0.5)
        engine.answer(400, b'{"error":{"message":"too long","type":"BadRequestError","param":null,"code":null}}')
        answer = await client.read()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        await front.sleep(0.1)
        assert engine.lost

    large(test)


def test_a_client_that_leaves_in_a_large_body_frees_the_engine(large):
    async def test(front, engine):
        client = await front.client()
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 200000\r\n\r\n" + big(50_000)[:40_000])
        await front.sleep(0.5)
        assert front.permits == 1
        client.close()
        await front.sleep(0.1)
        assert engine.lost
        assert front.permits == 0

    large(test)


def test_a_body_that_drips_is_dropped(large):
    """It was only dropped after two minutes, whatever its pace."""

    async def test(front, engine):
        client = await front.client()
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 200000\r\n\r\n" + big(50_000)[:30_000])
        for _ in range(bounds.BODY_GRACE_TICKS + 5):
            await front.sleep(1)
            if not client.writer.is_closing():
                client.writer.write(b"x")
        assert engine.lost
        assert not front.gateway.http.connections

    large(test)


def test_what_follows_a_large_body_waits_for_its_answer(large):
    async def test(front, engine):
        client = await front.client()
        await post(front, client, big())
        client.send("/v1/models/llama")
        client.send("/v1/models/none")
        await front.sleep(1)
        engine.answer()
        assert [(await client.read()).status for _ in range(3)] == [200, 200, 404]

    large(test)


def test_a_stranger_is_told_so_before_the_body_is_read(large, team_spec):
    async def test(front, engine):
        client = await front.client()
        client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 200000\r\n\r\n" + big(50_000)[:30_000])
        assert (await client.read()).status == 401
        assert not engine.connections

    large(test, spec=team_spec)


def test_loose_fields_are_a_bodys_own():
    assert set(LooseAsk.__struct_fields__) >= {"model", "stream", "n", "service_tier"}
