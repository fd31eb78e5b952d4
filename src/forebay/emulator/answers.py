"""One generation request being answered: as a stream of events, or as one body when all its choices are done.

Back-pressure as vLLM has it: the engine never waits for a client. While a client doesn't read, nothing is made for it;
once it reads again, all it has missed comes as one chunk of several tokens. So what is held is bounded by the socket's
own buffers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import msgspec

from forebay.emulator import wire
from forebay.emulator.body import Asked
from forebay.emulator.core import Sequence
from forebay.emulator.http import Exchange
from forebay.emulator.stats import RequestTimes

EVENT_STREAM = b"text/event-stream; charset=utf-8"


def _nothing() -> None:
    """Until the engine has it."""


class Answer(ABC):
    """What both forms share. ``ended(answer, sequence)`` is told of each sequence that finished in the engine."""

    def __init__(self, exchange: Exchange, asked: Asked, names: wire.Names, ended: Callable[["Answer", Sequence], None]) -> None:
        self.exchange = exchange
        self.asked = asked
        self.names = names
        self.sequences: list[Sequence] = []
        self.tokens_an_event = 1
        self.background = False
        """It goes on whoever reads, and ends with ``over``."""
        self.stop: Callable[[], None] = _nothing
        self.over: Callable[[], None] = _nothing
        self.prompt_tokens = sum(prompt.tokens for prompt in asked.prompts)
        self._offsets: list[int] = []
        self._left = 0
        self._ended = ended

    def add(self, times: RequestTimes, output_tokens: int, reason: str, offset: int) -> None:
        """One more choice, in order of index."""
        self.sequences.append(Sequence(self, times, output_tokens, reason))
        self._offsets.append(offset)
        self._left += 1

    def begun(self) -> None:  # noqa: B027 - most have nothing to do
        """The engine has its sequences."""

    @property
    def output_tokens(self) -> int:
        """Over all choices, so far."""
        return sum(sequence.produced for sequence in self.sequences)

    @abstractmethod
    def flush(self) -> None:
        """Send what the sequences have produced since the last flush."""

    @abstractmethod
    def fail(self, body: bytes) -> None:
        """End with an error in the middle, as vLLM does when its engine dies."""

    def _count_ended(self) -> None:
        """Tell of what ended in the engine, whether or not the client has read it."""
        for sequence in self.sequences:
            if sequence.done and not sequence.counted:
                sequence.counted = True
                sequence.times.output_tokens = sequence.produced
                self._left -= 1
                self._ended(self, sequence)


def _shown(sequence: Sequence) -> int:
    """Tokens of ``sequence`` that have text: the one that says ``stop`` has none."""
    return sequence.produced - (1 if sequence.reason == "stop" and sequence.done else 0)


class StreamAnswer(Answer):
    """Server-sent events."""

    def __init__(self, exchange: Exchange, asked: Asked, names: wire.Names, ended: Callable[[Answer, Sequence], None]) -> None:
        super().__init__(exchange, asked, names, ended)
        self._wires: list[wire.ChoiceWire] = []
        self._extras = [
            wire.Extras(msgspec.json.encode(prompt.ids()) if asked.token_ids else None, prompt.tokens if asked.running_usage else None)
            for prompt in asked.prompts
        ]
        self._merge = False
        self._open: set[int] = set()
        exchange.on_writable = self.flush

    def add(self, times: RequestTimes, output_tokens: int, reason: str, offset: int) -> None:
        """One more choice, in order of index."""
        super().add(times, output_tokens, reason, offset)
        index = len(self._wires)
        self._open.add(index)
        extras = self._extras[index // self.asked.n]
        self._wires.append(wire.ChoiceWire(self.names, index, offset, self.exchange.chunked, extras))

    def flush(self) -> None:
        """Send one event per token, or one for all that a slow client has missed."""
        self._count_ended()
        if not self.exchange.writable:
            self._merge = True
            return
        parts: list[bytes] = []
        for index, sequence in enumerate(self.sequences):
            if index in self._open:
                self._events(index, sequence, parts)
        self._merge = False
        if self._open:
            if parts:
                self.exchange.write(b"".join(parts))
            return
        chunked = self.exchange.chunked
        if self.asked.include_usage:
            parts.append(wire.framed(self.names.usage_event(self.prompt_tokens, self.output_tokens), chunked))
        parts.append(wire.framed(wire.DONE, chunked))
        self.exchange.end_stream(b"".join(parts))

    def fail(self, body: bytes) -> None:
        """The stream's last event is an error."""
        self.exchange.end_stream(wire.error_event(body, self.exchange.chunked))

    def _events(self, index: int, sequence: Sequence, parts: list[bytes]) -> None:
        maker = self._wires[index]
        start, end = sequence.sent, sequence.produced
        if end - start < self.tokens_an_event and not sequence.done:
            return
        if start == 0 and self.names.chat:
            parts.append(maker.role())
        sequence.sent = end
        # The last token travels with the finish reason.
        plain = end - 1 if sequence.done and sequence.reason != "abort" else end
        if (self._merge or self.tokens_an_event > 1) and plain - start > 1:
            parts.append(maker.tokens(start, plain))
        else:
            parts.extend([maker.token(k) for k in range(start, plain)])
        if sequence.done:
            self._open.discard(index)
            begin = max(start, plain)
            parts.append(maker.last(begin, end, max(begin, _shown(sequence)), sequence.reason))


class WholeAnswer(Answer):
    """One JSON body at the end."""

    def flush(self) -> None:
        """Answer once every choice is done."""
        self._count_ended()
        if self._left == 0:
            self._respond()

    def fail(self, body: bytes) -> None:
        """An error instead of the answer."""
        self.exchange.respond(500, body)

    def _respond(self) -> None:
        choices = [(offset, _shown(sequence), sequence.reason) for offset, sequence in zip(self._offsets, self.sequences, strict=True)]
        self.exchange.respond(200, wire.whole(self.names, choices, self.prompt_tokens, self.output_tokens))
