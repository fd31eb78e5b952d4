"""A designed sweep over one live engine: batches that decode in lockstep, and lone prompts, timed by their tokens as they arrive.

A cell sends a fixed number of equal requests at once. From when the last of them has its first token until the first of them ends,
every step decodes all of them and does nothing else, so the time between tokens *is* the step time, and KV is known to the token. That
stretch is cut into windows, since KV grows along it. A cell whose requests were not all under way together is left out and named.

Lengths are the engine's own tokens: how many bytes of text make one is learned first, since tokenisers differ by a factor of two, and
a cell that was to hold 1,500 tokens may otherwise hold 2,800, or fail for want of context.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from forebay.domain.errors import ForebayError
from forebay.engine.fitting import DecodeRow, PrefillRow
from forebay.loadgen.http import Client, Connection, Outcome, Target
from forebay.loadgen.models import first_model
from forebay.loadgen.prompts import Prompts, RequestMaker
from forebay.loadgen.stream import events_in

WINDOW_STEPS = 24
"""Steps of a window at least: single gaps are the network's and the scheduler's as much as the engine's."""
WINDOWS_MAX = 4
LONE_TOKENS = 2
WARM_TOKENS = 8
CACHED_MOST = 0.1
"""Of a lone prompt: where more came from the prefix cache, its time says little of prefill."""
TOKENS_PER_EVENT_MOST = 1.05
"""Where events hold one token each; the last of an answer may come with the one before."""
BYTES_PER_TOKEN = 4.0
"""Before anything is known: English words of three letters and a blank, one token each in the usual vocabularies."""
BYTES_PER_TOKEN_RANGE = (0.25, 16.0)
FINISH_MARKS = (b'"finish_reason":"', b'"finish_reason": "')
CONTENT_MARKS = (b'"content":', b'"text":', b'"reasoning_content":', b'"token_ids":')


class Plan(msgspec.Struct, frozen=True):
    """What to measure."""

    sequences: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    prompts: tuple[int, ...] = (64, 512, 1500)
    output_tokens: int = 128
    repeats: int = 3
    timeout_s: float = 300.0


class Measured(msgspec.Struct, frozen=True):
    """What a sweep brought."""

    model: str
    decode: tuple[DecodeRow, ...]
    prefill: tuple[PrefillRow, ...]
    left_out: tuple[str, ...]
    """Cells that can't be used, and why."""
    bytes_per_token: float = BYTES_PER_TOKEN
    """Of the prompts sent, as the engine counted: what ``forebay replay --bytes-per-token`` takes."""


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the engine says it did not compute; most engines say nothing."""
        return (self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens) or 0


class _Event(msgspec.Struct):
    usage: _Usage | None = None


class _Timed:
    """One request whose content events are stamped as they come; an `http.Exchange`."""

    def __init__(self, request: bytes, now: Callable[[], float]) -> None:
        self.request = request
        self.done = False
        self.connection: Connection | None = None
        self.over: asyncio.Future[tuple[Outcome, str]] = asyncio.get_running_loop().create_future()
        self.sent_s = 0.0
        self.stamps: list[float] = []
        self.usage = _Usage()
        self.status = 0
        self._now = now
        self._rest = b""
        self._answer = b""

    def sent(self) -> None:
        """The clock of the first token starts."""
        self.sent_s = self._now()

    def head(self, status: int, _headers: list[tuple[bytes, bytes]], /) -> None:
        """Only 200 counts."""
        self.status = status

    def body(self, body: bytes) -> None:
        """Stamp each event that brings content."""
        now_s = self._now()
        if self.status != 200:
            self._answer = (self._answer + body)[:400]
            return
        whole, _, self._rest = (self._rest + body).rpartition(b"\n\n")
        for data in events_in(whole):
            if b'"usage":{' in data or b'"usage": {' in data:
                self._settle(data)
            if any(mark in data for mark in CONTENT_MARKS) and b'"choices":[]' not in data and (not _empty(data) or self._silent(data)):
                self.stamps.append(now_s)

    def _silent(self, data: bytes) -> bool:
        """A token in the midst of an answer that shows no text yet, being half a letter: its step took place all the same."""
        return bool(self.stamps) and not any(mark in data for mark in FINISH_MARKS)

    def _settle(self, data: bytes) -> None:
        try:
            event = msgspec.json.decode(data, type=_Event)
        except msgspec.DecodeError:
            return
        self.usage = event.usage or self.usage

    def end(self, outcome: Outcome, detail: str) -> None:
        """Wake who waits."""
        if not self.over.done():
            answer = self._answer.decode(errors="replace")
            self.over.set_result((outcome, f"{self.status} {answer}" if self.status not in (0, 200) else detail))


def _empty(data: bytes) -> bool:
    """An opening or closing event without text."""
    return b'"content":""' in data or b'"content":null' in data or b'"text":""' in data or b'"delta":{}' in data


class Sweep:
    """Plays a `Plan` against ``target``. ``now`` reads real seconds; ``progress`` hears (cells done, cells in all)."""

    def __init__(
        self, target: Target, plan: Plan, chance: random.Random, now: Callable[[], float], *, model: str = "", key: str = ""
    ) -> None:
        self._target = target
        self._plan = plan
        self._key = key
        self._model = model
        self._now = now
        self._prompts = Prompts(chance)
        self._decode: list[DecodeRow] = []
        self._prefill: list[PrefillRow] = []
        self._left_out: list[str] = []

    async def play(self, progress: Callable[[int, int], None]) -> Measured:
        """Measure every cell in turn, large and small interleaved so that a drift of the machine is no trend. Raises ForebayError where
        the target can't be reached or refuses."""
        plan = self._plan
        client = Client(self._target, max(plan.sequences) + 1)
        try:
            model = await first_model(client, self._target, self._key, self._model)
            maker = RequestMaker(
                self._prompts,
                host=self._target.authority,
                prefix=self._target.prefix,
                model=model,
                chat=False,
                ignore_eos=True,
                service_tier=False,
            )
            # What is compiled or cached on a first request is no step; and a short prompt tells roughly how long a long one may be.
            for prompt in (min(plan.prompts), max(plan.prompts)):
                self._learn_length(prompt, (await self._batch(client, maker, 1, prompt, WARM_TOKENS))[0])
            cells = _order([(many, prompt) for many in plan.sequences for prompt in plan.prompts], plan.repeats)
            for place, (many, prompt) in enumerate(cells):
                progress(place, len(cells))
                await self._cell(client, maker, many, prompt)
            progress(len(cells), len(cells))
            left_out = tuple(dict.fromkeys(self._left_out))
            return Measured(model, tuple(self._decode), tuple(self._prefill), left_out, self._prompts.bytes_per_token)
        finally:
            await client.close()

    def _learn_length(self, prompt: int, timed: _Timed) -> None:
        if timed.usage.prompt_tokens:
            least, most = BYTES_PER_TOKEN_RANGE
            self._prompts.bytes_per_token = min(most, max(least, self._prompts.bytes_per_token * prompt / timed.usage.prompt_tokens))

    async def _cell(self, client: Client, maker: RequestMaker, many: int, prompt: int) -> None:
        lone = (await self._batch(client, maker, 1, prompt, LONE_TOKENS))[0]
        tokens = lone.usage.prompt_tokens or prompt
        if lone.usage.cached_tokens > CACHED_MOST * tokens:
            self._left_out.append(f"a lone prompt of {prompt} tokens: the engine had it in its prefix cache (take another --seed)")
        elif lone.stamps:
            self._prefill.append(PrefillRow(self._plan.prompts.index(prompt), tokens, lone.stamps[0] - lone.sent_s))
        batch = await self._batch(client, maker, many, prompt, self._plan.output_tokens)
        cell = self._plan.sequences.index(many) * len(self._plan.prompts) + self._plan.prompts.index(prompt)
        rows = windows(batch, cell)
        self._decode += rows
        if not rows:
            self._left_out.append(
                f"{many} × {prompt} tokens: not all of them decoded together for {WINDOW_STEPS} steps (more than the engine's slots?)"
            )

    async def _batch(self, client: Client, maker: RequestMaker, many: int, prompt: int, output: int) -> list[_Timed]:
        batch = [_Timed(maker.request(prompt, output, "", self._key), self._now) for _ in range(many)]
        for timed in batch:
            client.send(timed)
        try:
            ends = await asyncio.wait_for(asyncio.gather(*(timed.over for timed in batch)), self._plan.timeout_s)
        except TimeoutError:
            raise ForebayError(f"{many} requests of {prompt} tokens were not answered within {self._plan.timeout_s:.0f} s") from None
        for outcome, detail in ends:
            if outcome is not Outcome.COMPLETE or not batch[0].status == 200:
                raise ForebayError(f"the engine did not answer a request of {prompt} tokens: {outcome.value} {detail}")
        return batch


def _order(cells: Sequence[tuple[int, int]], repeats: int) -> list[tuple[int, int]]:
    """Each cell ``repeats`` times, alternating ends of the list."""
    once = [cells[place // 2] if place % 2 == 0 else cells[-1 - place // 2] for place in range(len(cells))]
    return once * repeats


def windows(batch: Sequence[_Timed], cell: int) -> list[DecodeRow]:
    """The stretches of ``batch`` in which all of it decoded and nothing else happened; none where there was no such time."""
    if any(len(timed.stamps) < WINDOW_STEPS for timed in batch):
        return []
    begin_s = max(timed.stamps[0] for timed in batch)
    end_s = min(timed.stamps[-1] for timed in batch)
    stamps = [np.array(timed.stamps) for timed in batch]
    steps = min(int(np.count_nonzero((each >= begin_s) & (each <= end_s))) for each in stamps) - 1
    if end_s <= begin_s or steps < WINDOW_STEPS:
        return []
    parts = min(WINDOWS_MAX, steps // WINDOW_STEPS)
    edges = np.linspace(begin_s, end_s, parts + 1)
    rows = []
    for left_s, right_s in pairwise(edges):
        paces, held = [], 0.0
        for timed, each in zip(batch, stamps, strict=True):
            inside = each[(each >= left_s) & (each <= right_s)]
            tokens_per_event = max(1.0, timed.usage.completion_tokens / len(each)) if timed.usage.completion_tokens else 1.0
            if len(inside) < 3:
                return []
            paces.append((inside[-1] - inside[0]) / ((len(inside) - 1) * tokens_per_event))
            emitted = (np.searchsorted(each, left_s) + len(inside) / 2) * tokens_per_event
            held += timed.usage.prompt_tokens + emitted
        rows.append(DecodeRow(cell, len(batch), float(held), float(np.median(paces)), _single_gaps(batch[0], left_s, right_s)))
    return rows


def _single_gaps(timed: _Timed, left_s: float, right_s: float) -> tuple[float, ...]:
    """Seconds from token to token between the two times; none where events hold several tokens, as single steps don't show then."""
    if timed.usage.completion_tokens > TOKENS_PER_EVENT_MOST * len(timed.stamps):
        return ()
    return tuple(after_s - before_s for before_s, after_s in pairwise(timed.stamps) if before_s >= left_s and after_s <= right_s)
