"""One row of the trace on its way: sent when due, watched, sent again if told to, and counted exactly once.

Everything is measured from when the row was due, so a generator or an endpoint that falls behind can't hide it by
sending late (no coordinated omission).
"""

import math
from typing import TYPE_CHECKING

from forebay.demand.trace import TraceRow
from forebay.loadgen.http import Connection, Outcome
from forebay.loadgen.report import Record
from forebay.loadgen.stream import Ending, StreamWatch
from forebay.loadgen.tally import count

if TYPE_CHECKING:
    from forebay.loadgen.replay import Run

ERROR_BODY_BYTES_MAX = 16 * 1024
RETRY_AFTER_REAL_S_MAX = 120.0
"""A client library obeys up to this much; a longer one is taken as a refusal for good."""
SHED_STATUSES = frozenset({429, 503})


class Sending:
    """An Exchange of `loadgen.http`."""

    __slots__ = (
        "_answer",
        "_is_stream",
        "_refused",
        "_retry_after_real_s",
        "_run",
        "_sent_once",
        "_status",
        "_tally",
        "_tries",
        "_watch",
        "connection",
        "done",
        "due_s",
        "request",
        "row",
        "timer",
    )

    def __init__(self, run: "Run", row: TraceRow, due_s: float) -> None:
        self._run = run
        self._tally = run.totals.tier(row.tier)
        self._tally.requests += 1
        self.row = row
        self.due_s = due_s
        self._tries = 0
        self._sent_once = False
        self.timer = run.clock.call_at(due_s + run.options.timeout_s, self._expire)
        self._prepare()

    def _prepare(self) -> None:
        self.connection: Connection | None = None
        self.done = False
        self._tries += 1
        self._watch: StreamWatch | None = None
        self._status = 0
        self._is_stream = False
        self._answer = b""
        self._retry_after_real_s: float | None = None
        row, run = self.row, self._run
        self.request = run.maker.request(row.prompt_tokens, row.output_tokens, row.tier, run.key_of(row.tier))

    def sent(self) -> None:
        """Take the lag of the first time it goes out."""
        if not self._sent_once:
            self._sent_once = True
            self._run.totals.lag.add(max(0.0, self._run.clock.now_s() - self.due_s))

    def head(self, status: int, headers: list[tuple[bytes, bytes]], /) -> None:
        """Count the status, and see whether a stream follows."""
        self._status = status
        count(self._run.totals.statuses, str(status))
        self.request = b""
        for name, value in headers:
            if name == b"content-type":
                self._is_stream = b"json" not in value.lower()
            elif name == b"retry-after":
                self._retry_after_real_s = _seconds(value)
        if status == 200 and self._is_stream:
            self._watch = StreamWatch(self._tally.itl)

    def body(self, body: bytes) -> None:
        """A read of the body."""
        watch = self._watch
        if watch is None:
            if len(self._answer) < ERROR_BODY_BYTES_MAX:
                self._answer += body
            return
        waiting = watch.first_s is None
        now_s = self._run.clock.now_s()
        watch.feed(body, now_s)
        if waiting and watch.first_s is not None:
            self._tally.first_content(now_s - self.due_s)

    def end(self, outcome: Outcome, detail: str) -> None:
        """The exchange is over: conclude, or come back after Retry-After."""
        now_s = self._run.clock.now_s()
        if self._watch is not None and outcome in {Outcome.COMPLETE, Outcome.CUT, Outcome.BAD_RESPONSE}:
            self._end_of_stream(self._watch, outcome, detail, now_s)
        elif outcome is Outcome.COMPLETE and self._status in SHED_STATUSES:
            self._end_of_refusal(now_s)
        elif outcome is Outcome.COMPLETE:
            reason = f"http_{self._status}" if self._status != 200 else "not_a_stream"
            self._error(reason, self._answer.decode("utf-8", "replace"), now_s)
        elif self._watch is not None and self._watch.first_s is not None:
            self._truncated(outcome.value, now_s)
        else:
            self._error(outcome.value, detail, now_s)

    def _end_of_stream(self, watch: StreamWatch, outcome: Outcome, detail: str, now_s: float) -> None:
        ending = watch.ending(outcome is Outcome.COMPLETE, self.row.output_tokens)
        if ending is Ending.ERROR_EVENT and watch.first_s is None:
            if watch.error_code in SHED_STATUSES:
                self._end_of_refusal(now_s)
            else:
                self._error("error_event", f"code {watch.error_code}", now_s)
            return
        if ending not in {Ending.GOOD, Ending.STOPPED_EARLY}:
            if detail:
                self._run.totals.sample(f"{ending.value}: {detail}")
            self._truncated(ending.value, now_s)
            return
        totals = self._run.totals
        totals.stopped_early += ending is Ending.STOPPED_EARLY
        totals.usage_missing += watch.usage is None
        self._tally.completed += 1
        self._tally.e2e.add(now_s - self.due_s)
        self._conclude("completed", now_s)

    def _end_of_refusal(self, now_s: float) -> None:
        totals, options, asked_real_s = self._run.totals, self._run.options, self._retry_after_real_s
        if asked_real_s is None:
            totals.retry_missing += 1
        else:
            totals.retry_given += 1
            totals.retry_after.add(asked_real_s)
            may = options.obey_retry_after and self._tries <= options.retries_max and asked_real_s <= RETRY_AFTER_REAL_S_MAX
            if may and not self._run.stopping:
                totals.retry_obeyed += 1
                self.done = True
                self._run.clock.call_at(now_s + asked_real_s * self._run.clock.speed, self._again)
                return
        totals.retry_given_up += 1
        self._tally.shed += 1
        self._conclude("shed", now_s)

    def _again(self) -> None:
        if self in self._run.flying:
            self._prepare()
            self._run.client.send(self)

    def _expire(self) -> None:
        if self.connection is not None:
            self.connection.abort(Outcome.TIMEOUT, "no end within the timeout")
        elif self in self._run.flying:
            self.give_up(Outcome.TIMEOUT)

    def give_up(self, outcome: Outcome) -> None:
        """It waits for a connection, or to come back: end it here."""
        self.done = True
        self._watch = None
        self._error(outcome.value, "before it was sent (again)", self._run.clock.now_s())

    def _truncated(self, reason: str, now_s: float) -> None:
        self._tally.truncated += 1
        count(self._run.totals.truncated_by, reason)
        self._conclude(reason, now_s)

    def _error(self, reason: str, detail: str, now_s: float) -> None:
        self._tally.errors += 1
        count(self._run.totals.errors_by, reason)
        self._run.totals.sample(f"{reason}: {detail}" if detail else reason)
        self._conclude(reason, now_s, error=True)

    def _conclude(self, outcome: str, now_s: float, *, error: bool = False) -> None:
        self.timer.cancel()
        run, watch = self._run, self._watch
        ttft_s, tokens = None, 0
        if watch is not None:
            tokens = watch.usage or 0
            run.totals.chunks += watch.events
            run.totals.output_tokens += tokens
            if watch.first_s is not None:
                ttft_s = watch.first_s - self.due_s
                run.totals.longest_gap.add(watch.gap_s_max)
        if run.options.records:
            truncated = outcome not in {"completed", "shed"} and not error
            at_s, e2e_s = self.due_s - run.started_s, now_s - self.due_s
            run.keep(Record(at_s, ttft_s, e2e_s, self._status, truncated, outcome, self.row.tier, tokens))
        run.concluded(self)


def _seconds(value: bytes) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
