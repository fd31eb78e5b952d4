"""Responses that one engine keeps, as vLLM does with ``VLLM_ENABLE_RESPONSES_API_STORE=1``; and those that it still works on, unread."""

from collections.abc import Callable
from typing import Any

from forebay.emulator.body import ApiError, bad_request
from forebay.emulator.http import Exchange

KEPT_MAX = 1000
"""The oldest are forgotten first (vLLM keeps all)."""

Messages = list[dict[str, Any]]


def not_kept(response_id: str) -> ApiError:
    """404: it never was, or is forgotten."""
    return ApiError(404, "invalid_request_error", f"Response with id '{response_id}' not found.", "response_id")


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message, or an item of an answer, as a chat's."""
    content = message.get("content", "")
    if not isinstance(content, str):
        content = "".join(str(part.get("text", "")) for part in content)
    return {"role": message.get("role", "user"), "content": content}


class Kept:
    """By their ids."""

    def __init__(self) -> None:
        self._bodies: dict[str, bytes] = {}
        self._said: dict[str, Messages] = {}
        """The conversation up to each, and its own words so far."""
        self._cancels: dict[str, Callable[[], bytes]] = {}

    def put(self, response_id: str, body: bytes, said: Messages, cancel: Callable[[], bytes] | None = None) -> None:
        """It is so now, after ``said``. ``cancel``, of one that goes on: stops it; returns how it is then."""
        self._bodies.pop(response_id, None)
        self._said.pop(response_id, None)
        self._cancels.pop(response_id, None)
        if len(self._bodies) >= KEPT_MAX:
            oldest = next(iter(self._bodies))
            del self._bodies[oldest]
            del self._said[oldest]
            self._cancels.pop(oldest, None)
        self._bodies[response_id], self._said[response_id] = body, said
        if cancel is not None:
            self._cancels[response_id] = cancel

    def conversation(self, asked: dict[str, Any]) -> Messages:
        """What was said before and what is given now. Raises ApiError (404) where the former is not kept."""
        previous, given = asked.get("previous_response_id"), asked["input"]
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else [plain(message) for message in given]
        if previous is None:
            return messages
        if previous not in self._said:
            raise not_kept(previous)
        return [*self._said[previous], *messages]

    def ask(self, exchange: Exchange) -> None:
        """``/v1/responses/{id}`` and its cancellation."""
        _, _, _, response_id, *rest = exchange.request.path.split("/")
        if response_id not in self._bodies:
            raise not_kept(response_id)
        if rest == ["cancel"]:
            cancel = self._cancels.pop(response_id, None)
            if cancel is None:
                raise bad_request("Cannot cancel a synchronous response.", "response_id")
            self.put(response_id, cancel(), self._said[response_id])
        exchange.respond(200, self._bodies[response_id])
