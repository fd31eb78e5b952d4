"""Clients that take their time, or leave half way: seen by a connection over a transport whose buffer a test fills."""

import asyncio

import pytest

from forebay.gateway.answers import JSON
from forebay.gateway.bounds import KEEP_ALIVE_TICKS, LINGER_TICKS
from forebay.gateway.http import ClientConnection, HttpServer
from forebay.spec.types import Limits


class SlowTransport(asyncio.Transport):
    """Keeps what is written until a test says that the client has read it."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.unsent_bytes = 0
        self.closed = self.aborted = False

    def write(self, data):
        self.written += data
        self.unsent_bytes += len(data)

    def set_write_buffer_limits(self, high=None, low=None): ...

    def get_write_buffer_size(self):
        return self.unsent_bytes

    def close(self):
        self.closed = True

    def abort(self):
        self.aborted = True


@pytest.fixture
def server():
    return HttpServer(Limits(), lambda connection, request: connection.answer(200, JSON, b"0123456789"))


@pytest.fixture
def transport():
    return SlowTransport()


@pytest.fixture
def connection(server, transport):
    made = ClientConnection(server)
    made.connection_made(transport)
    return made


def test_the_last_answer_of_a_connection_is_not_cut_off_while_the_client_reads_it(connection, transport):
    """After ``Connection: close`` whatever a slow client had not taken within three seconds was dropped, without a word."""
    connection.data_received(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert transport.closed
    connection.sweep(LINGER_TICKS + 1)
    assert not transport.aborted
    transport.unsent_bytes = 0
    connection.sweep(LINGER_TICKS + 2)
    assert transport.aborted


def test_a_client_that_never_takes_its_last_answer_is_dropped_all_the_same(connection, transport):
    connection.data_received(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    connection.sweep(KEEP_ALIVE_TICKS)
    assert not transport.aborted
    connection.sweep(KEEP_ALIVE_TICKS + 1)
    assert transport.aborted


def test_a_client_that_leaves_in_a_body_leaves_none_of_it_behind(server, connection):
    """The budget of all bodies was given back, the bytes were not: parser and connection are a cycle."""
    connection.data_received(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n" + b"x" * 500)
    assert server.bodies_bytes == 500
    connection.connection_lost(None)
    assert server.bodies_bytes == 0
    assert not connection._reader._pieces


def test_the_answer_to_head_has_no_body(connection, transport):
    """The next answer of a kept-alive connection began with the body that no client of HEAD reads."""
    connection.data_received(b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n")
    first, _, rest = transport.written.partition(b"\r\n\r\n")
    assert b"content-length: 10" in first
    assert rest.startswith(b"HTTP/1.1 200")
    assert rest.endswith(b"\r\n\r\n0123456789")
