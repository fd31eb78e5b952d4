"""The tables of a pool's engines: how those that Forebay starts come to be, and what is known of those that run already."""

from forebay.spec import formats
from forebay.spec.fields_keys import KEY_FIELDS, KEY_MISTAKES
from forebay.spec.kinds import Choice, Flag, Text, duration
from forebay.spec.records import Either, Field, ListOf, MapOf, Record
from forebay.spec.types import EngineKey, EngineKind

LOOSE_TEXT = Text("text on one line", loose=True, example="0")
ENGINE = Record(
    "engine",
    "How the pool's engines come to be. Give `kind: emulated` or a `command`; for engines that already run, give `attach` in the pool.",
    (
        Field(
            "kind",
            Choice(("emulated", "command")),
            "`emulated` needs no GPU and behaves by the profile.",
            default="`command` if one is given",
        ),
        Field(
            "command",
            Either(
                formats.COMMAND_LINE.words,
                formats.COMMAND_LINE,
                ListOf(Text("text", loose=True, example="--port={port}"), "a list of arguments", least=1),
            ),
            "What starts one replica. `{port}`, `{replica}`, `{model}`, `{speed}` and `{devices}` (the lowest free GPU numbers) "
            "are filled in, in `env` too; there is no shell.",
        ),
        Field(
            "env",
            MapOf(Text("a variable's name", r"[A-Za-z_][A-Za-z0-9_]{0,127}", "HF_HOME"), LOOSE_TEXT, "variable"),
            "Environment of the command, added to Forebay's own.",
        ),
        Field("metrics", Choice(("vllm", "llamacpp")), "Whose metric names the engine's `/metrics` page uses.", "metrics"),
        Field(
            "health",
            Text("a path that starts with /", r"/[!-~]{0,255}", "/health"),
            "Answers 200 once the engine can serve.",
            "health_path",
        ),
        Field(
            "continue",
            Flag(),
            "Continue a cut answer on another replica, from the token ids that vLLM tells.",
            "continues",
            default="engines with vLLM's metrics",
        ),
        Field("abort_by_id", Flag(), "Tell the engine by POST /abort_requests of a client that left.", "abort_by_id"),
        *KEY_FIELDS,
        Field("ready_timeout", duration(above=True, example="15m"), "A start that takes longer has failed.", "ready_timeout_s"),
        Field("stop_grace", duration(example="10s"), "From SIGTERM to a second SIGTERM, and again to SIGKILL.", "stop_grace_s"),
    ),
    EngineKind,
    mistakes=KEY_MISTAKES,
)
ATTACHED = Record(
    "attached engine",
    "An engine that already runs, with a key of its own in place of the pool's.",
    (Field("url", formats.ENGINE_URL, "Its address.", "url", required=True), *KEY_FIELDS),
    EngineKey,
    mistakes=KEY_MISTAKES,
)
