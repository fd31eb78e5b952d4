"""A model's own tokenizer, as far as the gateway needs it."""

from typing import Protocol


class TokenCounter(Protocol):
    """Counts on the caller's thread: whoever asks bounds what is asked."""

    def count(self, text: str) -> int:
        """Tokens of ``text`` alone, without what a chat template puts around it."""
        ...
