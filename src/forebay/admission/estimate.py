"""Token shapes from what is known before a request runs: its bytes and its limits, and what such requests took before.

Prompt tokens are bytes ÷ a learned ratio, output tokens a learned quantile: tokenising would cost more than the relay
itself, and the output's length is not knowable. Both are learned per (team, model) from finished requests; a team that
is new to a model starts from what the model's other teams showed. Errors only shift when requests start: estimates are
clamped to the context limit, never refused on, since only the engine counts exactly.

Of an answer under way more is known: that it is longer than what it has emitted. `expected_output` is the same quantile among the
answers that were longer than that.
"""

import math
from typing import Final

from forebay.domain.shape import Shape, Sized, Usage

TABLE_MAX = 4096
"""(team, model) pairs remembered; the one that learned longest ago is forgotten first."""
BYTES_PER_TOKEN_START = 3.5
"""Below what English (4-4.5) and most code has, so that a first estimate is rather too long."""
BYTES_PER_TOKEN_MIN: Final = 1.0
"""Byte-level tokenisers make no token of less than a byte; a lower ratio is a chat template's or a bug's."""
START_TOKENS = 256.0
"""Weight of the start ratio, in prompt tokens."""
KEPT_LENGTHS: Final = 0.998
"""What each finished request leaves of the weight of earlier lengths: a tail needs hundreds."""
KEPT: Final = 31 / 32
"""What each finished request leaves of the weight of those before it."""
OUTPUT_TOKENS_START = 256.0
OUTPUT_QUANTILE: Final = 0.7
"""Above the mean of usual (skewed) lengths, so that sums over a batch err on the safe side."""
GAIN_MAX: Final = 1.0
GAIN_MIN: Final = 0.02
"""Step of the quantile in its logarithm: from large while little is known to this, which goes on following changes."""


LENGTH_BUCKETS: Final = 48
"""Of output lengths, each half as long again as the one two before: up to 16 million tokens."""
_LONGER_SEEN_MIN = 8.0
"""Answers longer than what was emitted, as they weigh now, before their quantile is trusted."""
_WEIGHT_MAX: Final = 1e12
OVERHEAD_TOKENS_START = 5.0
"""What a chat template puts around a message: Llama 3 has 5, ChatML 4…"""
OVERHEAD_TOKENS_MAX = 1000.0
"""…and where it has a page of instructions, hundreds."""
_OVERHEAD_MESSAGES_START = 16.0

# In names of their own, that a compiled module need not look up.
_shape: Final = Shape
_log2: Final = math.log2


class _Overhead:
    """Tokens per message that a model's prompts have beside those of their texts: decaying sums."""

    __slots__ = ("messages", "tokens")

    def __init__(self) -> None:
        self.messages = _OVERHEAD_MESSAGES_START
        self.tokens = OVERHEAD_TOKENS_START * _OVERHEAD_MESSAGES_START

    def learn(self, tokens: int, messages: int) -> None:
        self.messages = self.messages * KEPT + messages
        self.tokens = self.tokens * KEPT + tokens

    def of(self, messages: int) -> float:
        return min(OVERHEAD_TOKENS_MAX, max(0.0, self.tokens / self.messages)) * messages


class _Lengths:
    """How many answers were how long; the newest has the largest weight, so that older ones weigh less without being touched."""

    __slots__ = ("_counts", "_weight")

    def __init__(self) -> None:
        self._counts = [0.0] * LENGTH_BUCKETS
        self._weight = 1.0

    def add(self, tokens: float) -> None:
        self._weight /= KEPT_LENGTHS
        self._counts[_bucket(tokens)] += self._weight
        if self._weight > _WEIGHT_MAX:
            self._counts = [count / self._weight for count in self._counts]
            self._weight = 1.0

    def beyond(self, tokens: int) -> int | None:
        """The quantile of those longer than ``tokens``; None where too few were."""
        first = _bucket(tokens) + 1
        longer = sum(self._counts[first:])
        if longer < _LONGER_SEEN_MIN * self._weight:
            return None
        reached = 0.0
        for bucket in range(first, LENGTH_BUCKETS):
            reached += self._counts[bucket]
            if reached >= OUTPUT_QUANTILE * longer:
                return math.ceil(2 ** ((bucket + 1) / 2))
        return None


def _bucket(tokens: float) -> int:
    return min(LENGTH_BUCKETS - 1, int(2 * _log2(tokens))) if tokens >= 1 else 0


class _Learned:
    """What one (team, model) showed. Bytes and tokens are decaying sums: long prompts weigh as much as they cost."""

    __slots__ = ("bytes", "lengths", "outputs_seen", "quantile_tokens", "tokens")

    def __init__(self, start: "_Learned | None") -> None:
        ratio: float = start.bytes / start.tokens if start else BYTES_PER_TOKEN_START
        self.tokens: float = START_TOKENS
        self.bytes: float = START_TOKENS * ratio
        self.quantile_tokens: float = start.quantile_tokens if start else OUTPUT_TOKENS_START
        self.outputs_seen = 0
        self.lengths = _Lengths()

    def prompt(self, body_bytes: int, prompt_tokens: int) -> None:
        self.bytes = self.bytes * KEPT + max(body_bytes, prompt_tokens * BYTES_PER_TOKEN_MIN)
        self.tokens = self.tokens * KEPT + prompt_tokens

    def output(self, output_tokens: float) -> None:
        """One step of stochastic approximation: up by the quantile's weight or down by the rest, so that they cancel out there."""
        self.outputs_seen += 1
        self.lengths.add(output_tokens)
        gain = max(GAIN_MIN, GAIN_MAX / self.outputs_seen)
        step = OUTPUT_QUANTILE if output_tokens > self.quantile_tokens else OUTPUT_QUANTILE - 1
        self.quantile_tokens = max(1.0, self.quantile_tokens * math.exp(gain * step))


class Estimator:
    """Deterministic: the same calls give the same estimates."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], _Learned] = {}
        self._start = _Learned(None)
        self._overheads: dict[str, _Overhead] = {}

    def shape(
        self,
        team: str,
        model: str,
        body_bytes: int,
        max_tokens: int | None,
        n: int,
        context_tokens: int,
        sized: Sized | None = None,
        prompts: int = 1,
    ) -> Shape:
        """The estimated shape of a request of ``body_bytes`` that asks for ``n`` answers of at most ``max_tokens`` tokens each.

        ``max_tokens`` None: no limit but the context's. Prompt and each answer together stay within ``context_tokens``.
        ``sized``: what is known of the body beside its size. ``prompts``: so many are in it, and each has ``n`` answers.
        """
        learned = self._of(team, model)
        prompt_tokens = self._prompt_tokens(learned, model, body_bytes, sized)
        one_tokens = prompt_tokens if prompts <= 1 else -(-prompt_tokens // prompts)
        if one_tokens >= context_tokens:
            one_tokens = context_tokens - 1
        if one_tokens < 1:
            one_tokens = 1
        each_max = context_tokens - one_tokens
        if max_tokens is not None and max_tokens < each_max:
            each_max = max_tokens
        if each_max < 1:
            each_max = 1
        if n < 1:
            n = 1
        each = math.ceil(learned.quantile_tokens)
        if each > each_max:
            each = each_max
        if prompts <= 1:
            return _shape(one_tokens, each * n, 0, each_max * n, n)
        n *= prompts
        return _shape(max(prompts, min(prompt_tokens, one_tokens * prompts)), each * n, 0, each_max * n, n, 0, prompts)

    def inputs(self, team: str, model: str, body_bytes: int, context_tokens: int, sized: Sized | None = None) -> Shape:
        """The same where inputs are only read, as for embeddings: as many as it takes for none to be longer than ``context_tokens``.

        Nothing grows, and what has been read is let go of. So all of it has to be prefilled, but there is never more than about a
        context of it in the KV, in one slot after the other.
        """
        prompt_tokens = max(1, self._prompt_tokens(self._of(team, model), model, body_bytes, sized))
        most = max(1, context_tokens - 1)
        if prompt_tokens <= most:
            return _shape(prompt_tokens, 1, 0, 1)
        return _shape(prompt_tokens, 1, 0, 1, 1, prompt_tokens - most, -(-prompt_tokens // most))

    def _of(self, team: str, model: str) -> _Learned:
        table = self._table
        return table.get((team, model)) or table.get(("", model)) or self._start

    def _prompt_tokens(self, learned: _Learned, model: str, body_bytes: int, sized: Sized | None) -> int:
        """Of all that is in the body."""
        if sized is None:
            return math.ceil(body_bytes * learned.tokens / learned.bytes)
        if sized.counted_tokens is None:
            return math.ceil(sized.text_bytes * learned.tokens / learned.bytes) + sized.media_tokens
        overhead = self._overheads.get(model) or _Overhead()
        return sized.counted_tokens + round(overhead.of(sized.messages)) + sized.media_tokens

    def expected_output(self, team: str, model: str, emitted_tokens: int) -> int | None:
        """The output to expect of one answer that has emitted so much and goes on; None where too few like it were seen."""
        for key in ((team, model), ("", model)):
            learned = self._table.get(key)
            if learned is not None and (expected := learned.lengths.beyond(emitted_tokens)) is not None:
                return expected
        return None

    def learn(self, team: str, model: str, body_bytes: int, usage: Usage, n: int = 1, sized: Sized | None = None) -> None:
        """Take a finished request into account: ``n`` answers to ``body_bytes``, as the engine counted them.

        Counts that aren't exact are ignored: a cut stream says how long it was allowed to be, not how long it would have been.
        """
        if not usage.exact or usage.prompt_tokens <= 0:
            return
        of_model = self._learned("", model)
        learned = self._learned(team, model) if team else of_model
        # What images really took is not told apart, so their prompts teach nothing of text.
        text_bytes = body_bytes if sized is None else 0 if sized.media_tokens else sized.text_bytes
        for each in (of_model,) if learned is of_model else (of_model, learned):
            if text_bytes:
                each.prompt(text_bytes, usage.prompt_tokens)
            each.output(usage.output_tokens / max(1, n))
        if text_bytes and sized is not None and sized.counted_tokens is not None:
            self._learn_overhead(model, usage.prompt_tokens - sized.counted_tokens, sized.messages)

    def _learn_overhead(self, model: str, tokens: int, messages: int) -> None:
        overhead = self._overheads.get(model)
        if overhead is None:
            if len(self._overheads) >= TABLE_MAX:
                del self._overheads[next(iter(self._overheads))]
            overhead = self._overheads[model] = _Overhead()
        overhead.learn(tokens, messages)

    def _learned(self, team: str, model: str) -> _Learned:
        """The entry, made if need be, and moved to the end of the table: its first entry is the one to forget."""
        key = (team, model)
        learned = self._table.pop(key, None)
        if learned is None:
            learned = _Learned(self._table.get(("", model)))
            if len(self._table) >= TABLE_MAX:
                del self._table[next(iter(self._table))]
        self._table[key] = learned
        return learned
