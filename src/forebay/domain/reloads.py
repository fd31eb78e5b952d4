"""What became of changed configurations: counted by each process that reads them, for its metrics page."""

import msgspec

STARTED = "; nothing was started"
"""So ends what is said of a bad file to who starts something; where something runs it is left out."""


class Reloads(msgspec.Struct):
    """Of one process."""

    taken: int = 0
    refused: int = 0
    waits: bool = False
    """The file is not what is gone by: it was refused."""
