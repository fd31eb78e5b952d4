"""The shortest way of a stream's usual chunks to their client: from where they were read to its socket, past the transport's own queue."""

import asyncio

from forebay.native import Takes


def straighten(takes: Takes, client: asyncio.Transport) -> None:
    """What ``takes`` writes to ``client`` may go to its socket itself, unless it is encrypted on its way, or there is none."""
    own = client.get_extra_info("socket")
    if own is not None and client.get_extra_info("sslcontext") is None:
        takes._straight(own.fileno(), client.get_write_buffer_size, client.is_closing)
