"""The size of a request in tokens: the unit of load, since two requests can differ a thousandfold in work."""

import msgspec


class Shape(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one request: all of its prompt, the part of it already cached, and its (estimated) output."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    output_tokens_max: int = 0
    """Output that it can't exceed (``max_tokens`` and the context limit); 0: not known."""
    sequences: int = 1
    """Answers asked for, ``n`` of each prompt: each decodes on its own; ``output_tokens`` and its maximum are over all of them."""
    passing_tokens: int = 0
    """Of the prompt, what takes no memory beside the rest: inputs that are read one after the other, each let go of before the next."""
    prompts: int = 1
    """In one request, where it has a list of them: each has its own context; ``prompt_tokens`` are over all of them."""

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that must be prefilled."""
        return max(0, self.prompt_tokens - self.cached_tokens)

    @property
    def total_tokens(self) -> int:
        """KV tokens held at the end of the request."""
        return self.prompt_tokens + self.output_tokens

    @property
    def longest_tokens(self) -> int:
        """Of one of its sequences at its end: the context limit is on these."""
        return -(-self.prompt_tokens // self.prompts) - (-self.output_tokens // self.sequences)


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What a finished (or cut) request really took; ``exact`` where the engine said so, else counted from the stream."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    exact: bool = True


class Sized(msgspec.Struct, frozen=True, gc=False):
    """What is known of a body beside its size."""

    text_bytes: int
    """Without the payloads of images and audio."""
    media_tokens: int
    """Of those, as configured."""
    counted_tokens: int | None
    """Of its texts, by the model's own tokenizer; None: not counted."""
    messages: int
    """Around each of which a template puts something."""
