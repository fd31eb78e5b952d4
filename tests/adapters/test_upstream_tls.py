"""Engines behind https, on real sockets: a certificate that is trusted, one that isn't, and reuse of the connection."""

import asyncio
import ssl
from pathlib import Path

import pytest

from forebay.adapters.upstream import HttpUpstream
from forebay.ports import End, FetchFailed, fetch, get_request

TLS = Path(__file__).parents[1] / "fixtures" / "tls"
"""Made for these tests: it is trusted nowhere else."""
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def run_against(trusted: bool, test):
    async def main():
        accepted = []

        async def serve(reader, writer):
            accepted.append(writer)
            try:
                while await reader.readuntil(b"\r\n\r\n"):
                    writer.write(ANSWER)
            except asyncio.IncompleteReadError:
                pass
            finally:
                writer.close()

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        client = ssl.create_default_context(cafile=str(TLS / "cert.pem") if trusted else None)
        upstream = HttpUpstream(tls=client)
        try:
            await test(upstream, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", accepted)
        finally:
            await upstream.close()
            server.close()
            for writer in accepted:
                writer.transport.abort()
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_https_is_spoken_and_the_connection_is_used_again():
    async def test(upstream, url, accepted):
        for _ in range(2):
            assert await fetch(upstream, url, get_request(url, "/health"), 1000, 5.0) == (200, b"ok")
        assert len(accepted) == 1

    run_against(True, test)


def test_a_certificate_that_nobody_vouches_for_is_not_spoken_to():
    async def test(upstream, url, _):
        with pytest.raises(FetchFailed) as failed:
            await fetch(upstream, url, get_request(url, "/health"), 1000, 5.0)
        assert failed.value.end is End.CONNECT_FAILED
        assert "certificate" in str(failed.value)

    run_against(False, test)
