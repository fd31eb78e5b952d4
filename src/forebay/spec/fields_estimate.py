"""The tables of how the size of a prompt is told before it runs, and where long ones go."""

from forebay.spec.fields_scaling import TOKENS_MAX
from forebay.spec.kinds import Number, Text, Whole
from forebay.spec.records import Field, Record
from forebay.spec.types import Estimate, LongContext

_TOKENIZER = Text("a file's path", r"[^\x00-\x1f]{1,4096}", "models/llama/tokenizer.json")
ESTIMATE = Record(
    "estimate",
    "How the size of a prompt is told before it runs.",
    (
        Field(
            "tokenizer",
            _TOKENIZER,
            "The model's `tokenizer.json`, relative to this file: prompts are counted by it. It needs the extra `exact`.",
            "tokenizer",
            default="from bytes, by a learned ratio",
        ),
        Field("image_tokens", Whole(0, 10**6, 576), "What each image in a prompt takes.", "image_tokens"),
        Field("audio_tokens_per_s", Number(0, 1e5, example=12.5), "What each second of audio takes.", "audio_tokens_per_s"),
    ),
    Estimate,
)
LONG_CONTEXT = Record(
    "long_context",
    "Long requests are kept apart, in a pool of their own.",
    (
        Field(
            "pool",
            Text("a name: letters, digits, . _ and -", r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "chat-long"),
            "Another pool that serves the same model.",
            "pool",
            required=True,
        ),
        Field("above", Whole(1, TOKENS_MAX, 32_000), "Prompt tokens, but for those foreseen to be cached.", "above_tokens"),
    ),
    LongContext,
)
