"""From a request's body to a running answer, with vLLM's refusals on the way, and back out when it ends or is aborted."""

import math
import random
from collections.abc import Callable

from forebay.domain.profile import Profile
from forebay.emulator import wire
from forebay.emulator.answers import EVENT_STREAM, Answer, StreamAnswer, WholeAnswer
from forebay.emulator.behaviour import Behaviour
from forebay.emulator.body import ApiError, Asked, bad_request, decode
from forebay.emulator.core import Core, Sequence
from forebay.emulator.faults import Faults, Kind
from forebay.emulator.forms import Form
from forebay.emulator.http import Exchange
from forebay.emulator.kept import Kept
from forebay.emulator.stats import RequestTimes, Stats
from forebay.ports import Clock

CHOICES_APART = 101
"""Ids between the first tokens of two choices: each has words of its own."""
BUSY = ApiError(
    503,
    "Service Unavailable",
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
)
SHUTTING_DOWN = ApiError(500, "Internal Server Error", "cannot schedule new futures after shutdown")
ENGINE_DEAD = ApiError(500, "Internal Server Error", "EngineCore encountered an issue. See stack trace (above) for the root cause.")
BROKEN = ApiError(500, "Internal Server Error", "Internal server error")


class Generation:
    """The two generation routes of one engine, and every answer that is under way."""

    def __init__(
        self, profile: Profile, model: str, clock: Clock, core: Core, stats: Stats, *, faults: Faults, behaviour: Behaviour, seed: int | str
    ) -> None:
        self.closing = False
        """The engine takes no more requests; what runs may finish."""
        self.live: dict[Answer, None] = {}
        self.kept = Kept()
        self.on_quiet: Callable[[], None] | None = None
        """Called when the last live answer has ended."""
        self._profile = profile
        self._model = model
        self._clock = clock
        self._core = core
        self._stats = stats
        self._faults = faults
        self._behaviour = behaviour
        self._chance = random.Random(f"{seed}/requests")

    def handle(self, exchange: Exchange, chat: bool, form: Form | None = None) -> None:
        """Answer a request; raises ApiError to refuse it."""
        if self._faults.take(Kind.ALL_500):
            raise BROKEN
        if self.closing:
            raise SHUTTING_DOWN
        asked = decode(exchange.request.body if form is None else form.body(exchange.request, self.kept), chat)
        if asked.model is not None and asked.model != self._model and asked.model not in self._behaviour.adapters:
            raise ApiError(404, "NotFoundError", f"The model `{asked.model}` does not exist.", "model")
        for prompt in asked.prompts:
            self._check_length(asked, prompt.tokens)
        if self._refuses_queued():
            self._stats.rejected.value += 1
            self._refuse_late(exchange, asked)
        elif self._faults.take(Kind.ERROR_FIRST_EVENT):
            self._refuse_late(exchange, asked)
        else:
            self._start(exchange, asked, form)

    def abort_all(self) -> None:
        """End every answer politely, as a shutdown does: what there is, then ``finish_reason`` ``abort``."""
        for answer in list(self.live):
            self._core.abort(answer.sequences)
            answer.flush()

    def cut_all(self) -> None:
        """Every answer's connection is gone in the middle."""
        for answer in list(self.live):
            answer.exchange.cut()

    def fail_all(self) -> None:
        """The engine died: an error is the last that every client hears."""
        for answer in list(self.live):
            self._core.abort(answer.sequences)
            answer.fail(ENGINE_DEAD.body)

    def _refuses_queued(self) -> bool:
        limit = self._behaviour.max_queued_requests
        return limit is not None and self._core.queued >= limit

    def _refuse_late(self, exchange: Exchange, asked: Asked) -> None:
        """vLLM has answered 200 to a stream before the engine turns it away."""
        if not asked.stream:
            raise BUSY
        exchange.begin_stream(EVENT_STREAM)
        exchange.end_stream(wire.error_event(BUSY.body, exchange.chunked))

    def _check_length(self, asked: Asked, prompt_tokens: int) -> None:
        limit = self._profile.context_tokens
        wanted = asked.max_tokens or 1
        if prompt_tokens + wanted > limit:
            raise bad_request(
                f"This model's maximum context length is {limit} tokens. However, you requested {prompt_tokens + wanted} tokens "
                f"({prompt_tokens} in the prompt, {wanted} in the completion). Please reduce either.",
                "max_tokens" if prompt_tokens < limit else "prompt",
            )

    def _output(self, asked: Asked, prompt_tokens: int) -> tuple[int, str]:
        """How many tokens the answer will have, and why it ends there."""
        room = self._profile.context_tokens - prompt_tokens
        if asked.max_tokens is not None:
            return asked.max_tokens, "length"
        if asked.ignore_eos:
            return room, "length"
        behaviour = self._behaviour
        drawn = round(self._chance.lognormvariate(math.log(behaviour.output_tokens_median), behaviour.output_tokens_sigma))
        tokens = max(1, drawn, asked.min_tokens)
        return (tokens, "stop") if tokens < room else (room, "length")

    def _start(self, exchange: Exchange, asked: Asked, form: Form | None) -> None:
        now_s = self._clock.now_s()
        given = exchange.request.headers.get(b"x-request-id")
        ending = given.decode("latin-1") if given else f"{self._chance.getrandbits(128):032x}"
        prefix = "chatcmpl-" if asked.chat else "cmpl-"
        names = wire.Names(
            f"{prefix if form is None else form.prefix + '_'}{ending}", asked.model or self._model, int(self._clock.wall_s()), asked.chat
        )
        answer: Answer
        if form is not None:
            answer = form.answer(exchange, asked, names, self._ended, self.kept)
        else:
            answer = (StreamAnswer if asked.stream else WholeAnswer)(exchange, asked, names, self._ended)
        for prompt in asked.prompts:
            for choice in range(asked.n):
                output_tokens, reason = self._output(asked, prompt.tokens)
                room = self._profile.context_tokens - prompt.tokens
                times = RequestTimes(now_s, prompt.tokens, asked.max_tokens or room)
                answer.add(times, output_tokens, reason, (prompt.last_id + 1 + choice * CHOICES_APART) % wire.TOKEN_IDS)
        self.live[answer] = None
        self._see_to_its_end(exchange, answer)
        merge = self._faults.get(Kind.MERGE)
        if merge is not None:
            answer.tokens_an_event = merge.tokens
        if asked.stream:
            exchange.begin_stream(EVENT_STREAM)
            if self._faults.get(Kind.CLOSE):
                exchange.request.keep_alive = False
        self._core.submit(answer.sequences)
        answer.begun()

    def _see_to_its_end(self, exchange: Exchange, answer: Answer) -> None:
        counted = exchange.on_done

        def done(status: int, content_length: int) -> None:
            if not answer.background:
                self._release(answer)
            if counted is not None:
                counted(status, content_length)

        def stop() -> None:
            self._release(answer)
            self._core.abort(answer.sequences)

        def left() -> None:
            # A client that leaves frees its KV at once and is counted nowhere.
            if not answer.background:
                stop()

        answer.stop, answer.over = stop, lambda: self._release(answer)

        exchange.on_done = done
        exchange.on_closed = left

    def _release(self, answer: Answer) -> None:
        self.live.pop(answer, None)
        if not self.live and self.on_quiet is not None:
            self.on_quiet()

    def _ended(self, answer: Answer, sequence: Sequence) -> None:
        at_s = self._clock.now_s() if sequence.reason == "abort" else sequence.times.last_s
        self._stats.ended(sequence.times, sequence.reason, at_s, answer.asked.n)
