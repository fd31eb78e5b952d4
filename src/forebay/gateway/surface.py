"""Calls to the endpoints besides chat and completions: what differs in their streams, their answers and their errors."""

from forebay.domain.shape import Usage
from forebay.gateway.answers import ErrorReply
from forebay.gateway.bound import BoundCall
from forebay.gateway.dialects import error_end
from forebay.gateway.holders import Holder
from forebay.gateway.meters import Outcome
from forebay.gateway.sse import EventStream
from forebay.gateway.typed import TypedStream, typed_usage
from forebay.gateway.whole import WholeBody
from forebay.ports.upstream import ResponseHead


class TypedCall(BoundCall):
    """One whose events name their type."""

    __slots__ = ()

    moves = False

    def _ask_more(self) -> None:
        """Nothing: these tell their usage unasked, and know no token ids."""

    def _stream_of(self, head: ResponseHead) -> EventStream:
        return TypedStream(head.chunked, self._request.modern)

    def _end_of_stream(self, error: ErrorReply) -> bytes:
        stream = self._stream
        if isinstance(stream, TypedStream):
            return error_end(error, self._request.target, stream.response, stream.next_sequence_number)
        return super()._end_of_stream(error)

    def _look_at(self, body: bytes) -> tuple[Usage | None, bool]:
        return typed_usage(body)[0], False

    def _counted_usage(self) -> Usage | None:
        stream = self._stream
        if isinstance(stream, TypedStream) and stream.usage is None and stream.begun is not None:
            return Usage(stream.begun.prompt_tokens, stream.events, stream.begun.cached_tokens, exact=False)
        return super()._counted_usage()


class ResponsesCall(TypedCall):
    """An answer that its engine keeps: whoever goes on from it is sent to the same replica (`bound`)."""

    __slots__ = ()

    def _open_stream(self, piece: bytes) -> None:
        if isinstance(self._stream, TypedStream):
            self._keep(self._stream.response_id)
        super()._open_stream(piece)

    def _look_at(self, body: bytes) -> tuple[Usage | None, bool]:
        usage, response_id = typed_usage(body)
        self._keep(response_id)
        self._measure(response_id, usage)
        return usage, False

    def _served(self, outcome: Outcome, usage: Usage | None) -> None:
        if isinstance(self._stream, TypedStream):
            self._measure(self._stream.response_id, usage)
        super()._served(outcome, usage)

    def _keep(self, response_id: str) -> None:
        if not self._pool.peer:  # that gateway knows where
            self._context.holders.learn(response_id, Holder(self._replica_url, self._team))

    def _measure(self, response_id: str, usage: Usage | None) -> None:
        """What goes on from it has all of it as its prompt."""
        if usage is not None and usage.exact and not self._pool.peer:
            self._context.holders.told(response_id, usage.prompt_tokens + usage.output_tokens)


class BinaryCall(TypedCall):
    """Sound, as it is made: the first byte commits, since whoever listens should not wait for the last."""

    __slots__ = ()

    def _take(self, wire: bytes, body: bytes, whole: bool, last: bool) -> None:
        head = self._answer
        if head is not None and head.status == 200 and self._whole is None and not last:
            if not body:
                return
            held = self._whole = WholeBody(head, self._request.modern)
            self._wire_bytes += len(wire)
            self._write_head(held.flow(body, False), head.content_length, held.framed)
            self._let_body_go()
            return
        super()._take(wire, body, whole, last)
