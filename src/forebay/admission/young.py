"""Preemptible prompts that were sent a moment ago, and are in no step of their engine yet.

An engine finishes the step it is in before it takes a prompt, and HTTP and tokenising come before that. Until then the choice of the
moment can be undone at no cost: where a more important prompt goes to the same replica, what has not begun is taken back, and waits
for another moment.
"""

from collections import deque
from collections.abc import Iterator

from forebay.admission.tickets import Ticket

UNBEGUN_LAG = 0.4
"""What was sent less than this share of its replica's lag ago has most likely not begun."""
UNBEGUN_S_MAX = 0.125
"""Nothing that was sent longer ago is remembered (`budget.LAG_S_MAX`)."""


class Young:
    """Of one replica, those sent last."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self._sent: deque[Ticket] = deque()

    def __bool__(self) -> bool:
        return bool(self._sent)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._sent)

    def sent(self, ticket: Ticket, now_s: float) -> None:
        """It has just got its permit."""
        self._forget(now_s - UNBEGUN_S_MAX)
        self._sent.append(ticket)

    def gone(self, ticket: Ticket) -> None:
        """Its permit has ended."""
        if ticket in self._sent:
            self._sent.remove(ticket)

    def unbegun(self, now_s: float, lag_s: float) -> deque[Ticket]:
        """Those that have not begun where prompts begin ``lag_s`` after they are sent."""
        self._forget(now_s - UNBEGUN_LAG * lag_s)
        return self._sent

    def _forget(self, since_s: float) -> None:
        sent = self._sent
        while sent and (sent[0].dispatched_s < since_s or not sent[0].outstanding):
            sent.popleft()
