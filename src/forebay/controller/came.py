"""What has come to each pool by the gateways' own counts, net of preemptible tiers: growth from one snapshot to the next, so that a
request counts once, however its second is looked at. What a gateway counted before its first snapshot here is an earlier controller's.
"""

from collections.abc import Mapping

from forebay.domain.roster import PoolLoad, Snapshot

Triple = tuple[float, float, float]
"""Requests, prompt tokens, output tokens."""
NOTHING: Triple = (0.0, 0.0, 0.0)


class Came:
    """Of all gateways; pools are those of the configuration."""

    def __init__(self) -> None:
        self._totals: dict[str, Triple] = {}
        self._corrected: dict[str, dict[int, tuple[int, int]]] = {}

    def take(self, before: Snapshot | None, after: Snapshot) -> None:
        """One gateway spoke: ``before`` are its words before that, None for its first ones."""
        if before is None:
            return
        earlier = {load.pool: load for load in before.pools}
        for load in after.pools:
            old = earlier.get(load.pool)
            came, was = _came(load), NOTHING if old is None else _came(old)
            settled, had = _settled(load), {} if old is None else _settled(old)
            if after.at_s < before.at_s or came[0] < was[0]:  # it was restarted in between
                was, had = NOTHING, {}
            total = self._totals.get(load.pool, NOTHING)
            self._totals[load.pool] = (total[0] + came[0] - was[0], total[1] + came[1] - was[1], total[2] + came[2] - was[2])
            sums = self._corrected.setdefault(load.pool, {})
            for start, (prompt, output) in settled.items():
                prompt_before, output_before = had.get(start, (0, 0))
                if (prompt, output) != (prompt_before, output_before):
                    so_far = sums.get(start, (0, 0))
                    sums[start] = (so_far[0] + prompt - prompt_before, so_far[1] + output - output_before)

    def total(self, pool: str) -> Triple:
        """Since this controller began; only differences mean something."""
        return self._totals.get(pool, NOTHING)

    def corrections(self, pool: str) -> Mapping[int, tuple[int, int]]:
        """Prompt and output tokens by which what came in the span that begins at a Unix time is corrected; each is told once."""
        return self._corrected.pop(pool, {})


def _came(load: PoolLoad) -> Triple:
    kept = [row for row in load.counts if not row.preemptible]
    return (
        float(sum(row.arrived for row in kept)),
        float(sum(row.arrived_prompt_tokens for row in kept)),
        float(sum(row.arrived_output_tokens for row in kept)),
    )


def _settled(load: PoolLoad) -> dict[int, tuple[int, int]]:
    sums: dict[int, tuple[int, int]] = {}
    for row in load.counts:
        for one in () if row.preemptible else row.corrected:
            prompt, output = sums.get(one.start_unix_s, (0, 0))
            sums[one.start_unix_s] = (prompt + one.prompt_tokens, output + one.output_tokens)
    return sums
