"""A running gateway's configuration file, read again when it has changed: taken whole, or refused and said.

What is refused leaves everything as it was, and is said in the log and on the metrics page until the file is right.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from forebay.app.gateway_wiring import GatewaySystem
from forebay.app.watched_file import WatchedFile
from forebay.domain.errors import BadInput, ForebayError
from forebay.spec.told import changes
from forebay.spec.types import Spec


class Reloader(WatchedFile):
    """Of one gateway. ``keep``: called with each configuration that was taken, for those who start later."""

    def __init__(self, path: Path, system: GatewaySystem, keep: Callable[[Spec], object], kept: Path | None = None) -> None:
        """``kept``: what the gateway's configuration was read from, where that is not the file at ``path`` itself."""
        super().__init__(path, kept)
        self._system = system
        self._keep = keep

    async def reload(self) -> None:
        """Read it, and serve by it if it is right."""
        from forebay.app import config  # YAML and the shipped profiles: a gateway that is never reloaded does without

        gateway, before = self._system.gateway, self._system.gateway.spec
        try:
            spec = await asyncio.to_thread(config.load, self._path, again=True)
            changed = spec != before
            keys = self._system.keys.read(spec) if self._system.keys is not None else None
            gateway.reload(spec)
        except BadInput as error:
            self._say("config_refused", f"the configuration before is kept: {gateway.reloads.refuse(error)}")
            return
        if self._system.keys is not None and keys is not None and self._system.keys.use(keys):
            gateway.desk.knock()
        was_refused = gateway.reloads.accept()
        if not changed:
            if was_refused:  # or the log's last word would be the refusal
                self._say("config_taken", f"{self._path} says again what is served by all the while")
            return
        gateway.reloads.taken += 1
        try:
            self._keep(spec)
        except ForebayError as error:
            self._say("config_not_kept", f"a gateway that starts again would serve by the configuration before: {error}")
        words = changes(before, spec)
        what = f": {words}" if words else ""
        self._say("config_taken", f"{self._path} is served by from now on; requests inside keep what they came with{what}")

    def _say(self, kind: str, message: str) -> None:
        self._system.say(kind, message)
