"""One root for Forebay's errors. A class's docstring is its message; the type says whose fault it is."""


class ForebayError(Exception):
    """Forebay could not do what was asked."""

    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class BadInput(ForebayError):
    """The input is wrong, and nothing was started."""

    exit_code = 2


class Unusable(BadInput):
    """A file that the configuration names can't be used."""

    def __init__(self, path: str, found: str, allowed: str) -> None:
        """``path``: the configuration's key."""
        self.path, self.found, self.allowed = path, found, allowed
        super().__init__(f"{path}: found {found}; allowed: {allowed}")
