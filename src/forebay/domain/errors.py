"""One root for Forebay's errors. A class's docstring is its message; the type says whose fault it is."""

from typing import NamedTuple


class ForebayError(Exception):
    """Forebay could not do what was asked."""

    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class BadInput(ForebayError):
    """The input is wrong, and nothing was started."""

    exit_code = 2


class Trouble(NamedTuple):
    """What is wrong at one ``path`` of the configuration."""

    path: str
    found: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.path}: found {self.found}; allowed: {self.allowed}"


class Unusable(BadInput):
    """Files that the configuration names can't be used; every trouble with them is told at once."""

    def __init__(self, *troubles: Trouble) -> None:
        self.troubles = troubles
        super().__init__("; ".join(map(str, troubles)))
