"""What a request's headers mean to the gateway, worked out once for each head that differs.

A kept-alive client sends the same headers with every request but for the length of the body, so a connection remembers
the last ones and their meaning: comparing two lists costs less than reading one.
"""

import math
import re

from forebay.gateway.answers import HOP_BY_HOP
from forebay.gateway.identity import Caller, Identity

NOT_TO_ENGINES = HOP_BY_HOP | {
    b"accept-encoding",  # bytes are looked at as they pass
    b"api-key",
    b"authorization",  # the client's key is ours, not the engine's
    b"content-length",
    b"cookie",
    b"expect",
    b"host",
    b"x-forebay-deadline",
    b"x-api-key",
    b"x-forebay-hop",
    b"x-forebay-hop-id",
    b"x-forebay-hop-continues",
    b"x-forebay-hop-waited",
    b"x-forebay-hop-late",
    b"x-not-upgraded",
    b"x-request-id",
}
OUR_DEADLINE = b"x-forebay-deadline"
_PATIENCE_UNITS_S = {b"x-stainless-read-timeout": 1.0, OUR_DEADLINE: 0.001}
"""Headers that say how long the client waits for the first byte: the OpenAI SDK's in seconds, ours in milliseconds from now."""
HOP_WAITED_S_MAX = 7 * 86_400.0
"""Real seconds. Nothing waits so long that it is forwarded after it."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_MILLISECONDS = re.compile(rb"[0-9]{1,9}")
_NUMBER = re.compile(rb"(?:[0-9]{1,9}|-[0-9]{1,18})(\.[0-9]{0,9})?")
_PLAIN_CONNECTION = (b"", b"keep-alive", b"close")


class HeadFacts:
    """The meaning of one list of headers (without ``content-length``)."""

    __slots__ = (
        "authorization",
        "caller",
        "coding",
        "continues",
        "expects",
        "forwarded",
        "hop",
        "hop_id",
        "hop_late",
        "hop_waited_s",
        "known_to",
        "looped",
        "patience_s",
        "request_id",
    )

    def __init__(self, headers: list[tuple[bytes, bytes]], itself: bytes = b"") -> None:
        """``itself``: what the gateway is called among the proxies on the way; empty: nothing."""
        own: dict[bytes, bytes] = {}
        self.patience_s = math.inf
        """Real seconds that the client waits for the first byte of an answer."""
        self.looped = False
        """It has been at this gateway before: an engine's address leads back here."""
        lines = []
        for raw_name, value in headers:
            name = raw_name.lower()
            if name == b"via" and itself:
                self.looped = self.looped or itself in value.replace(b",", b" ").split()
            if name in _PATIENCE_UNITS_S:
                self.patience_s = min(self.patience_s, _patience_s(value, name))
            if name not in NOT_TO_ENGINES:
                lines.append((name, value))
            else:
                own[name] = own[name] + b"," + value if name in own else value
        key = own.get(b"x-api-key") or own.get(b"api-key")  # as Anthropic's clients send it, and Azure's
        self.authorization = own.get(b"authorization") or (b"Bearer " + key if key else b"")
        request_id = own.get(b"x-request-id", b"")
        self.request_id = request_id if _REQUEST_ID.fullmatch(request_id) else b""
        """The client's own, where it is usable."""
        self.hop = own.get(b"x-forebay-hop", b"")
        """What another gateway shows that forwards it…"""
        self.hop_id = own.get(b"x-forebay-hop-id", b"")
        """…and calls it, and…"""
        self.hop_waited_s = _waited_s(own.get(b"x-forebay-hop-waited", b""))
        """…the real seconds that it had been there by then: only a gateway's word, whoever says it."""
        self.hop_late = b"x-forebay-hop-late" in own
        """It counted its TTFT as missed then."""
        self.continues = b"x-forebay-hop-continues" in own
        """It is the rest of an answer that the other gateway began, and counts."""
        self.expects = own.get(b"expect", b"").lower() == b"100-continue"
        """It waits for ``100 Continue`` before it sends the body."""
        self.coding = own.get(b"transfer-encoding", b"").lower()
        self.caller: Caller | None = None
        self.known_to: Identity | None = None
        """Whom ``caller`` was asked of: of another, or of nobody, it means nothing. None as ``caller``: nobody's key."""
        connection = own.get(b"connection", b"").lower()
        if connection not in _PLAIN_CONNECTION:
            named = {token.strip() for token in connection.split(b",")}
            lines = [line for line in lines if line[0] not in named]
        if itself:
            lines.append((b"via", b"1.1 " + itself))
        self.forwarded = b"".join([b"%b: %b\r\n" % line for line in lines])
        """The lines that go on to the engine: none of the hop's, none with a secret of ours."""


_CONTENT_TYPE = re.compile(rb"^content-type: ([^\r\n]*)", re.MULTILINE)


def content_type(facts: HeadFacts) -> bytes:
    """As the client said it; empty where it said none."""
    match = _CONTENT_TYPE.search(facts.forwarded)
    return match[1] if match is not None else b""


def _patience_s(value: bytes, name: bytes) -> float:
    """What a header says, or for ever where it says nothing that is a time: SDKs send words too, and zero for no timeout.

    A deadline of ours that is not above zero is over.
    """
    number = _NUMBER.fullmatch(value.strip())
    if number is None:
        return math.inf
    seconds = float(number[0]) * _PATIENCE_UNITS_S[name]
    if seconds <= 0:
        return 0.0 if name == OUR_DEADLINE else math.inf
    return seconds


def _waited_s(value: bytes) -> float:
    """Milliseconds as another gateway writes them; what is no such number says nothing."""
    return min(HOP_WAITED_S_MAX, int(value) / 1000) if _MILLISECONDS.fullmatch(value) else 0.0


_UPGRADE = re.compile(rb"^upgrade:", re.IGNORECASE | re.MULTILINE)


def without_upgrade(head: bytes) -> bytes:
    """``head`` with its Upgrade field under a name that means nothing.

    No upgrade is offered, so it is to be ignored (RFC 9110 §7.8); llhttp would take the body for another protocol's.
    """
    return _UPGRADE.sub(b"x-not-upgraded:", head)
