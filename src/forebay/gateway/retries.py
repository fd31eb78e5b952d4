"""One budget for every second try, before the first content and after it: trouble must not multiply the load that made it.

A bucket of tokens: each request puts a share of one in, each second try takes one out. What it holds at most is what a
replica may have had in flight when it died.
"""

RETRY_SHARE = 0.2
"""Second tries per request, in the long run."""
RETRY_BURST = 512
"""Second tries at once: two full replicas of vLLM's usual 256 sequences."""


class RetryBudget:
    """One gateway's."""

    __slots__ = ("_held", "_seen", "arrived_total", "denied_total")

    def __init__(self) -> None:
        self._held = float(RETRY_BURST)
        self._seen = 0
        """Requests whose share is in it."""
        self.arrived_total = 0
        """Requests that came; whoever lets them in counts them."""
        self.denied_total = 0

    @property
    def spent(self) -> str:
        """For a client whose request got no other try: which budget that is, how large, and what to do."""
        size = f"{RETRY_BURST} at once" + (f", then one per {1 / RETRY_SHARE:.0f} requests that come" if RETRY_SHARE else "")
        return f"so many have failed that this gateway's budget of second tries is spent ({size}); ask again in some seconds"

    @property
    def left(self) -> bool:
        """Whether there may be another try, which is not taken yet."""
        self._held = min(RETRY_BURST, self._held + RETRY_SHARE * (self.arrived_total - self._seen))
        self._seen = self.arrived_total
        return self._held >= 1.0

    def take(self) -> bool:
        """Whether there may be another try."""
        if not self.left:
            self.denied_total += 1
            return False
        self._held -= 1.0
        return True


class HeldIds:
    """Bytes of token ids that all streams hold to be continued from, within a bound."""

    __slots__ = ("_bytes_max", "held_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held_bytes = 0

    def grow(self, size_bytes: int) -> bool:
        """Whether there is room for as many more; they are counted if so."""
        if self.held_bytes + size_bytes > self._bytes_max:
            return False
        self.held_bytes += size_bytes
        return True
