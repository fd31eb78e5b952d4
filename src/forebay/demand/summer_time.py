"""An hour that no clock showed: local times without a zone jump from 01:59 to 03:00 as summer time begins, and look like an idle hour."""

from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from forebay.demand.counts import HOUR_S, Counts
from forebay.demand.rows import SinceFirst

NEAR = 12
"""So many requests within the hour before and the hour after: an hour without any is odd then."""
SLACK_S = 600.0
"""The last before and the first after are at most so far from the whole hours between which the clock is put forward."""
HOURS = (0, 1, 2, 3)
"""At which clocks are put forward, somewhere."""
WEEKDAYS = (4, 6)
"""Friday and Sunday: as almost everywhere."""
MONTHS = (3, 4, 9, 10)


class SkippedHour:
    """Watches the times of one trace, chunk by chunk in order, and notes the first such jump in its counts."""

    def __init__(self, since: SinceFirst, counts: Counts) -> None:
        self._since, self._counts = since, counts
        self._before_s: npt.NDArray[np.float64] = np.empty(0)

    def saw(self, at_s: npt.NDArray[np.float64]) -> None:
        """The next times of the trace, in seconds since its first row."""
        if not self._since.zoneless or self._counts.skipped_hour:
            return
        times_s = np.concatenate((self._before_s, at_s))
        gaps_s = np.diff(times_s)
        inner = slice(NEAR - 1, len(times_s) - NEAR)
        for place in np.flatnonzero(np.abs(gaps_s[inner] - HOUR_S) <= 2 * SLACK_S) + NEAR - 1:
            around = times_s[place - NEAR + 1], times_s[place], times_s[place + 1], times_s[place + NEAR]
            if around[1] - around[0] <= HOUR_S and around[3] - around[2] <= HOUR_S and self._is_skipped(float(around[1]), float(around[2])):
                break
        self._before_s = times_s[-(2 * NEAR - 1) :].copy()

    def _is_skipped(self, last_s: float, next_s: float) -> bool:
        assert self._since.origin_us is not None
        last, first = (datetime.fromtimestamp(self._since.origin_us / 1e6 + at_s, UTC) for at_s in (last_s, next_s))
        # The first whole hour after the last row; a date as text is a clock on the wall, and read as if it were UTC.
        forward_s = last_s + HOUR_S - (self._since.origin_us / 1e6 + last_s) % HOUR_S
        forward = datetime.fromtimestamp(self._since.origin_us / 1e6 + forward_s, UTC)
        whole = forward_s - last_s <= SLACK_S and 0 <= next_s - (forward_s + HOUR_S) <= SLACK_S
        if not (whole and forward.hour in HOURS and forward.weekday() in WEEKDAYS and forward.month in MONTHS):
            return False
        self._counts.skipped_hour = f"{last:%Y-%m-%d %H:%M:%S} to {first:%H:%M:%S}"
        return True
