"""What became of changed configurations: counted by each process that reads them, for its metrics page."""

import msgspec

STARTED = "; nothing was started"
"""So ends what is said of a bad file to who starts something; where something runs it is left out."""
WHY_CHARACTERS_MAX = 600
"""A file may be wrong in many places; the first of them are told."""


class Reloads(msgspec.Struct):
    """Of one process."""

    taken: int = 0
    refused: int = 0
    waits: bool = False
    """The file is not what is gone by: it was refused."""
    why: str = ""
    """…for that; empty once it is right."""

    def refuse(self, error: Exception) -> str:
        """The file is refused; the words for it, all of them."""
        words = str(error).removesuffix(STARTED)
        self.refused += 1
        self.waits, self.why = True, words if len(words) <= WHY_CHARACTERS_MAX else f"{words[:WHY_CHARACTERS_MAX]} …"
        return words

    def accept(self) -> bool:
        """The file is right; whether it was refused before."""
        waited, self.waits, self.why = self.waits, False, ""
        return waited
