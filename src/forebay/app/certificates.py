"""The gateway's certificate: read at the start, and again when its files change, without dropping a connection.

One context is shared by all connections, and OpenSSL takes a new certificate into it for those that come later. What
is written halfway, or does not fit, is said and left alone: the one before goes on.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from forebay.domain.errors import BadInput
from forebay.spec.types import Tls

LOOK_EVERY_S = 1.0


class Certificate:
    """Certificate and key of one server."""

    def __init__(self, files: Tls) -> None:
        """Raises BadInput where the files can't be used."""
        self._files = files
        self.context = _context(files)
        self._stamp = self._look()

    def refresh(self) -> str:
        """Take in the files if they have changed; what there is to say of it, or nothing."""
        stamp = self._look()
        if stamp == self._stamp:
            return ""
        self._stamp = stamp
        try:
            _context(self._files)  # as a whole, before any of it counts
            self.context.load_cert_chain(self._files.cert, self._files.key, _no_passphrase)
        except (BadInput, OSError, ssl.SSLError) as error:
            return f"the certificate was not taken, and the one before is kept: {error}"
        return "the certificate was read again"

    async def watch(self, say: Callable[[str], None]) -> None:
        """Refresh for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            words = self.refresh()
            if words:
                say(words)

    def _look(self) -> tuple[object, ...]:
        seen: list[object] = []
        for name in (self._files.cert, self._files.key):
            try:
                stat = Path(name).stat()
                seen.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
            except OSError:
                seen.append(None)
        return tuple(seen)


def _context(files: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for key, name in (("cert", files.cert), ("key", files.key)):
        if not Path(name).is_file():
            raise BadInput(f"gateway.tls.{key}: found no file {name}; allowed: a file in PEM; name one that is there")
    try:
        context.load_cert_chain(files.cert, files.key, _no_passphrase)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(
            f"gateway.tls: {files.cert} and {files.key} can't be used ({error}); "
            "allowed: a certificate with its chain and the key that belongs to it, both in PEM, the key without a passphrase"
        ) from None
    return context


def _no_passphrase() -> str:
    """Asked of nobody: a server has no terminal."""
    return ""
