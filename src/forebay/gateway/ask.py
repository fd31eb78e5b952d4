"""The few fields of a request body that the gateway reads, with their types; `body` decodes them."""

from typing import final

import msgspec
from msgspec.structs import force_setattr


class StreamOptions(msgspec.Struct, frozen=True, gc=False):
    """OpenAI's ``include_usage``, and vLLM's ``continuous_usage_stats``."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What is read of a body; all else is skipped, and passed on."""

    model: str
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    service_tier: str | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    cache_salt: str | list[str] | None = None
    """vLLM's and SGLang's: it shares what it has cached with requests of the same salt only."""


class LooseAsk(Ask, frozen=True, gc=False):
    """Of endpoints where ``model`` may be left out: engines serve one."""

    model: str = ""


NOTHING = msgspec.Raw()
"""What a body does not have."""


@final
class OneAsk(Ask, frozen=True, gc=False):
    """Of such an endpoint, where the body has no list: a prompt, and perhaps another as vLLM's embeddings."""

    prompt_embeds: msgspec.Raw = NOTHING


@final
class ListedAsk(Ask, frozen=True, gc=False):
    """Of endpoints that may be asked for answers to several prompts at once. The lists are there until they have been counted."""

    prompt: msgspec.Raw = NOTHING
    prompt_embeds: msgspec.Raw = NOTHING
    messages: msgspec.Raw = NOTHING
    prompts: int = 1
    """How many there are; whatever a body calls so is written over."""

    def counted(self, prompts: int) -> None:
        """There are so many. What was counted is let go of: it would keep the body."""
        if self.prompt is not NOTHING:
            force_setattr(self, "prompt", NOTHING)
        if self.prompt_embeds is not NOTHING:
            force_setattr(self, "prompt_embeds", NOTHING)
        if self.messages is not NOTHING:
            force_setattr(self, "messages", NOTHING)
        if self.prompts != prompts:
            force_setattr(self, "prompts", max(1, prompts))


@final
class ResponsesAsk(Ask, frozen=True, gc=False):
    """``/v1/responses`` calls the bound otherwise, and may go on from an answer that an engine keeps."""

    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    request_id: str | None = None
    """vLLM's: what it will call the response."""


class Lead(msgspec.Struct, gc=False):
    """What ``/v1/messages`` and ``/v1/responses`` have for a prompt's beginning, in the order in which engines put it."""

    system: msgspec.Raw = NOTHING
    instructions: msgspec.Raw = NOTHING
    tools: msgspec.Raw = NOTHING
