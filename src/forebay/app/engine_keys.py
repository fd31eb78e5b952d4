"""The keys of engines that ask for one: read where the configuration says that they stand, and given to what speaks with engines.

Nothing else of Forebay has them: the connection puts the header in, so that no request is made without it and none shows it. A file is
read again when it changes; one that can't be used then is said, and the key before is kept.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from forebay.domain.errors import BadInput
from forebay.spec.engine_keys import key_of, shown, written_at
from forebay.spec.types import EngineKey, Pool, Spec

LOOK_EVERY_REAL_S = 1.0
KEY_BYTES_MAX = 4096
MET_MAX = 10_000
"""Addresses that are known beside those listed: engines that Forebay starts have ports, of which there are fewer."""
_Place = tuple[str, str]
"""A variable's name, and a file's path: one of the two, or none."""


class Read(msgspec.Struct, frozen=True):
    """What `EngineKeys.read` found. It holds keys: nobody shows it."""

    spec: Spec
    keys: dict[_Place, bytes]
    stamps: dict[str, object]


class EngineKeys:
    """Of one process. ``authorize(url, key)`` is told what to show at an address; an empty key is none."""

    def __init__(self, spec: Spec, authorize: Callable[[str, bytes], None], environment: Mapping[str, str] = os.environ) -> None:
        """Raises BadInput where a key isn't there, or can't be sent."""
        self._authorize = authorize
        self._environment = environment
        self._met: dict[str, str] = {}
        self._pools: dict[str, Pool] = {}
        self._keys: dict[_Place, bytes] = {}
        self._stamps: dict[str, object] = {}
        self.use(self.read(spec))

    def read(self, spec: Spec) -> "Read":
        """All keys that ``spec`` names, as they are now. Raises BadInput where one can't be used; nothing has changed by then."""
        keys: dict[_Place, bytes] = {}
        stamps = {key.key_file: _stamp(key.key_file) for _, _, key in _wanted(spec) if key.key_file}
        for pool, url, key in _wanted(spec):
            found = _read(key, self._environment)
            if isinstance(found, str):
                raise BadInput(f"{written_at(pool, url)}: {found}")
            keys[key.key_env, key.key_file] = found
        return Read(spec, keys, stamps)

    def use(self, read: "Read") -> bool:
        """Go by these from now on; whether any is another than before."""
        pools = {pool.name: pool for pool in read.spec.pools}
        changed = (read.keys, pools) != (self._keys, self._pools)
        self._pools, self._keys, self._stamps = pools, read.keys, read.stamps
        self._met.update({url: pool.name for pool in read.spec.pools for url in pool.engine.attach})
        self._tell_all()
        return changed

    def meet(self, pool: str, url: str) -> None:
        """An engine of ``pool`` is at ``url``: it is shown its key before anything is sent there."""
        if self._met.get(url) != pool:
            self._met.pop(url, None)
            self._met[url] = pool
            if len(self._met) > MET_MAX:
                gone = next(iter(self._met))
                del self._met[gone]
                self._authorize(gone, b"")
            self._tell(url)

    def refresh(self) -> list[tuple[str, str]]:
        """Take in the files that have changed; ``(kind, words)`` of each change."""
        told = []
        for pool, url, key in _wanted_of(self._pools.values()):
            stamp = _stamp(key.key_file) if key.key_file else None
            if not key.key_file or stamp == self._stamps.get(key.key_file):
                continue
            self._stamps[key.key_file] = stamp
            found, where = _read(key, self._environment), written_at(pool, url)
            if isinstance(found, str):
                told.append(("engine_key_refused", f"{where}: {found}; the key before is kept"))
            elif found != self._keys.get(("", key.key_file)):
                self._keys["", key.key_file] = found
                told.append(("engine_key_taken", f"{where}: the key in {key.key_file} has changed, and is shown from now on"))
        if told:
            self._tell_all()
        return told

    async def watch(self, say: Callable[[str, str], None], changed: Callable[[], None]) -> None:
        """Refresh for ever; ``changed`` is called where an engine is shown another key."""
        while True:
            await asyncio.sleep(LOOK_EVERY_REAL_S)
            told = self.refresh()
            for kind, words in told:
                say(kind, words)
            if any(kind == "engine_key_taken" for kind, _ in told):
                changed()

    def _tell_all(self) -> None:
        for url in self._met:
            self._tell(url)

    def _tell(self, url: str) -> None:
        pool = self._pools.get(self._met[url])
        key = key_of(pool.engine, url) if pool is not None else EngineKey(url)
        self._authorize(url, self._keys.get((key.key_env, key.key_file), b""))


def engine_key_troubles(spec: Spec, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Where a key can't be used, and why; neither gateway nor controller starts with this environment."""
    told = set()
    for pool, url, key in _wanted(spec):
        found, where = _read(key, environment), written_at(pool, url)
        if isinstance(found, str) and (where, found) not in told:
            told.add((where, found))
            yield f"{where}: {found}"


def _wanted(spec: Spec) -> Iterator[tuple[Pool, str, EngineKey]]:
    return _wanted_of(spec.pools)


def _wanted_of(pools: Iterable[Pool]) -> Iterator[tuple[Pool, str, EngineKey]]:
    """Every place that a key is named at, with an engine that it is for."""
    for pool in pools:
        engine = pool.engine
        if engine.key_env or engine.key_file:
            yield pool, "", EngineKey("", engine.key_env, engine.key_file)
        for key in engine.keys:
            if key.key_env or key.key_file:
                yield pool, key.url, key


def _read(key: EngineKey, environment: Mapping[str, str]) -> bytes | str:
    """The key, or what was found in its place and what is allowed, without a word of it."""
    if key.key_env:
        what, found, again = f"key_env: found a {shown(key.key_env)}", environment.get(key.key_env, ""), "set it anew"
        if not found:
            absent = f"key_env: found no {shown(key.key_env)} in the environment"
            return f"{absent}, allowed: a variable with the engine's key; set it where Forebay is started"
    else:
        what, again = f"key_file: found a {key.key_file}", "write it anew"
        try:
            if not stat.S_ISREG(os.stat(key.key_file).st_mode):  # a pipe would be waited for, by a process that has all else to do
                return f"{what}, which is a folder, pipe or device, allowed: a file with the engine's key alone; write it to one"
            with open(key.key_file, "rb") as file:
                read = file.read(KEY_BYTES_MAX + 1)
        except OSError as error:
            what = f"key_file: found {key.key_file}, which can't be read ({(error.strerror or 'an error').lower()})"
            return f"{what}, allowed: a file with the engine's key alone; write it there"
        if len(read) > KEY_BYTES_MAX or not read.strip():
            size = f"more than {KEY_BYTES_MAX} bytes" if read.strip() else "nothing"
            return f"key_file: found {size} in {key.key_file}, allowed: the engine's key alone, on one line; write it there"
        found = read.strip().decode("latin-1")
    if not found.isascii() or not found.isprintable() or " " in found:
        return f"{what} with blanks or control characters, allowed: visible ASCII, on one line; {again}"
    return found.encode()


def _stamp(path: str) -> object:
    try:
        told = Path(path).stat()
    except OSError:
        return None
    return told.st_mtime_ns, told.st_size, told.st_ino
