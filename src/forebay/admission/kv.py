"""How much KV memory a set of running sequences will hold at its worst moment, if all decode in lockstep.

A sequence holds ``cur`` tokens now and will generate ``left`` more, then frees all. The sum can only be at a maximum
just before one of them ends. Sorted by ``left``, the longest first, the k longest still run when the k-th ends, each
having grown by its ``left_k``: the peak is ``max_k(left_k·k + cur_1 + … + cur_k)``. Requests that end early free
memory before the long ones grow, so this admits far more than adding up worst cases (the test is LightLLM's, also in
the VTC artifact). It is as good as the estimates of ``left``; where they are short, the engine preempts.
"""

from collections.abc import Iterable

OUTLIVED_TOKENS_MIN = 16
"""A sequence that outlived its estimate is expected to emit at least this many more tokens."""


def peak_kv_tokens(sequences: Iterable[tuple[int, int]]) -> int:
    """The largest sum of KV tokens that ``(left, cur)`` sequences reach together; 0 for none. O(n log n)."""
    peak = held = 0
    for count, (left, cur) in enumerate(sorted(sequences, reverse=True), start=1):
        held += cur
        reached = left * count + held
        if reached > peak:
            peak = reached
    return peak


def outlived_tokens(emitted_tokens: int, output_tokens_max: int) -> int:
    """The output to expect of a request that emitted as much as was estimated and goes on.

    Half of what it has emitted more (output lengths have long tails: the longer one has run, the longer it will), at
    least ``OUTLIVED_TOKENS_MIN``, but no more than ``output_tokens_max`` where that is known (not 0).
    """
    expected = emitted_tokens + max(OUTLIVED_TOKENS_MIN, emitted_tokens // 2)
    if output_tokens_max:
        expected = min(expected, output_tokens_max)
    return max(expected, emitted_tokens)
