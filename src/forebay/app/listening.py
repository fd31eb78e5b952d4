"""Listening sockets, opened before anything starts: an address that is taken is bad input, and nothing was started."""

import socket

from forebay.domain.errors import BadInput
from forebay.spec.formats import write_listen
from forebay.spec.types import Listen

BACKLOG = 1024
"""Connections that wait while the process behind is restarted; the kernel may allow fewer."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
ANY_HOSTS = _ANY.keys()
"""Addresses to listen on, at which nobody can be reached."""


def opened(name: str, listen: Listen) -> socket.socket:
    """A socket that listens; ``name`` is what the user called the address. Raises BadInput where it can't."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        return socket.create_server((listen.host, listen.port), family=family, backlog=BACKLOG)
    except OSError as error:
        # Some of Python's own messages repeat the address.
        why = (error.strerror or str(error)).partition(" (while")[0]
        raise BadInput(f"{name}: can't listen on {write_listen(listen)} ({why}); name another address, or port 0 for a free one") from None


def address(listening: socket.socket) -> str:
    """``host:port`` as it was bound."""
    return write_listen(Listen(*listening.getsockname()[:2]))


def url(listening: socket.socket, tls: bool = False) -> str:
    """Where a client on this machine reaches it."""
    host, port = listening.getsockname()[:2]
    return f"http{'s' if tls else ''}://{write_listen(Listen(_ANY.get(host, host), port))}"


def own_host(remote: Listen) -> str:
    """The address of this machine by which it speaks to ``remote``. Raises BadInput where there is no way there."""
    family = socket.AF_INET6 if ":" in remote.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:  # connecting one of these sends nothing
        try:
            probe.connect((remote.host, remote.port))
        except OSError as error:
            raise BadInput(
                f"--join: found {write_listen(remote)}, which can't be reached ({error.strerror or error}); name its address"
            ) from None
        return str(probe.getsockname()[0])
