"""What an answer of several sequences has told: each prompt's tokens, and each choice's where usage runs along.

vLLM numbers choices through all prompts, tells the ids of a prompt with the first event of each of its choices, and as running usage
that of one prompt and one choice: none of these is the whole, and the sum is only known once all prompts have been told.
"""

import msgspec

from forebay.domain.shape import Usage
from forebay.gateway.events import UNREADABLE, Event

_decode_index = msgspec.json.Decoder(int).decode


class Several:
    """Of one answer, to so many ``prompts`` and of so many ``sequences`` in all."""

    __slots__ = ("_each", "_output", "_prompts", "prompts", "sequences")

    def __init__(self, prompts: int, sequences: int) -> None:
        self.prompts = prompts
        self.sequences = sequences
        self._each = max(1, sequences // prompts)
        self._prompts: dict[int, int] = {}
        self._output: dict[int, int] = {}
        """By choice, where usage runs along."""

    def note(self, event: Event) -> None:
        """One of its events."""
        usage = event.usage.usage() if event.usage is not None else None
        for choice in event.choices:
            ids = bytes(choice.prompt_token_ids) or bytes(event.prompt_token_ids)
            told = ids.startswith(b"[")
            if not (told or usage is not None):
                continue
            index = _index(choice.index)
            if not 0 <= index < self.sequences:
                continue
            if usage is not None:
                self._output[index] = usage.output_tokens
            self._prompts[index // self._each] = ids.count(b",") + 1 if told else usage.prompt_tokens if usage is not None else 0

    def usage(self, tokens: int, estimated_prompt_tokens: int) -> Usage | None:
        """Of all of it, where ``tokens`` were told as ids; prompts of which nothing has come count as estimated. None: nothing was told."""
        output_tokens = tokens or sum(self._output.values())
        if not (output_tokens or self._prompts):
            return None
        missing = self.prompts - len(self._prompts)
        prompt_tokens = sum(self._prompts.values()) + estimated_prompt_tokens * missing // self.prompts
        return Usage(prompt_tokens, output_tokens, exact=not missing)


def _index(raw: msgspec.Raw) -> int:
    try:
        return _decode_index(raw)
    except UNREADABLE:
        return -1
