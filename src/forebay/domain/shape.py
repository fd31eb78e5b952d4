"""The size of a request in tokens: the unit of load, since two requests can differ a thousandfold in work."""

import msgspec


class Shape(msgspec.Struct, frozen=True):
    """Tokens of one request: all of its prompt, the part of it already cached, and its (estimated) output."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that must be prefilled."""
        return max(0, self.prompt_tokens - self.cached_tokens)

    @property
    def total_tokens(self) -> int:
        """KV tokens held at the end of the request."""
        return self.prompt_tokens + self.output_tokens


class Usage(msgspec.Struct, frozen=True):
    """What a finished (or cut) request really took; ``exact`` where the engine said so, else counted from the stream."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    exact: bool = True
