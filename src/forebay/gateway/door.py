"""The gateway's door: who asks, what the request is called, and how it is turned away before it is any pool's."""

from abc import ABC

from forebay.gateway.answers import ErrorReply
from forebay.gateway.duties import Duties
from forebay.gateway.http import ClientConnection
from forebay.gateway.identity import UNAUTHORIZED, Caller, Identity
from forebay.gateway.request import Request


class Door(Duties, ABC):
    """A gateway but for what is behind it."""

    _identity: Identity
    _request_prefix: bytes
    _requests: int

    def _admits(self, request: Request) -> ErrorReply | None:
        """Before any of its body is read: a stranger's is not held, whatever it asks for."""
        caller = self._caller(request)
        if caller is None:
            return UNAUTHORIZED
        request.holding = caller.holding
        return None

    def _caller(self, request: Request) -> Caller | None:
        """Who asks; looked up once for each head that differs."""
        facts = request.facts
        if facts.known_to is not self._identity:
            facts.caller = self._identity.caller(facts.authorization)
            facts.known_to = self._identity
        return facts.caller

    def _refuse(self, connection: ClientConnection, error: ErrorReply, request_id: bytes) -> None:
        connection.refuse(error, b"x-request-id: %b\r\n" % request_id)

    def _not_allowed(self, connection: ClientConnection, request: Request, allowed: str) -> None:
        error = ErrorReply(405, "invalid_request_error", "method_not_allowed", f"Only {allowed} is allowed here.")
        connection.refuse(error, b"allow: %b\r\nx-request-id: %b\r\n" % (allowed.encode(), self._request_id(request)))

    def _request_id(self, request: Request) -> bytes:
        """The client's own, or a fresh one (`_infer` has the same without the call)."""
        return self._named(request.facts.request_id)

    def _named(self, own: bytes) -> bytes:
        if own:
            return own
        self._requests += 1
        return b"%b-%x" % (self._request_prefix, self._requests)
