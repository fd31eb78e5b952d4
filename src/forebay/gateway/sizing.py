"""What is known of a request's body beside its size: what its images and audio cost, and its text as `counting` counts it."""

from typing import Final

from forebay.domain.shape import Sized
from forebay.gateway.counting import counted
from forebay.gateway.media import media_of
from forebay.native import names_media
from forebay.ports.tokens import TokenCounter
from forebay.spec.types import Estimate

# In names of their own, that a compiled module need not look up.
_names_media: Final = names_media


class Sizing:
    """Of one pool. ``counter`` None: prompts are estimated by their bytes."""

    __slots__ = ("_cost", "counter")

    def __init__(self, cost: Estimate) -> None:
        self._cost = cost
        self.counter: TokenCounter | None = None

    def pictures(self, body: bytes) -> bool:
        """Whether there may be images or audio in ``body``."""
        return _names_media(body)

    def look(self, body: bytes) -> Sized | None:
        """What is known of ``body``; None: nothing but its size."""
        media = _names_media(body)
        if self.counter is None and not media:
            return None
        text_bytes, media_tokens = len(body), 0
        if media:
            found = media_of(body)
            text_bytes -= found.payload_bytes
            media_tokens = round(found.images * self._cost.image_tokens + found.audio_s * self._cost.audio_tokens_per_s)
        tokens, messages = (None, 0) if self.counter is None else counted(self.counter, body)
        return Sized(max(1, text_bytes), media_tokens, tokens, messages)
