"""The controller's look at the configuration file: of what changed, the lists of attached engines are its affair.

A file that is wrong is refused here without a word: the gateway, which reads it too, has said so.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from forebay.app.watched_file import WatchedFile
from forebay.domain.errors import BadInput
from forebay.spec.types import Spec


class Reattaching(WatchedFile):
    """``take``: called with each configuration that can be read; raises BadInput for one that needs a new start."""

    def __init__(self, path: Path, take: Callable[[Spec], object], kept: Path) -> None:
        """``kept``: what the controller's configuration was read from."""
        super().__init__(path, kept)
        self._take = take

    async def reload(self) -> None:
        """Read it, and attach to what it lists if it is right."""
        from forebay.app import config  # YAML and the shipped profiles: a controller whose file is never edited does without

        try:
            self._take(await asyncio.to_thread(config.load, self._path, again=True))
        except BadInput:
            return
