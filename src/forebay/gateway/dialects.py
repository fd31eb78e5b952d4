"""Errors as each API has them: OpenAI's four fields, Anthropic's typed error, and the event that ends a broken stream of either.

Which one follows from the path alone, so nothing is carried along for it, and an error found before a request was whole
is told in the right form too.
"""

import msgspec

from forebay.gateway.answers import DONE_EVENT, ErrorReply
from forebay.gateway.events import UNREADABLE

ANTHROPIC = b"/v1/messages"
RESPONSES = b"/v1/responses"

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class _Told(msgspec.Struct):
    message: str
    type: str | None = None
    param: str | None = None
    code: int | str | None = None


class _OpenAi(msgspec.Struct):
    error: _Told | str


class _Anthropic(msgspec.Struct):
    type: str
    error: _Told


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_words = msgspec.json.Decoder(_Told | str).decode
_decode_openai = msgspec.json.Decoder(_OpenAi).decode
_decode_anthropic = msgspec.json.Decoder(_Anthropic).decode
_encode = msgspec.json.Encoder().encode


def error_body(error: ErrorReply, target: bytes) -> bytes:
    """What a client of ``target`` gets as the body of an error."""
    return _encode(_anthropic(error)) if target.startswith(ANTHROPIC) else error.body()


def error_end(error: ErrorReply, target: bytes, response: bytes = b"", sequence_number: int = 0) -> bytes:
    """The events that end a stream whose status is already 200.

    ``response``: the object of a stream of ``/v1/responses``, as told at its beginning; ``sequence_number``: its next one.
    """
    if target.startswith(ANTHROPIC):
        return b"event: error\ndata: " + _encode(_anthropic(error)) + b"\n\n"
    if target.startswith(RESPONSES):
        return _response_failed(error, response, sequence_number)
    return error.event() + DONE_EVENT


def in_shape(status: int, body: bytes, target: bytes) -> ErrorReply | None:
    """An engine's error in the API's form, or None where it has that form already.

    Engines answer with a framework's ``{"detail": …}``, with plain text, with a number for ``code``; clients' types know none of it.
    """
    if target.startswith(ANTHROPIC):
        try:
            told = _decode_anthropic(body)
        except UNREADABLE:
            return _read(status, body)
        known = told.type == "error" and told.error.type == _anthropic_type(status)
        return None if known else ErrorReply(status, "", None, told.error.message)
    try:
        error = _decode_openai(body).error
        fields = _decode_fields(_decode_fields(body)["error"]) if isinstance(error, _Told) else {}
    except UNREADABLE:
        return _read(status, body)
    if isinstance(error, str):
        return _plain(status, error)
    if fields.keys() >= {"message", "type", "param", "code"} and error.type is not None and not isinstance(error.code, int):
        return None
    if isinstance(error.code, int):  # vLLM's: the status again, and a type in words of its own
        return ErrorReply(status, _openai_type(status), None, error.message, error.param)
    return ErrorReply(status, error.type or _openai_type(status), error.code, error.message, error.param)


def _read(status: int, body: bytes) -> ErrorReply:
    """What the body of an error says that is in no form we know: its ``detail`` or ``message``, or the text itself."""
    try:
        fields = _decode_fields(body)
        told = fields.get("detail") or fields.get("message") or fields.get("error")
        text = _words(told) if told else ""
    except UNREADABLE:
        text = body[:1000].decode("utf-8", "replace").strip()
    return _plain(status, text[:1000] or f"The engine answered {status}.")


def _words(told: msgspec.Raw) -> str:
    """A text as it reads, of an object its ``message``, of anything else the JSON itself."""
    try:
        found = _decode_words(told)
    except UNREADABLE:
        return bytes(told).decode("utf-8", "replace")
    return found if isinstance(found, str) else found.message


def _plain(status: int, message: str) -> ErrorReply:
    return ErrorReply(status, _openai_type(status), None, message)


def _openai_type(status: int) -> str:
    return "invalid_request_error" if status < 500 else "server_error"


def _anthropic_type(status: int) -> str:
    return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def _anthropic(error: ErrorReply) -> dict[str, object]:
    return {"type": "error", "error": {"type": _anthropic_type(error.status), "message": error.message}}


def _response_failed(error: ErrorReply, response: bytes, sequence_number: int) -> bytes:
    """``response.failed``, on which clients stop waiting; or a bare ``error`` where the response isn't known."""
    if not response:
        fields = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "param": error.param,
            "sequence_number": sequence_number,
        }
        return b"event: error\ndata: " + _encode(fields) + b"\n\n"
    known = _decode_fields(response)
    known["status"] = msgspec.Raw(b'"failed"')
    known["error"] = msgspec.Raw(_encode({"code": "server_error", "message": error.message}))
    event = {"type": "response.failed", "response": known, "sequence_number": sequence_number}
    return b"event: response.failed\ndata: " + _encode(event) + b"\n\n"
