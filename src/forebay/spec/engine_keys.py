"""Which key an engine is shown, by where it stands; and what is said of an engine that asks for one, or refuses it."""

from forebay.spec.problems import Problems
from forebay.spec.records import Got
from forebay.spec.types import EngineKey, EngineKind, Pool

NAME_CHARS_MAX = 64


def build_keys(got: Got, problems: Problems) -> tuple[EngineKey, ...]:
    """Of the engines under ``attach`` that have one of their own."""
    keys = []
    for item in got.get("attach", ()):
        one = item.value
        if isinstance(one, Got):
            check_key(one, problems)
            if one.good() and ("key_env" in one or "key_file" in one):
                keys.append(EngineKey(**one.filled()))
    return tuple(keys)


def check_key(got: Got, problems: Problems) -> None:
    """Report a key that is said to stand at two places."""
    if "key_env" in got and "key_file" in got:
        problems.add(got.at("key_file"), "key_file beside key_env", "one of the two", "remove one of them")


def key_of(engine: EngineKind, url: str) -> EngineKey:
    """The engine's own at ``url``, or else its pool's."""
    return next((key for key in engine.keys if key.url == url), EngineKey(url, engine.key_env, engine.key_file))


def written_at(pool: Pool, url: str) -> str:
    """Where in the configuration the key of ``url`` is named, or would be."""
    own = any(key.url == url for key in pool.engine.keys)
    return f"pools.{pool.name}.attach {url}" if own else f"pools.{pool.name}.engine"


def refused(pool: Pool, url: str, status: int) -> str:
    """What an engine of ``pool`` does that answers ``status`` (401, 403), and what to do about it; to follow its name."""
    key = key_of(pool.engine, url)
    if key.key_env or key.key_file:
        place = f"key_env {shown(key.key_env)}" if key.key_env else f"key_file {key.key_file}"
        again = "set it anew and start again" if key.key_env else "write the right one there: it is read again at once"
        return f"refuses its key (it answers {status}): {written_at(pool, url)} has it from {place}; {again}"
    return (
        f"asks for a key (it answers {status}), and is given none: name the environment variable that holds it, or a file, with key_env or "
        f"key_file in pools.{pool.name}.engine, or in pools.{pool.name}.attach for this engine alone: {{url: {url}, key_env: …}}"
    )


def shown(variable: str) -> str:
    """The variable's name, unless it looks like the key itself, written there by mistake."""
    return variable if variable == variable.upper() and len(variable) <= NAME_CHARS_MAX else f"{variable[:3]}…"
