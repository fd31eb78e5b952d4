"""Which stage a comparison is in, and how far that is: policies under way, or the clairvoyant schedule, which takes longest, alone."""

from collections.abc import Callable

SCHEDULE = "the clairvoyant schedule"


class Stages:
    """Runs' progress as stages that have names.

    ``title``: of the stage in which policies are played; ``one_by_one``: nothing runs beside anything else, the schedule goes first.
    """

    def __init__(
        self, policies: int, bound: bool, one_by_one: bool, title: str, doing: Callable[[str], None], tell: Callable[[float], None]
    ) -> None:
        self._policies = self._left = policies
        self._bound = self._bound_left = bound
        self._one_by_one = one_by_one
        self._title = title
        self._doing = doing
        self._tell = tell
        self._named = ""
        self._name()

    def done(self, bound: bool) -> None:
        """One run is over; ``bound``: it was the schedule's."""
        if bound:
            self._bound_left = False
        else:
            self._left -= 1
        if self._left or self._bound_left:
            self._name()

    def tell(self, share: float) -> None:
        """``share`` of all runs together is done."""
        runs = share * (self._policies + self._bound)
        if self._named == SCHEDULE:
            runs -= 0 if self._one_by_one else self._policies
            self._tell(max(0.0, min(1.0, runs)))
        elif self._one_by_one:
            self._tell(max(0.0, runs - self._bound) / max(1, self._policies))
        else:
            self._tell(share)

    def _name(self) -> None:
        alone = self._bound_left and (self._one_by_one or not self._left)
        name = SCHEDULE if alone else self._title
        if name != self._named:
            self._named = name
            self._doing(name)
