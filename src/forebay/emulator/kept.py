"""Responses that one engine keeps, as vLLM does with ``VLLM_ENABLE_RESPONSES_API_STORE=1``; and those that it still works on, unread."""

from collections.abc import Callable

from forebay.emulator.body import ApiError, bad_request
from forebay.emulator.http import Exchange

KEPT_MAX = 1000
"""The oldest are forgotten first (vLLM keeps all)."""


class Kept:
    """By their ids."""

    def __init__(self) -> None:
        self._bodies: dict[str, bytes] = {}
        self._cancels: dict[str, Callable[[], bytes]] = {}

    def put(self, response_id: str, body: bytes, cancel: Callable[[], bytes] | None = None) -> None:
        """It is so now. ``cancel``, of one that goes on: stops it; returns how it is then."""
        self._bodies.pop(response_id, None)
        self._cancels.pop(response_id, None)
        if len(self._bodies) >= KEPT_MAX:
            oldest = next(iter(self._bodies))
            del self._bodies[oldest]
            self._cancels.pop(oldest, None)
        self._bodies[response_id] = body
        if cancel is not None:
            self._cancels[response_id] = cancel

    def ask(self, exchange: Exchange) -> None:
        """``/v1/responses/{id}`` and its cancellation."""
        _, _, _, response_id, *rest = exchange.request.path.split("/")
        if response_id not in self._bodies:
            raise ApiError(404, "NotFoundError", f"Response with id '{response_id}' not found.")
        if rest == ["cancel"]:
            cancel = self._cancels.pop(response_id, None)
            if cancel is None:
                raise bad_request("Cannot cancel a synchronous response.", "response_id")
            self.put(response_id, cancel())
        exchange.respond(200, self._bodies[response_id])
