"""What reading a trace came to: rows taken, left out, and put where they belong, so that whoever reads a result knows of them."""

from forebay.domain.errors import BadInput
from forebay.domain.units import format_duration

HOUR_S = 3600.0
HOUR_BACK_S_MIN = 60.0
"""Less than that is disorder, not a clock that was put back."""
SUMMER_TIME = "; does summer time end here? write times in UTC or with their zone"
SUMMER_TIME_BEGINS = SUMMER_TIME.replace("end", "begin")


class Counts:
    """What reading a trace came to; kept up to date while rows are read."""

    def __init__(self) -> None:
        self.rows = 0
        self.failures = 0
        """Requests that the trace itself says had failed (BurstGPT: no response tokens); skipped."""
        self.unanswered = 0
        """Rows of one's own files that say 0 output tokens; taken for one, since their prompts were computed."""
        self.broken = 0
        """Rows skipped in lenient reading."""
        self.late = 0
        """Rows skipped in lenient reading since they were out of order by more than the window."""
        self.sorted = 0
        """Rows that lenient reading put where they belong: they stood behind later ones."""
        self.back_s = 0.0
        """By how much time goes back at most among the late and the sorted."""
        self.dated = False
        """Of those, some have a date: where times are local, an hour may come twice."""
        self.filled = 0
        """Steps of a rate that were missing, over which lenient reading draws a line."""
        self.skipped_hour = ""
        """Between which local times an hour has no rows, as where summer time begins; "" for none."""
        self.doubt = ""
        """What looks wrong with the whole of it, and should be said before it is played."""
        self.first_problem = ""

    def skip(self, problem: BadInput) -> None:
        """One broken row more."""
        self.broken += 1
        self.first_problem = self.first_problem or str(problem)

    def went_back(self, by_s: float, dated: bool) -> None:
        """A row came so much before an earlier one."""
        self.back_s = max(self.back_s, by_s)
        self.dated = self.dated or dated

    def nothing_left(self) -> str:
        """Why there is no row at all, where some were read."""
        return f"all {self.broken:,} rows that were read are broken; the first: {self.first_problem}" if self.broken else ""

    def told(self) -> list[str]:
        """What became of the rows that were not taken as they stand, for people; empty where all were."""
        kinds = {"failed in the trace": self.failures, "broken": self.broken, "too far out of order": self.late}
        skipped = ", ".join(f"{number:,} {what}" for what, number in kinds.items() if number)
        found = []
        if skipped:
            first = f"; the first broken one: {self.first_problem}" if self.first_problem else ""
            found.append(f"rows skipped: {skipped}{first}")
        if self.unanswered:
            found.append(f"rows without output, taken for one token each: {self.unanswered:,}")
        if self.back_s:
            order = f"rows put in order: {self.sorted:,}; " if self.sorted else ""
            hint = SUMMER_TIME if self.dated and HOUR_BACK_S_MIN < self.back_s <= HOUR_S else ""
            found.append(f"{order}time goes back by up to {format_duration(round(self.back_s, 3))}{hint}")
        if self.skipped_hour:
            found.append(f"no row from {self.skipped_hour}, in local time without a zone{SUMMER_TIME_BEGINS}")
        if self.filled:
            found.append(f"steps that are missing, over which a line is drawn: {self.filled:,}")
        return found
