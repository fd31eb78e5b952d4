"""Preemptible prompts that were sent a moment ago, and are in no step of their engine yet.

An engine finishes the step it is in before it takes a prompt, and HTTP and tokenising come before that. Until then the choice of the
moment can be undone at no cost: where a more important prompt goes to the same replica, what has not begun is taken back, and waits
for another moment.
"""

from collections import deque

from forebay.admission.tickets import Ticket

UNBEGUN_LAG = 0.4
"""What was sent less than this share of its replica's lag ago has most likely not begun."""
UNBEGUN_S_MAX = 0.125
"""Nothing that was sent longer ago is remembered (`budget.LAG_S_MAX`)."""


class Young(deque[Ticket]):
    """Of one replica, those sent last."""

    __slots__ = ()

    def sent(self, ticket: Ticket, now_s: float) -> None:
        """It has just got its permit."""
        self._forget(now_s - UNBEGUN_S_MAX)
        self.append(ticket)

    def gone(self, ticket: Ticket) -> None:
        """Its permit has ended."""
        if ticket in self:
            self.remove(ticket)

    def unbegun(self, now_s: float, lag_s: float) -> "Young":
        """Those that have not begun where prompts begin ``lag_s`` after they are sent."""
        self._forget(now_s - UNBEGUN_LAG * lag_s)
        return self

    def _forget(self, since_s: float) -> None:
        while self and (self[0].dispatched_s < since_s or not self[0].outstanding):
            self.popleft()
