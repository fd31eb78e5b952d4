"""The gateway's certificate: read at the start, and again when its files change, without dropping a connection.

One context is shared by all connections, and OpenSSL takes a new certificate into it for those that come later. What
is written halfway, or does not fit, is said and left alone: the one before goes on.
"""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from forebay.domain.errors import BadInput, Trouble, Unusable
from forebay.spec.types import Tls

LOOK_EVERY_S = 1.0
PEM_BYTES_MAX = 2**20


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
    looked_at = (
        ("gateway.tls.cert", files.cert, "a certificate with its chain", b"-----BEGIN CERTIFICATE-----"),
        ("gateway.tls.key", files.key, "its private key without a passphrase", b"PRIVATE KEY-----"),
    )
    troubles = [
        Trouble(path, found, f"a file with {what}, in PEM") for path, name, what, mark in looked_at if (found := _wrong(name, mark))
    ]
    if troubles:
        raise Unusable(*troubles)
    try:
        context.load_cert_chain(files.cert, files.key, _no_passphrase)
    except (OSError, ssl.SSLError) as error:
        allowed = "a certificate with its chain and the key that belongs to it, both in PEM, the key without a passphrase"
        found = f"{files.cert} and {files.key}, which can't be used ({_why(error)})"
        raise Unusable(Trouble("gateway.tls", found, allowed)) from None
    return context


def _wrong(name: str, mark: bytes) -> str:
    """What is found at ``name`` instead of a file that holds ``mark``; empty: it is one."""
    if not Path(name).is_file():
        return f"no file {name}"
    try:
        with Path(name).open("rb") as file:
            return "" if mark in file.read(PEM_BYTES_MAX) else f"a file {name} that holds none"
    except OSError as error:
        return f"a file {name} that can't be read ({(error.strerror or 'an error').lower()})"


def _why(error: OSError) -> str:
    """OpenSSL's words are for those who wrote it."""
    reason = getattr(error, "reason", None) or ""
    return "the key is not the certificate's" if "KEY_VALUES_MISMATCH" in reason else str(error)


def _no_passphrase() -> str:
    """Asked of nobody: a server has no terminal."""
    return ""
