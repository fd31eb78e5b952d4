"""A running gateway's configuration file, read again when it has changed: taken whole, or refused and said.

It is looked at each second, and read once it has stood still for a second, so that no half written file counts; SIGHUP has it
read at once. What is refused leaves everything as it was, and is said in the log and on the metrics page until the file is right.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from forebay.app.files import TEAM_FILES_MAX, TEAMS_FOLDER
from forebay.app.gateway_wiring import GatewaySystem
from forebay.domain.errors import BadInput, ForebayError
from forebay.domain.events import Event
from forebay.spec.types import Spec

LOOK_EVERY_REAL_S = 1.0
_STARTED = "; nothing was started"
"""So ends what `config.load` says of a bad file; here something runs."""
Stamp = tuple[tuple[str, int, int, int], ...]
"""Of each file: name, time of its last change, size, inode."""


class Reloader:
    """Of one gateway. ``keep``: called with each configuration that was taken, for those who start later."""

    def __init__(self, path: Path, system: GatewaySystem, keep: Callable[[Spec], object], kept: Path | None = None) -> None:
        """``kept``: what the gateway's configuration was read from, where that is not the file at ``path`` itself."""
        self._path = path
        self._system = system
        self._keep = keep
        self._at_once = asyncio.Event()
        self._seen = self._stamp()
        self._read: Stamp = self._seen if kept is None or self._is_older(kept) else ()

    def ask(self) -> None:
        """Read it at once, changed or not."""
        self._at_once.set()

    async def run(self) -> None:
        """Look after it for ever."""
        while True:
            try:
                await asyncio.wait_for(self._at_once.wait(), LOOK_EVERY_REAL_S)
            except TimeoutError:
                stamp, before = await asyncio.to_thread(self._stamp), self._seen
                self._seen = stamp
                if stamp == self._read or stamp != before:
                    continue
            self._at_once.clear()
            await self.reload()

    async def reload(self) -> None:
        """Read it, and serve by it if it is right."""
        from forebay.app import config  # YAML and the shipped profiles: a gateway that is never reloaded does without

        gateway = self._system.gateway
        self._read = await asyncio.to_thread(self._stamp)
        try:
            spec = await asyncio.to_thread(config.load, self._path)
            changed = spec != gateway.spec
            gateway.reload(spec)
        except BadInput as error:
            gateway.reloads.refused += 1
            gateway.reloads.waits = True
            self._say("config_refused", f"the configuration before is kept: {str(error).removesuffix(_STARTED)}")
            return
        was_refused, gateway.reloads.waits = gateway.reloads.waits, False
        if not changed:
            if was_refused:  # or the log's last word would be the refusal
                self._say("config_taken", f"{self._path} says again what is served by all the while")
            return
        gateway.reloads.taken += 1
        try:
            self._keep(spec)
        except ForebayError as error:
            self._say("config_not_kept", f"a gateway that starts again would serve by the configuration before: {error}")
        self._say("config_taken", f"{self._path} is served by from now on; requests inside keep what they came with")

    def _is_older(self, kept: Path) -> bool:
        """Whether all of the configuration was there when it was kept: an edit that a crash came before is taken by who starts then."""
        try:
            kept_ns = kept.stat().st_mtime_ns
        except OSError:
            return False
        return all(changed_ns < kept_ns for _, changed_ns, _, _ in self._seen)

    def _stamp(self) -> Stamp:
        folder = self._path.parent / TEAMS_FOLDER
        try:
            teams = sorted(folder.iterdir())[:TEAM_FILES_MAX] if folder.is_dir() else []
        except OSError:
            teams = []
        found = []
        for path in (self._path, *teams):
            try:
                stat = path.stat()
                found.append((path.name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
            except OSError:
                found.append((path.name, 0, 0, 0))
        return tuple(found)

    def _say(self, kind: str, message: str) -> None:
        clock = self._system.clock
        self._system.sink.emit(Event(kind, clock.now_s(), clock.wall_s(), "", message, {"gateway": self._system.gateway.name}))
