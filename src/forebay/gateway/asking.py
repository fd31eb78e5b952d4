"""What is asked of an engine in a client's name, and taken out of the answer again: usage, and the ids of tokens.

Usage is wanted of every stream, since it is metered. Token ids are wanted of engines that tell them: they are what an
answer is continued from on another replica, and they count what a client got that left early. Where a prompt is too
long for its ids to be told, running usage counts instead. A field that isn't there is spliced into the body's end, so
that nothing is parsed or copied twice.
"""

from itertools import product

import msgspec

from forebay.gateway.ask import Ask
from forebay.spec.types import EngineKind

IDS_BODY_BYTES_MAX = 96 * 1024
"""Of a longer body no ids are asked: told as JSON, those of its prompt may be larger than what is held of a stream's beginning."""

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_USAGE = b'{"include_usage":true}'
_ALL_USAGE = b'{"include_usage":true,"continuous_usage_stats":true}'


class Wants(msgspec.Struct, frozen=True, gc=False):
    """What the client did not ask for, and is not told."""

    usage: bool = False
    """The last chunk, without choices."""
    running_usage: bool = False
    """Usage in every chunk."""
    ids: bool = False
    """Token ids, of the prompt too."""


NOTHING = Wants()
UNASKED = Wants()
"""Known by itself: what is wanted is added to the body when that is first sent. Until then it waits as the client sent it, and once."""
_WANTS = {three: Wants(*three) for three in product((False, True), repeat=3)}


def asking(ask: Ask, body: bytes, engine: EngineKind) -> tuple[bytes, Wants]:
    """The body of a stream's request as the engine gets it, and what was added to it."""
    options = ask.stream_options
    usage = options is None or not options.include_usage
    told_ids = bool(ask.return_token_ids)
    ids = engine.tells_ids and not told_ids and len(body) <= IDS_BODY_BYTES_MAX
    running_asked = not usage and options is not None and bool(options.continuous_usage_stats)
    running = engine.tells_running_usage and not (ids or told_ids or running_asked)
    wants = _WANTS[usage, running, ids]
    if not (usage or running or ids):
        return body, wants
    if ((usage or running) and b'"stream_options"' in body) or (ids and b'"return_token_ids"' in body):
        # It may be there, as null or as false.
        added: dict[bytes, bytes] = {}
        if usage or running:
            added[b"stream_options"] = _ALL_USAGE if running else _USAGE
        if ids:
            added[b"return_token_ids"] = b"true"
        try:
            return _merged(body, added), wants
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return body, NOTHING  # what was skipped so far is not JSON after all: the engine says so, or takes it
    more = b"}"
    if ids:
        more = b',"return_token_ids":true}'
    if usage or running:
        more = (b',"stream_options":%b' % (_ALL_USAGE if running else _USAGE)) + more
    return body[: body.rindex(b"}")] + more, wants


def _merged(body: bytes, added: dict[bytes, bytes]) -> bytes:
    fields = _decode_fields(body)
    for name, value in added.items():
        old = fields.get(name.decode())
        if old is not None and bytes(old).startswith(b"{"):
            value = _encode({**_decode_fields(old), **_decode_fields(value)})
        fields[name.decode()] = msgspec.Raw(value)
    return _encode(fields)
