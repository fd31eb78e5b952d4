"""How long a law has wanted the same direction without a break: what Ray Serve, SkyServe and KubeAI count in ticks."""

import msgspec


class Direction(msgspec.Struct, frozen=True, array_like=True):
    """``sign``: +1 up, −1 down, 0 neither; ``since_s``: the tick that began it."""

    sign: int = 0
    since_s: float = 0.0

    def towards(self, wanted: int, current: int, now_s: float) -> "Direction":
        """The direction after one more tick."""
        sign = (wanted > current) - (wanted < current)
        return self if sign == self.sign else Direction(sign, now_s)

    def for_s(self, now_s: float) -> float:
        """Seconds from the tick that began it."""
        return now_s - self.since_s
