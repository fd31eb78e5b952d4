"""The gateway's door: who has no key is told so before a body is read, and no team takes all the room there is for bodies."""

import asyncio
import json

import msgspec
import pytest
from gateway_values import TEAMS
from several_gateways import KEY, several

from forebay.gateway.answers import JSON
from forebay.gateway.bounds import BODY_BYTES_PER_TICK_MIN, BODY_GRACE_TICKS, DRAIN_TICKS, LINGER_TICKS, UNHELD_BYTES_MAX
from forebay.gateway.http import ClientConnection, HttpServer
from forebay.gateway.identity import UNAUTHORIZED
from forebay.gateway.intake import Intake, no_peek
from forebay.gateway.reader import BETWEEN, RequestReader
from forebay.spec.types import Limits

CHAT = "/v1/chat/completions"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx-request-id: mine\r\n"
LIMITS = Limits(body_bytes_max=100_000, streamed_body_bytes_max=400_000, bodies_bytes_max=200_000)


def key(secret):
    return {"authorization": f"Bearer {secret}"}


def chat(size):
    """A body of exactly so many bytes."""
    text = json.dumps({"model": "llama", "messages": [{"role": "user", "content": ""}], "max_tokens": 5})
    return text.replace('""', '"' + "x" * (size - len(text)) + '"').encode()


async def quick(_, answer):
    answer.json(200, {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})


async def hangs(_, answer):
    await answer.gone.wait()


def held(front):
    return front.gateway.http.bodies_bytes, {name: each.held_bytes for name, each in front.gateway._identity.holdings.items()}


# -- strangers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "begun"),
    [
        (b"content-length: 90000\r\n\r\n", b"{" * 500),
        (b"content-length: 390000\r\n\r\n", b"{" * 500),
        (b"content-length: 900000\r\n\r\n", b""),
        (b"transfer-encoding: chunked\r\n\r\n", b"5\r\nabcde\r\n"),
        (b"content-length: 5\r\nexpect: 100-continue\r\n\r\n", b""),
        (b"authorization: Bearer sk-wrong\r\ncontent-length: 90000\r\n\r\n", b"{" * 500),
    ],
    ids=["length", "large", "too-large", "chunks", "expects", "wrong-key"],
)
def test_a_stranger_is_told_at_its_head_and_nothing_of_its_body_is_held(world, team_spec, more, begun):
    """The key was looked at when the body was whole: three strangers that dripped filled the budget of all."""

    async def test(front):
        client = await front.client()
        client.writer.write(HEAD + more + begun)
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (answer.headers["x-request-id"], answer.headers["connection"]) == ("mine", "close")
        assert held(front)[0] == 0
        assert front.gateway.http.turned_away == {(401, "invalid_api_key"): 1}

    world(test, quick, spec=team_spec, limits=LIMITS)


def test_strangers_that_drip_take_no_room_from_who_has_a_key(world, team_spec):
    async def test(front):
        strangers = [await front.client() for _ in range(6)]
        for stranger in strangers:
            stranger.writer.write(HEAD + b"content-length: 60000\r\n\r\n" + b"{" * 50_000)
        await front.sleep(1)
        assert held(front)[0] == 0
        assert (await front.ask(chat(90_000), key("sk-search"))).status == 200

    world(test, quick, spec=team_spec, limits=LIMITS)


def test_a_short_body_of_a_stranger_that_is_over_the_bound_of_bodies_is_refused_at_its_head_too(world, team_spec):
    async def test(front):
        client = await front.client()
        client.writer.write(HEAD + b"content-length: 20000\r\n\r\n" + b"{" * 12_000)
        assert (await client.read()).status == 401
        assert held(front)[0] == 0

    world(test, quick, spec=team_spec, limits=msgspec.structs.replace(LIMITS, body_bytes_max=10_000))


@pytest.mark.parametrize("path", [CHAT, "/v1/responses/resp_1", "/nowhere", "/health"])
def test_a_short_body_of_a_stranger_leaves_its_connection_to_go_on(world, team_spec, path):
    async def test(front):
        client = await front.client()
        body = chat(UNHELD_BYTES_MAX)
        client.writer.write(b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(body)))
        for start in range(0, len(body), 20_000):
            client.writer.write(body[start : start + 20_000])
            await front.sleep(0.1)
            assert held(front)[0] == 0
        answer = await client.read()
        assert (answer.status, answer.headers["x-request-id"][:4], "connection" in answer.headers) == (401, "req-", False)
        assert (await client.ask(CHAT, chat(200), key("sk-search"))).status == 200

    world(test, quick, spec=team_spec, limits=LIMITS)


def test_where_no_teams_are_configured_nobody_is_a_stranger(world):
    async def test(front):
        assert (await front.ask(chat(90_000))).status == 200

    world(test, quick, limits=LIMITS)


def test_a_stranger_that_goes_on_sending_reads_its_refusal_and_sees_no_reset(world, team_spec):
    """What came after a refusal was read for three seconds, whether more came or not: then the kernel reset the connection."""

    async def test(front):
        client = await front.client()
        client.writer.write(HEAD + b"content-length: 390000\r\n\r\n")
        for _ in range(DRAIN_TICKS - 2):
            client.writer.write(b"x" * 10_000)
            await front.sleep(1)
        assert len(front.gateway.http.connections) == 1
        answer = await client.read()
        assert (answer.status, answer.complete) == (401, True)
        await front.sleep(LINGER_TICKS + 2)
        assert not front.gateway.http.connections

    world(test, quick, spec=team_spec, limits=LIMITS)


def test_a_stranger_is_not_read_for_ever(world, team_spec):
    async def test(front):
        client = await front.client()
        client.writer.write(HEAD + b"content-length: 390000\r\n\r\n")
        for _ in range(DRAIN_TICKS + 2):
            if not client.writer.is_closing():
                client.writer.write(b"x")
            await front.sleep(1)
        assert not front.gateway.http.connections

    world(test, quick, spec=team_spec, limits=LIMITS)


class Tls(asyncio.Transport):
    """A transport that can't say that it writes no more."""

    def __init__(self):
        super().__init__()
        self.written, self.closed, self.aborted = b"", False, False

    def write(self, data):
        self.written += data

    def can_write_eof(self):
        return False

    def set_write_buffer_limits(self, high=None, low=None): ...

    def get_write_buffer_size(self):
        return 0

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = True


def test_over_tls_a_refusal_in_a_body_is_not_cut_off_by_a_close_either():
    server = HttpServer(Limits(), lambda connection, request: connection.answer(200, JSON, b""), admits=lambda _: UNAUTHORIZED)
    transport = Tls()
    connection = ClientConnection(server)
    connection.connection_made(transport)
    connection.data_received(HEAD + b"content-length: 1000000\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 401 ")
    assert not transport.closed
    for tick in range(1, 6):
        server.tick = tick
        connection.data_received(b"x" * 1000)
        connection.sweep(tick)
    assert not transport.aborted
    connection.sweep(5 + LINGER_TICKS + 1)
    assert transport.aborted


def test_at_the_gateways_own_address_only_they_may_send_bodies():
    async def test(world):
        world.lease("a", "b")
        client = await world.client("b", hops=True)
        client.writer.write(HEAD + b"content-length: 900000\r\n\r\n" + b"x" * 1000)
        answer = await client.read()
        assert (answer.status, answer.json()["error"]["code"]) == (403, "not_a_gateway")
        assert all(server.bodies_bytes == 0 for server in world.gateways["b"].servers)
        client = await world.client("b", hops=True)
        assert (await client.ask(CHAT, chat(90_000), {**key("sk-search"), "x-forebay-hop": KEY})).status == 200

    several(test, quick, quick, teams=TEAMS)


# -- slow bodies -----------------------------------------------------------------------------------------------------------


def reading(length):
    """A reader that has read a head."""
    intake = Intake(Limits(), no_peek)
    reader = RequestReader(intake)
    reader.feed(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % length)
    return reader


def ticks_until_it_dawdles(reader, *pieces):
    """The tick at which it is dropped, if each second one of these comes; None: not before they are all there."""
    for tick, piece in enumerate(pieces, 1):
        reader.feed(b"x" * piece)
        if reader.phase == BETWEEN:
            return None
        if reader.dawdles(tick):
            return tick
    return None


def test_a_body_that_came_fast_at_first_may_not_drip_for_minutes_then():
    """It had to come at the least pace on the whole: of 6 MB at once, minutes of drops could follow."""
    assert ticks_until_it_dawdles(reading(8_000_000), 6_000_000, *[150] * 600) == BODY_GRACE_TICKS + 1


def test_a_body_at_the_least_pace_is_read_to_its_end():
    assert ticks_until_it_dawdles(reading(400 * BODY_BYTES_PER_TICK_MIN), *[BODY_BYTES_PER_TICK_MIN] * 400) is None


def test_a_body_that_comes_by_fits_and_starts_is_read_to_its_end():
    fits = [20 * BODY_BYTES_PER_TICK_MIN, *[0] * 14] * 20
    assert ticks_until_it_dawdles(reading(400 * BODY_BYTES_PER_TICK_MIN), *fits) is None


def test_a_short_body_may_take_the_grace():
    assert ticks_until_it_dawdles(reading(3_000), *[100] * 30) is None


def test_the_time_for_which_a_client_is_not_read_is_not_held_against_it():
    reader = reading(1_000_000)
    reader.goes_on(500)
    assert not reader.dawdles(501)
    assert not reader.dawdles(500 + BODY_GRACE_TICKS)
    assert reader.dawdles(501 + BODY_GRACE_TICKS)


# -- shares ------------------------------------------------------------------------------------------------------------------


async def waiting(front, secret, *sizes):
    """Clients of one team that wait with bodies of these sizes."""
    clients = []
    for size in sizes:
        clients.append(await front.client())
        clients[-1].send(CHAT, chat(size), key(secret))
        await front.sleep(0.05)
    return clients


@pytest.fixture
def crowd(world, team_spec, one_slot):
    """A world of two teams whose requests all wait."""

    def go(test):
        world(test, hangs, spec=team_spec, limits=LIMITS, capacity=one_slot)

    return go


def test_no_team_holds_more_than_is_left_for_all_others(crowd):
    """One team's bodies, that waited or came slowly, took the whole budget: every other's request was 503."""

    async def test(front):
        *_, last = await waiting(front, "sk-search", *[30_000] * 4)
        answer = await last.read()
        assert (answer.status, answer.json()["error"]["code"]) == (503, "overloaded")
        assert "of your team's" in answer.json()["error"]["message"]
        assert held(front) == (90_000, {"search": 90_000, "mail": 0})
        await waiting(front, "sk-mail", 30_000)
        assert held(front)[1] == {"search": 90_000, "mail": 30_000}

    crowd(test)


def test_keys_of_one_team_share_its_room(crowd):
    async def test(front):
        await waiting(front, "sk-search", 30_000, 30_000, 30_000)
        (last,) = await waiting(front, "sk-search-bulk", 30_000)
        assert (await last.read()).status == 503

    crowd(test)


def test_one_body_by_itself_may_take_more_than_is_left(world, team_spec):
    async def test(front):
        assert (await front.ask(chat(99_000), key("sk-search"))).status == 200

    world(test, quick, spec=team_spec, limits=msgspec.structs.replace(LIMITS, bodies_bytes_max=110_000))


def test_a_body_that_is_on_its_way_counts_as_one_that_waits(crowd):
    async def test(front):
        for _ in range(4):
            client = await front.client()
            client.writer.write(HEAD + b"authorization: Bearer sk-search\r\ncontent-length: 90000\r\n\r\n" + b"x" * 30_000)
            await front.sleep(0.1)
        assert (await client.read()).status == 503
        assert held(front)[1] == {"search": 90_000, "mail": 0}

    crowd(test)


def test_the_only_team_has_the_whole_budget(world, team_spec, one_slot):
    async def test(front):
        await waiting(front, "sk-search", *[30_000] * 6)
        assert held(front) == (180_000, {})

    spec = msgspec.structs.replace(team_spec, teams=TEAMS[:1])
    world(test, hangs, spec=spec, limits=LIMITS, capacity=one_slot)


def test_heads_that_come_again_are_counted_to_their_team_too(world, team_spec):
    async def test(front):
        client = await front.client()
        for _ in range(3):
            assert (await client.ask(CHAT, chat(30_000), key("sk-search"))).status == 200
        front.engines[0].script = hangs
        client.send(CHAT, chat(30_000), key("sk-search"))
        await front.sleep(0.1)
        (connection,) = front.gateway.http.connections
        assert connection._seen is not None
        # A stream that waits in the engine holds its body until the first content.
        assert held(front) == (30_000, {"search": 30_000, "mail": 0})
        front.clients.pop().close()
        await front.sleep(0.1)
        assert held(front) == (0, {"search": 0, "mail": 0})

    world(test, quick, spec=team_spec, limits=LIMITS)


def test_what_a_team_holds_is_counted_on_over_a_reload(crowd, team_spec):
    async def test(front):
        clients = await waiting(front, "sk-search", 30_000, 30_000)
        mail, search = team_spec.teams[1], team_spec.teams[0]
        front.gateway.reload(msgspec.structs.replace(team_spec, teams=(mail, search), limits=LIMITS))
        assert held(front)[1] == {"mail": 0, "search": 60_000}
        for client in clients:
            client.close()
        await front.sleep(0.1)
        assert held(front) == (0, {"mail": 0, "search": 0})

    crowd(test)


def test_a_key_that_goes_to_another_team_takes_its_next_body_there(world, team_spec):
    async def test(front):
        client = await front.client()
        for _ in range(2):
            await client.ask(CHAT, chat(30_000), key("sk-search"))
        search, mail = team_spec.teams
        moved = msgspec.structs.replace(mail, keys=(("sk-search", "standard"),))
        front.gateway.reload(
            msgspec.structs.replace(team_spec, teams=(msgspec.structs.replace(search, keys=search.keys[1:]), moved), limits=LIMITS)
        )
        front.engines[0].script = hangs
        client.send(CHAT, chat(30_000), key("sk-search"))
        await front.sleep(0.1)
        assert held(front)[1] == {"search": 0, "mail": 30_000}

    world(test, quick, spec=team_spec, limits=LIMITS)
