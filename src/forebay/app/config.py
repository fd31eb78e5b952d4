"""Reads a ``forebay.yaml`` and the ``teams/*.yaml`` beside it from disk; `spec` judges the text.

File trouble (missing, a folder, unreadable, not UTF-8, too large) is reported like any other problem of a configuration,
so that whoever starts Forebay gets one kind of error.
"""

import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from forebay.app.files import TEAM_FILES_MAX, TEAMS_FOLDER
from forebay.app.listening import ANY_HOSTS
from forebay.domain.errors import BadInput
from forebay.domain.profile import Profile
from forebay.spec.decode import BadSpec, decode, decode_profiles
from forebay.spec.problems import Place, Problems
from forebay.spec.tree import TEXT_BYTES_MAX, decode_utf8
from forebay.spec.types import Pool, Spec, Tls

_SUFFIXES = frozenset({".yaml", ".yml"})


def load(path: Path, profiles: Mapping[str, Profile] | None = None, *, again: bool = False) -> Spec:
    """The `Spec` at ``path``; ``profiles`` default to the shipped ones. Raises BadSpec with every problem of every file.

    ``again``: something is served by it already, so what might have nothing to read for ever (a pipe, a device) is not opened.
    """
    if profiles is None:
        from forebay.engine.catalogue import PROFILES

        profiles = PROFILES
    bad: list[BadSpec] = []
    text = _text(path, bad, again)
    teams = {str(file): _text(file, bad, again) for file in _team_files(path, bad)}
    if text is not None:
        try:
            spec = decode(text, str(path), profiles, {name: own for name, own in teams.items() if own is not None})
        except BadSpec as error:
            bad.append(error)
        else:
            if not bad:
                return _with_paths(spec, path)
    raise BadSpec([problem for each in bad for problem in each.problems], sum(each.count - len(each.problems) for each in bad))


def load_profiles(path: Path) -> dict[str, Profile]:
    """The profiles of the file at ``path``, as declared and as its pools use them; it may have nothing but profiles. Raises BadSpec."""
    from forebay.engine.catalogue import PROFILES

    bad: list[BadSpec] = []
    text = _text(path, bad)
    if text is None:
        raise bad[0]
    declared, has_pools = decode_profiles(text, str(path), PROFILES)
    of_pools = load(path).pools if has_pools or not declared else ()
    return {**declared, **{pool.profile.name: pool.profile for pool in of_pools if pool.profile}}


def check_live(spec: Spec) -> None:
    """Raises BadInput for what the lab plays and one machine can't do: there are no nodes here to keep warm."""
    for pool in spec.pools:
        if pool.scaling.warm_max:
            raise BadInput(
                f"pools.{pool.name}.scaling.warm.max: found {pool.scaling.warm_max}; allowed: 0 with `forebay up`, which starts engines on "
                "this machine and has no nodes to keep warm; leave `warm` out, or play the file with `forebay compare`"
            )
    if spec.join is not None and spec.join.host in ANY_HOSTS:
        found = f"gateway.join: found {spec.join.host}:{spec.join.port}"
        raise BadInput(f"{found}; allowed: an address by which other machines reach this one: its gateways are reached there too")


def _with_paths(spec: Spec, path: Path) -> Spec:
    """Paths in a configuration are relative to it, wherever it is read from."""
    folder = path.resolve().parent
    pools = tuple(_pool_with_paths(pool, folder) for pool in spec.pools)
    tls = None if spec.tls is None else Tls(str(folder / spec.tls.cert), str(folder / spec.tls.key))
    return msgspec.structs.replace(spec, pools=pools, tls=tls)


def _pool_with_paths(pool: Pool, folder: Path) -> Pool:
    engine, estimate = pool.engine, pool.estimate
    keys = tuple(msgspec.structs.replace(key, key_file=_below(folder, key.key_file)) for key in engine.keys)
    engine = msgspec.structs.replace(engine, keys=keys, key_file=_below(folder, engine.key_file))
    return msgspec.structs.replace(
        pool, engine=engine, estimate=msgspec.structs.replace(estimate, tokenizer=_below(folder, estimate.tokenizer))
    )


def _below(folder: Path, path: str) -> str:
    return str(folder / path) if path else ""


def _team_files(path: Path, bad: list[BadSpec]) -> list[Path]:
    folder = path.parent / TEAMS_FOLDER
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in _SUFFIXES) if folder.is_dir() else []
    except OSError as error:
        bad.append(_trouble(folder, error.strerror or "an error", "a folder that can be read"))
        return []
    if len(files) > TEAM_FILES_MAX:
        bad.append(_trouble(folder, f"{len(files)} files", f"at most {TEAM_FILES_MAX}"))
    return files[:TEAM_FILES_MAX]


def _text(path: Path, bad: list[BadSpec], again: bool = False) -> str | None:
    try:
        if again and not path.is_dir() and not stat.S_ISREG(path.stat().st_mode):
            bad.append(_trouble(path, "a pipe or a device", "a file, to be read again", "put a file there"))
            return None
        with path.open("rb") as file:
            # One byte more than allowed is enough for the decoder to refuse it.
            data = file.read(TEXT_BYTES_MAX + 1)
        if len(data) > TEXT_BYTES_MAX:
            bad.append(_trouble(path, f"more than {TEXT_BYTES_MAX} bytes", f"at most {TEXT_BYTES_MAX} bytes"))
            return None
        return decode_utf8(data, str(path))
    except OSError as error:
        bad.append(_trouble(path, (error.strerror or "an error").lower(), "a YAML file that can be read", "examples are in examples/"))
    except BadSpec as error:
        bad.append(error)
    return None


def _trouble(path: Path, found: str, allowed: str, hint: str = "") -> BadSpec:
    problems = Problems()
    problems.add(Place(str(path), 1), found, allowed, hint)
    return BadSpec(problems.kept)
