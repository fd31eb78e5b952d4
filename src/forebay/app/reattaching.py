"""The controller's look at the configuration file: of what changed, the lists of attached engines and their keys are its affair.

A file that is wrong leaves everything as it was, and is said in the log, in the history and on the metrics page until it is right, as the
gateway does for its own part: the two may read it at different moments, and in different environments.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from forebay.app.watched_file import WatchedFile
from forebay.domain.errors import BadInput
from forebay.domain.reloads import Reloads
from forebay.spec.types import Spec


class Owner(Protocol):
    """The controller."""

    spec: Spec
    """What it goes by."""
    reloads: Reloads

    def tell(self, kind: str, message: str) -> None:
        """An event, for the log and the history."""
        ...


class Reattaching(WatchedFile):
    """``take``: called with each configuration that can be read; raises BadInput for one that needs a new start."""

    def __init__(self, path: Path, take: Callable[[Spec], object], kept: Path, owner: Owner) -> None:
        """``kept``: what the controller's configuration was read from."""
        super().__init__(path, kept)
        self._take = take
        self._owner = owner

    async def reload(self) -> None:
        """Read it, and attach to what it lists if it is right."""
        from forebay.app import config  # YAML and the shipped profiles: a controller whose file is never edited does without

        owner, reloads, before = self._owner, self._owner.reloads, self._owner.spec
        try:
            spec = await asyncio.to_thread(config.load, self._path, again=True)
            self._take(spec)
        except BadInput as error:
            owner.tell("config_refused", f"the controller keeps the configuration before: {reloads.refuse(error)}")
            return
        reloads.taken += spec != before
        if reloads.accept():  # or the log's last word would be the refusal
            owner.tell("config_taken", f"{self._path} is right again, and the controller goes by it")
