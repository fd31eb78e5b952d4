"""The two ways to say where a key stands that somebody else's engine asks for. The key itself never stands in the file."""

from forebay.spec.kinds import Text
from forebay.spec.records import Field

VARIABLE = Text("a variable's name", r"[A-Za-z_][A-Za-z0-9_]{0,127}", "VLLM_API_KEY", secret=True)
"""Whoever writes the key itself here by mistake does not read it again in the error."""
KEY_FILE = Text("a path", r"[^\x00-\x1f]{1,1024}", "keys/vllm", secret=True)
KEY_FIELDS = (
    Field("key_env", VARIABLE, "Environment variable, of gateway and controller, with the key that the engine asks for.", "key_env"),
    Field("key_file", KEY_FILE, "The same in a file, alone, which is read again when it changes; relative to this one.", "key_file"),
)
_NOT_HERE = "a key never stands in this file: name the environment variable that holds it in key_env{}"
KEY_MISTAKES = tuple(
    (word, _NOT_HERE.format(", or a file in key_file"))
    for word in ("key", "api_key", "apikey", "api-key", "token", "authorization", "bearer", "password", "secret")
)
"""Words under which a key is written inline, and what to do instead."""
POOL_KEY_MISTAKES = (
    *((word, f"{said} of engine") for word, said in KEY_MISTAKES),
    *((field.key, f"write it below engine: {{{field.key}: …}}") for field in KEY_FIELDS),
)
SPILL_KEY_MISTAKES = tuple((word, _NOT_HERE.format("")) for word, _ in KEY_MISTAKES)
