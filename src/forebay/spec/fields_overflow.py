"""The tables of a pool's overflow: what is done with requests that it can't start in time."""

from forebay.spec.fields_keys import SPILL_KEY_MISTAKES
from forebay.spec.kinds import Number, Text, Whole, duration
from forebay.spec.records import Field, ListOf, Record
from forebay.spec.types import Overflow, Spill

SPILLS_MAX = 8
REGION = Text("a region's name: letters, digits, . _ and -", r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "eu")
_MODEL = Text("a model's name: letters, digits, . _ : / @ + and -", r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}", "llama-3.1-8b")
PRICE = Record(
    "price of spilled tokens",
    "US dollars for a million tokens.",
    (
        Field("prompt", Number(0, 1e5, example=0.6), "Of prompts.", "prompt_usd_per_mtok"),
        Field("output", Number(0, 1e5, example=1.8), "Of answers.", "output_usd_per_mtok"),
    ),
    Spill,
)
SPILL = Record(
    "spill",
    "Other people's OpenAI-compatible engines: another region, or a provider.",
    (
        Field(
            "name",
            Text("a name: letters, digits, . _ and -", r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "paris"),
            "Shown in metrics and headers.",
            "name",
            required=True,
        ),
        Field(
            "url",
            Text("a URL with http:// or https://", r"https?://[^\s/?#]+[^\s?#]{0,2000}", "https://paris.example.com/v1"),
            "Up to and with `/v1`.",
            "url",
            required=True,
        ),
        Field("model", _MODEL, "What the model is called there.", "model", default="as here"),
        Field(
            "key_env",
            Text("a variable's name", r"[A-Za-z_][A-Za-z0-9_]{0,127}", "PARIS_API_KEY", secret=True),
            "Environment variable of the gateway with the API key there.",
            "key_env",
        ),
        Field("region", REGION, "Where it is: teams with a `residency` only go where it is one of theirs.", "region"),
        Field("budget", Number(0, 1e6, example=20), "Most US dollars within any hour. Without prices nothing is counted.", "usd_per_hour"),
        Field("price", PRICE, PRICE.doc),
        Field("streams", Whole(1, 100_000, 64), "Most requests there at once.", "streams_max"),
    ),
    Spill,
    mistakes=SPILL_KEY_MISTAKES,
)
OVERFLOW = Record(
    "overflow",
    "What is done with requests that the pool can't start in time, for teams that allow it, before they are refused.",
    (
        Field("degrade", _MODEL, "A smaller model, which another pool serves.", "degrade_to"),
        Field(
            "degrade_after",
            duration(above=True, example="5s"),
            "A request that waits longer goes there, and those after it.",
            "degrade_after_s",
        ),
        Field(
            "spill",
            ListOf(SPILL, "a list of other engines, each {name: …, url: …}", most=SPILLS_MAX),
            "Other engines, in order of preference.",
        ),
        Field(
            "spill_after",
            duration(above=True, example="15s"),
            "A request that waits longer goes there, or to a pool of the same model in another `region`, and those after it.",
            "spill_after_s",
        ),
    ),
    Overflow,
)
