"""How a gateway and a controller prove to each other that they know the same secret, before anything else is said.

The one that is dialled sends a nonce; the gateway answers with one of its own and an HMAC-SHA-256 over both, and gets one in turn. Which
side speaks is part of what is proved, so that no proof can be sent back to whom it came from; both nonces are, so that none
is of use on another connection. What follows is not encrypted.
"""

import hashlib
import hmac

import msgspec

NONCE_BYTES = 32
SECRET_CHARS_MIN = 16


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """The controller's first words, where a secret is asked for."""

    nonce: str


class Proof(msgspec.Struct, frozen=True, tag="proof"):
    """A gateway's answer, and then the controller's, whose ``nonce`` is empty: it has told one."""

    proof: str
    nonce: str = ""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The controller's last words: why, and what to do."""

    why: str


def by_gateway(secret: str, challenge: str, nonce: str) -> str:
    """What a gateway proves by, in hexadecimal digits."""
    return _proof(secret, "gateway", challenge, nonce)


def by_controller(secret: str, challenge: str, nonce: str) -> str:
    """What a controller proves by."""
    return _proof(secret, "controller", challenge, nonce)


def proves(found: str, wanted: str) -> bool:
    """Whether they are equal, in a time that tells nothing."""
    return hmac.compare_digest(found.encode(), wanted.encode())


def _proof(secret: str, who: str, challenge: str, nonce: str) -> str:
    said = f"forebay join 1\n{who}\n{challenge}\n{nonce}"
    return hmac.new(secret.encode(), said.encode(), hashlib.sha256).hexdigest()
