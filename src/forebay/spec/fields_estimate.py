"""The table of a pool's estimates: how the size of a prompt is told before it runs."""

from forebay.spec.kinds import Number, Text, Whole
from forebay.spec.records import Field, Record
from forebay.spec.types import Estimate

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
