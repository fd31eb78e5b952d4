"""When the silence of a gateway is proof enough: somebody else was heard for so long that the silent one, if it lives, has asked it.

A gateway that hears no controller asks the others whether they do, and stops if one does (`lessee`). So what a silent one had, replicas
or shares of limits, is given away only by a controller that has heard another one for a while, without a long gap.
"""

WITNESS_FRACTION = 0.5
"""Of a lease: after so long with a gateway that is heard, each other one has asked it, or its leases stand no more, at any pace of clocks
(`lessee`: a quarter to stand, a tenth to ask)."""
WITNESS_GAP_FRACTION = 0.2
"""A longer silence of all, and that begins anew."""


class Witness:
    """Since when there has been somebody to ask. Times are world seconds."""

    __slots__ = ("_heard_s", "_lease_s", "_since_s")

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._since_s: float | None = None
        self._heard_s = 0.0

    def heard(self, now_s: float) -> None:
        """Some gateway spoke."""
        if self._since_s is None or now_s - self._heard_s > WITNESS_GAP_FRACTION * self._lease_s:
            self._since_s = now_s
        self._heard_s = now_s

    def stands(self, now_s: float) -> bool:
        """Whether there has been one for long enough, until now."""
        since_s, lease_s = self._since_s, self._lease_s
        lately = now_s - self._heard_s <= WITNESS_GAP_FRACTION * lease_s
        return since_s is not None and lately and now_s - since_s >= WITNESS_FRACTION * lease_s
